"""Speed and memory of preparation, against the bare tokenizers library on the same text in one run.

    python -m bench.prepare_cpu                      # MB/s and peak memory, 30 MB of $FIRTH_DATA/en/pretrain/wiki-0
    python -m bench.prepare_cpu --grow 10 200 2000   # peak memory for made-up corpora of so many MB, nothing repeated

The library's figure is `encode_batch` on the lines, two threads, and nothing else: no reading, cleaning, duplicates,
sentences or writing. Memory is the sum of the resident sizes of a job's processes, looked at every 20 ms; each job runs
in a process of its own.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from bench.table import Row, say
from bench.texts import data_folder
from firth import rng, tokenizers
from firth.data.prepare import prepare
from firth.data.vocabulary_sample import sample_texts
from firth.files import open_binary
from firth.tokenizers.wordpiece import WordPiece

TEXT = data_folder() / "en" / "pretrain" / "wiki-0.txt.xz"
MB = 1_000_000
JOBS = {
    "tokenizers encode_batch, 2 threads": ("bare", 2),
    "firth prepare, processes=1": ("prepare", 1),
    "firth prepare, processes=2": ("prepare", 2),
}
Cost = tuple[float, float, int]
"""Seconds, CPU seconds (the process's start included) and peak bytes."""


def main() -> None:
    arguments = _arguments()
    if arguments.job:
        print(_job(arguments.job, Path(arguments.text), Path(arguments.folder), arguments.processes))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.grow:
            _grow(folder, arguments.grow)
        else:
            _compare(folder, Path(arguments.text), arguments.megabytes, arguments.rounds)


def _compare(folder: Path, source: Path, megabytes: float, rounds: int) -> None:
    size, runs = _rounds(folder, source, megabytes, rounds)
    print(f"{size:.1f} MB of {source.name}, best of {rounds} rounds")
    print(f"{'':<36}{'MB/s':>8}{'ratio':>8}{'CPU s':>8}{'peak MB':>9}   MB/s of the rounds")
    best = {label: [min(column) for column in zip(*costs, strict=True)] for label, costs in runs.items()}
    for label, (seconds, cpu, peak) in best.items():
        ratio = next(iter(best.values()))[0] / seconds
        each = ", ".join(f"{size / cost[0]:.2f}" for cost in runs[label])
        print(f"{label:<36}{size / seconds:8.2f}{ratio:8.2f}{cpu:8.1f}{peak / MB:9.0f}   {each}")


def rows() -> list[Row]:
    """What `make bench` shows."""
    with tempfile.TemporaryDirectory() as folder:
        size, runs = _rounds(Path(folder), TEXT, 8, 2)
    speeds = {label: [size / cost[0] for cost in costs] for label, costs in runs.items()}
    (peer, theirs), *ours = speeds.items()
    return [
        Row(
            f"prepare {size:.0f} MB, {label[-11:]}", "MB/s", speed, peer, theirs, "", f"{runs[label][0][2] / MB:.0f} MB"
        )
        for label, speed in ours
    ]


def _rounds(folder: Path, source: Path, megabytes: float, rounds: int) -> tuple[float, dict[str, list[Cost]]]:
    """The MB there are, and what each job costs in every round."""
    text = folder / "text.txt"
    with open_binary(source) as file:
        text.write_bytes(file.read(int(megabytes * MB)).rpartition(b"\n")[0] + b"\n")
    WordPiece.train(sample_texts(text, 10 * MB), WordPiece.Config()).save(folder / "tokenizer")
    runs: dict[str, list[Cost]] = {label: [] for label in JOBS}
    for _ in range(rounds):
        for label, (job, processes) in JOBS.items():
            runs[label].append(_measure(folder, job, text, processes))
            say(f"{label}: {runs[label][-1][0]:.1f} s")
    return text.stat().st_size / MB, runs


def _grow(folder: Path, sizes: list[float]) -> None:
    print(f"{'MB of text':>12}{'MB/s':>8}{'peak MB':>9}")
    for megabytes in sizes:
        text = folder / "text.txt"
        with text.open("w") as file:
            written = 0
            for part in _made_up(len(sizes)):
                written += file.write(part)
                if written > megabytes * MB:
                    break
        if not (folder / "tokenizer").exists():
            WordPiece.train(sample_texts(text, 5 * MB), WordPiece.Config(vocab_size=20_000)).save(folder / "tokenizer")
        seconds, _, peak = _measure(folder, "prepare", text, 2)
        print(f"{megabytes:12.0f}{megabytes / seconds:8.2f}{peak / MB:9.0f}", flush=True)


def _made_up(seed: int) -> Iterator[str]:
    """Documents of twenty lines of sentences of Zipf-distributed words; no two lines are alike."""
    key, letters = rng.key(seed, "made up"), np.array(list("etaoinshrdlucmfwypvbgk"))
    spelled = letters[rng.below(key, len(letters), np.arange(50_000)[:, None], np.arange(8))]
    words = np.array(["".join(row[: 2 + i % 7]) for i, row in enumerate(spelled)])
    block = 0
    while True:
        draws = rng.uniform(key, block, np.arange(200 * 20).reshape(-1, 20))
        ranks = np.exp(draws * np.log(len(words))).astype(int) - 1
        sentences = [" ".join(row).capitalize() + "." for row in words[ranks].tolist()]
        lines = [" ".join(sentences[i : i + 2]) for i in range(0, len(sentences), 2)]
        yield "\n\n".join("\n".join(lines[i : i + 20]) for i in range(0, len(lines), 20)) + "\n\n"
        block += 1


def _measure(folder: Path, job: str, text: Path, processes: int) -> Cost:
    """What a job costs in a process of its own."""
    before = os.times()
    command = [sys.executable, "-m", "bench.prepare_cpu", "--job", job, "--text", str(text), "--folder", str(folder)]
    child = subprocess.Popen([*command, "--processes", str(processes)], stdout=subprocess.PIPE, text=True)
    peak = 0
    while child.poll() is None:
        peak = max(peak, sum(map(_resident, _family(child.pid))))
        time.sleep(0.02)
    if child.returncode or not child.stdout:
        sys.exit(f"{job} failed")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return float(child.stdout.read()), cpu, peak


def _family(pid: int) -> list[int]:
    family = [pid]
    for parent in family:
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):
                family += map(int, path.read_text().split())
    return family


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _job(name: str, text: Path, folder: Path, processes: int) -> float:
    tokenizer = tokenizers.load(folder / "tokenizer")
    if name == "prepare":
        start = time.perf_counter()
        prepare(text, folder / "out", tokenizer=tokenizer, processes=processes, replace=True)
        return time.perf_counter() - start
    from tokenizers import Tokenizer

    bare = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    lines = [line for line in text.read_text("utf-8").split("\n") if line]
    os.environ["RAYON_NUM_THREADS"] = str(processes)
    start = time.perf_counter()
    for i in range(0, len(lines), 1000):
        bare.encode_batch(lines[i : i + 1000])
    return time.perf_counter() - start


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default=str(TEXT))
    parser.add_argument("--megabytes", type=float, default=30, help="how much of the text to use")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many, because machines are shared")
    parser.add_argument("--grow", type=float, nargs="+", help="sizes in MB of made-up corpora")
    for hidden, kind in (("--job", str), ("--folder", str), ("--processes", int)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
