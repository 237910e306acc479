"""Preparation on a local Ray cluster: two workers against one, the bytes against one process's, and memory.

    python -m bench.ray_cpu                        # MB/s with 1, 2 and 4 workers, 30 MB of wiki-0 in $FIRTH_DATA
    python -m bench.ray_cpu --megabytes 1000       # all of the file
    python -m bench.ray_cpu --grow 50 200 2000     # memory of a worker for made-up corpora of so many MB

A speed is that of `prepare` alone; the start of the cluster is shown besides. Each job runs in a process of its own.
The memory of a worker and of the driver is their own (anonymous) memory, looked at ten times a second; text and arrays
on their way between them are in Ray's object store, which is bounded.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
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

WORKERS = (1, 2, 4)


@dataclass(frozen=True)
class Cost:
    """What a job has cost."""

    seconds: float
    start_seconds: float
    """Of the cluster."""
    worker_bytes: int = 0
    """The most memory that one worker had."""
    driver_bytes: int = 0
    worker_cpu: float = 0.0
    """CPU seconds of all workers; these do not depend on what else the machine does."""
    other_cpu: float = 0.0
    """CPU seconds of the driver and of Ray's own processes."""


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
        size, runs = _rounds(Path(name), TEXT, 12, 2, (1, 2))
    one, two = ([size / cost.seconds for cost in runs[workers]] for workers in (1, 2))
    return [Row(f"prepare {size:.0f} MB by Ray, 2 workers", "MB/s", two, "1 worker", one, "1.7")]


def _compare(folder: Path, source: Path, megabytes: float, rounds: int) -> None:
    size, runs = _rounds(folder, source, megabytes, rounds, (0, *WORKERS))
    best = {workers: min(cost.seconds for cost in costs) for workers, costs in runs.items()}
    print(f"{size:.1f} MB of {source.name}, best of {rounds} rounds; all folders are the same byte for byte")
    heads = ["", "MB/s", "against 1 worker", "start s", "worker MB", "driver MB", "CPU s: workers", "others"]
    widths = [26, 8, 18, 9, 11, 11, 16, 8]
    print("".join(head.rjust(width) for head, width in zip(heads, widths, strict=True)))
    for workers, costs in runs.items():
        label = f"Ray, {workers} worker(s)" if workers else "one machine, 2 processes"
        memory = [max(getattr(cost, name) for cost in costs) / MB for name in ("worker_bytes", "driver_bytes")]
        print(
            f"{label:<26}{size / best[workers]:8.2f}{best[1] / best[workers]:18.2f}"
            f"{min(cost.start_seconds for cost in costs):9.1f}{memory[0]:11.0f}{memory[1]:11.0f}"
            f"{min(cost.worker_cpu for cost in costs):16.1f}{min(cost.other_cpu for cost in costs):8.1f}"
        )


def _rounds(
    folder: Path, source: Path, megabytes: float, rounds: int, all_workers: tuple[int, ...]
) -> tuple[float, dict[int, list[Cost]]]:
    """The MB there are, and what each number of workers costs in every round; 0 is one machine without Ray."""
    text = folder / "text.txt"
    with open_binary(source) as file:
        text.write_bytes(file.read(int(megabytes * MB)).rpartition(b"\n")[0] + b"\n")
    WordPiece.train(sample_texts(text, 10 * MB), WordPiece.Config()).save(folder / "tokenizer")
    runs: dict[int, list[Cost]] = {workers: [] for workers in all_workers}
    manifests = set()
    for _ in range(rounds):
        for workers in all_workers:
            cost = _measure(folder, text, workers)
            runs[workers].append(cost)
            manifests.add((folder / f"out-{workers}" / MANIFEST).read_bytes())
            say(f"{workers} workers: {cost.seconds:.1f} s, and {cost.start_seconds:.1f} s to start")
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
        cost = _measure(folder, text, 2)
        memory = f"{cost.worker_bytes / MB:11.0f}{cost.driver_bytes / MB:11.0f}"
        cpu = f"{cost.worker_cpu:16.1f}{cost.other_cpu:8.1f}"
        print(f"{megabytes:12.0f}{megabytes / cost.seconds:8.2f}{memory}{cpu}", flush=True)


def _measure(folder: Path, text: Path, workers: int) -> Cost:
    """What a job costs in a process of its own, and the memory of its processes."""
    command = [sys.executable, "-m", "bench.ray_cpu", "--job", "--text", str(text), "--folder", str(folder)]
    child = subprocess.Popen([*command, "--workers", str(workers)], stdout=subprocess.PIPE, text=True)
    worker_bytes = 0
    driver_bytes = 0
    worker_cpu: dict[int, float] = {}
    other_cpu: dict[int, float] = {}
    while child.poll() is None:
        driver_bytes = max(driver_bytes, _own_memory(child.pid))
        for pid in _family(child.pid):
            with suppress(OSError):
                is_worker = Path(f"/proc/{pid}/comm").read_text().startswith("ray::")
                (worker_cpu if is_worker else other_cpu)[pid] = _cpu_seconds(pid)
                if is_worker:
                    worker_bytes = max(worker_bytes, _own_memory(pid))
        time.sleep(0.1)
    if child.returncode or not child.stdout:
        sys.exit("The job failed.")
    found = json.loads(child.stdout.read().splitlines()[-1])
    return Cost(
        found["seconds"],
        found["start_seconds"],
        worker_bytes,
        driver_bytes,
        sum(worker_cpu.values()),
        sum(other_cpu.values()),
    )


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
    out = folder / f"out-{workers}"
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
        distributed.prepare(engine, text, out, tokenizer=tokenizer, reading=Reading(), replace=True)
        return Cost(time.perf_counter() - started, started - began)


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
