"""Preparation on a local Ray cluster: two workers against one, the bytes against one process's, and memory.

    python -m bench.ray_cpu                        # MB/s with 1, 2 and 4 workers, 30 MB of wiki-0 in $FIRTH_DATA
    python -m bench.ray_cpu --megabytes 1000       # all of the file
    python -m bench.ray_cpu --grow 50 200 2000     # memory of a worker for made-up corpora of so many MB

A speed is that of `prepare` alone; the start of the cluster is shown besides. Each job runs in a process of its own.
In one job a worker is killed in the middle. Every folder must be the same byte for byte. On a machine that others use,
the second speed is the one to compare: it leaves out the time in which a worker was ready and something else had its
core.
The memory of a worker and of the driver is their own (anonymous) memory, looked at ten times a second; text and arrays
on their way between them are in Ray's object store, which is bounded.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.prepare_cpu import MB, TEXT, _family, _made_up
from bench.table import Row, say
from firth import tokenizers
from firth.data import distributed
from firth.data.pieces import Reading
from firth.data.prepare import prepare
from firth.data.vocabulary_sample import sample_texts
from firth.engines import open_engine
from firth.files import MANIFEST, open_binary
from firth.tokenizers.wordpiece import WordPiece

WORKER_NAMES = ("ray::_call", "ray::IDLE")
"""What the processes of Ray's workers are called."""
KILL_AFTER = 2.0
"""CPU seconds of a worker, its start included, after which a job that loses one loses it."""


@dataclass(frozen=True)
class Case:
    """Who prepares the text: so many workers of Ray; 0 for one machine without Ray."""

    workers: int
    loses_one: bool = False

    @property
    def label(self) -> str:
        if not self.workers:
            return "one machine, 2 processes"
        label = f"Ray, {self.workers} worker(s)"
        return f"{label}, one killed" if self.loses_one else label


ONE_MACHINE = Case(0)
ONE_WORKER = Case(1)
TWO_WORKERS = Case(2)
CASES = (ONE_MACHINE, ONE_WORKER, TWO_WORKERS, Case(4), Case(2, loses_one=True))


@dataclass(frozen=True)
class Cost:
    """What a job has cost."""

    seconds: float
    start_seconds: float
    """Of the cluster."""
    waited: float = 0.0
    """Seconds that a worker was ready to run and had no core, the mean of all workers."""
    worker_bytes: int = 0
    """The most memory that one worker had."""
    driver_bytes: int = 0
    worker_cpu: float = 0.0
    """CPU seconds of all workers, their start included; these do not depend on what else the machine does."""
    other_cpu: float = 0.0
    """CPU seconds of the driver and of Ray's own processes, their start included."""

    @property
    def running_seconds(self) -> float:
        """What is left without the time that workers waited for a core."""
        return self.seconds - self.waited


def main() -> None:
    arguments = _arguments()
    if arguments.job:
        cost = _job(Path(arguments.text), Path(arguments.folder), arguments.workers)
        print(json.dumps(asdict(cost)))
        return
    with tempfile.TemporaryDirectory() as name:
        if arguments.grow:
            _grow(Path(name), arguments.grow)
        else:
            _compare(Path(name), Path(arguments.text), arguments.megabytes, arguments.rounds)


def rows() -> list[Row]:
    """What `make bench` shows."""
    with tempfile.TemporaryDirectory() as name:
        size, runs = _rounds(Path(name), TEXT, 12, 2, (ONE_WORKER, TWO_WORKERS))
    one = [size / cost.seconds for cost in runs[ONE_WORKER]]
    two = [size / cost.seconds for cost in runs[TWO_WORKERS]]
    return [Row(f"prepare {size:.0f} MB by Ray, 2 workers", "MB/s", two, "1 worker", one, "1.7")]


def _compare(folder: Path, source: Path, megabytes: float, rounds: int) -> None:
    size, runs = _rounds(folder, source, megabytes, rounds, CASES)
    best = {case: min(costs, key=lambda cost: cost.running_seconds) for case, costs in runs.items()}
    one = best[ONE_WORKER]
    print(f"{size:.1f} MB of {source.name}, best of {rounds} rounds; all folders are the same byte for byte")
    heads = [
        "",
        "MB/s",
        "to 1 worker",
        "MB/s running",
        "to 1 worker",
        "worker MB",
        "driver MB",
        "CPU s: workers",
        "others",
    ]
    widths = [32, 8, 13, 14, 13, 11, 11, 16, 8]
    print("".join(head.rjust(width) for head, width in zip(heads, widths, strict=True)))
    for case, costs in runs.items():
        worker_memory = max(cost.worker_bytes for cost in costs) / MB
        driver_memory = max(cost.driver_bytes for cost in costs) / MB
        cost = best[case]
        print(
            f"{case.label:<32}{size / cost.seconds:8.2f}{one.seconds / cost.seconds:13.2f}"
            f"{size / cost.running_seconds:14.2f}{one.running_seconds / cost.running_seconds:13.2f}"
            f"{worker_memory:11.0f}{driver_memory:11.0f}"
            f"{min(cost.worker_cpu for cost in costs):16.1f}{min(cost.other_cpu for cost in costs):8.1f}"
        )


def _rounds(
    folder: Path, source: Path, megabytes: float, rounds: int, cases: Sequence[Case]
) -> tuple[float, dict[Case, list[Cost]]]:
    """The MB there are, and what each case costs in every round."""
    text = folder / "text.txt"
    with open_binary(source) as file:
        text.write_bytes(file.read(int(megabytes * MB)).rpartition(b"\n")[0] + b"\n")
    WordPiece.train(sample_texts(text, 10 * MB), WordPiece.Config()).save(folder / "tokenizer")
    runs: dict[Case, list[Cost]] = {case: [] for case in cases}
    manifests = set()
    for _ in range(rounds):
        for case in cases:
            cost = _measure(folder, text, case)
            runs[case].append(cost)
            manifests.add((folder / "out" / MANIFEST).read_bytes())
            waited = f"{cost.waited:.1f} of them without a core"
            say(f"{case.label}: {cost.seconds:.1f} s, {waited}, and {cost.start_seconds:.1f} s to start")
    if len(manifests) != 1:
        sys.exit("The bytes depend on the number of workers.")
    return text.stat().st_size / MB, runs


def _grow(folder: Path, sizes: list[float]) -> None:
    """Memory by the size of the corpus: two workers."""
    print(f"{'MB of text':>12}{'MB/s':>8}{'worker MB':>11}{'driver MB':>11}{'CPU s: workers':>16}{'others':>8}")
    text = folder / "text.txt"
    for megabytes in sizes:
        with text.open("w") as file:
            for part in _made_up(len(sizes)):
                file.write(part)
                if file.tell() > megabytes * MB:
                    break
        if not (folder / "tokenizer").exists():
            WordPiece.train(sample_texts(text, 5 * MB), WordPiece.Config(vocab_size=20_000)).save(folder / "tokenizer")
        cost = _measure(folder, text, TWO_WORKERS)
        memory = f"{cost.worker_bytes / MB:11.0f}{cost.driver_bytes / MB:11.0f}"
        cpu = f"{cost.worker_cpu:16.1f}{cost.other_cpu:8.1f}"
        print(f"{megabytes:12.0f}{megabytes / cost.seconds:8.2f}{memory}{cpu}", flush=True)


def _measure(folder: Path, text: Path, case: Case) -> Cost:
    """What a job costs in a process of its own, and the memory of its processes."""
    command = [sys.executable, "-m", "bench.ray_cpu", "--job", "--text", str(text), "--folder", str(folder)]
    child = subprocess.Popen([*command, "--workers", str(case.workers)], stdout=subprocess.PIPE, text=True)
    watch = _Watch(child.pid, loses_one=case.loses_one)
    while child.poll() is None:
        watch.look()
        time.sleep(0.1)
    if child.returncode or not child.stdout:
        sys.exit("The job failed.")
    if watch.loses_one:
        sys.exit("The job was over before a worker was killed; give it more text.")
    found = json.loads(child.stdout.read().splitlines()[-1])
    return Cost(
        found["seconds"],
        found["start_seconds"],
        found["waited"],
        watch.worker_bytes,
        watch.driver_bytes,
        sum(watch.worker_cpu.values()),
        sum(watch.other_cpu.values()),
    )


class _Watch:
    """The memory and CPU time of a job's processes, of which one worker may have to die."""

    def __init__(self, driver: int, *, loses_one: bool) -> None:
        self.driver = driver
        self.loses_one = loses_one
        self.worker_bytes = 0
        self.driver_bytes = 0
        self.worker_cpu: dict[int, float] = {}
        self.other_cpu: dict[int, float] = {}

    def look(self) -> None:
        self.driver_bytes = max(self.driver_bytes, _own_memory(self.driver))
        for pid in _family(self.driver):
            with suppress(OSError):  # it has ended
                self._look_at(pid)

    def _look_at(self, pid: int) -> None:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        if name not in WORKER_NAMES:
            self.other_cpu[pid] = _cpu_seconds(pid)
            return
        self.worker_cpu[pid] = _cpu_seconds(pid)
        self.worker_bytes = max(self.worker_bytes, _own_memory(pid))
        is_at_work = name == WORKER_NAMES[0] and self.worker_cpu[pid] > KILL_AFTER
        if self.loses_one and is_at_work:
            os.kill(pid, signal.SIGKILL)
            self.loses_one = False


def _cpu_seconds(pid: int) -> float:
    """What a process has used, starting and importing included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _own_memory(pid: int) -> int:
    """The bytes of a process that are not in files or shared memory."""
    try:
        found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def _job(text: Path, folder: Path, workers: int) -> Cost:
    tokenizer = tokenizers.load(folder / "tokenizer")
    out = folder / "out"
    began = time.perf_counter()
    if not workers:
        prepare(text, out, tokenizer=tokenizer, processes=2, replace=True)
        return Cost(time.perf_counter() - began, 0.0)
    with open_engine("ray", workers=workers) as engine:
        assert engine is not None
        # Every worker has imported what it needs before the clock begins, as on a cluster that runs already.
        waiting = [engine.submit(_imported, number) for number in range(2 * workers)]
        for handle in waiting:
            engine.result(handle)
        started = time.perf_counter()
        waited_before = _waited()
        distributed.prepare(engine, text, out, tokenizer=tokenizer, reading=Reading(), replace=True)
        waited = (_waited() - waited_before) / workers
        return Cost(time.perf_counter() - started, started - began, waited)


def _waited() -> float:
    """Seconds that the workers of this process's cluster, which work in their first thread, have waited for a core."""
    total = 0.0
    for pid in _family(os.getpid()):
        with suppress(OSError):  # it has ended
            if Path(f"/proc/{pid}/comm").read_text().strip() in WORKER_NAMES:
                _, nanoseconds, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
                total += int(nanoseconds) / 1e9
    return total


def _imported(number: int) -> int:
    """What a worker does first. It takes a moment, so that no worker gets all of these."""
    time.sleep(0.5)
    return number


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default=str(TEXT))
    parser.add_argument("--megabytes", type=float, default=30, help="how much of the text to use")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--grow", type=float, nargs="+", help="sizes in MB of made-up corpora")
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    for hidden, kind in (("--folder", str), ("--workers", int)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
