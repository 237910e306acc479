"""Every compression method on fine-tuned models, three seeds, many runs side by side on one GPU: sizes and scores.

    python -m bench.compress_gpu carry sst-2 mrpc --model MINILM --out carry/compress-en
    FIRTH_DATA=carry/compress-en/data python -m bench.compress_gpu run sst-2 mrpc --label all-MiniLM-L6-v2 \
        --model carry/compress-en/model --work /dev/shm/compress --out OUT --minutes 5
    python -m bench.compress_cpu table OUT

`carry` writes what a machine with small uploads needs: the model with 8 bits a weight, and the data sets. `run` writes
OUT/rows.jsonl, a line for each run with its answers to the test rows; OUT/shapes.tar.xz, the small models without their
matrices, whose speed is measured on a CPU afterwards; and OUT/original-SET.NN, the originals of the first seed in 8
bits. Plans and their settings are in `compression_plans.py`. First come the originals, then all plans of seed 1, of
seed 2 and so on: a run that is stopped after --minutes has whole seeds. A row that is in the file is not made again.
Rehearse it with --device cpu --precision bf16 --limit 64.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.compression_plans import ORIGINAL, PLANS, SETS, chosen_plans, write_rows
from bench.table import say
from bench.texts import data_folder

ROWS = "rows.jsonl"
SHAPES = "shapes"
PART_BYTES = 15_000_000
BITS = 8


@dataclass(frozen=True)
class Job:
    """One run."""

    set: str
    plan: str
    seed: int

    @property
    def folder(self) -> str:
        """Its folder below WORK; also the name of its stripped model."""
        return f"{self.set}/{slug(self.plan)}/{self.seed}"


def slug(plan: str) -> str:
    """The name of a plan in letters that all file systems know."""
    return "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in plan)


# What runs, in which order


def all_jobs(arguments: argparse.Namespace) -> list[Job]:
    """Originals first, then seed after seed; within a seed, sets with many steps first."""
    seeds = range(1, arguments.seeds + 1)
    jobs = [Job(name, ORIGINAL, seed) for seed in seeds for name in arguments.sets]
    for seed in seeds:
        for plan in sorted(chosen_plans(arguments.plans), key=lambda plan: not plan.trains):
            jobs += [Job(name, plan.name, seed) for name in arguments.sets]
    return jobs


class Queue:
    """Jobs that wait for their originals. Threads take from it."""

    def __init__(self, jobs: Sequence[Job], done: Sequence[Job], *, deadline: float, seeds: int) -> None:
        self.waiting = [job for job in jobs if job not in done]
        self.finished = set(done)
        self.deadline = deadline
        self.seeds = seeds
        self.changed = threading.Condition()

    def take(self) -> Job | None:
        """The next job that can begin; None when there is none left or no time."""
        with self.changed:
            while self.waiting and time.monotonic() < self.deadline:
                for job in self.waiting:
                    if self._can_begin(job):
                        self.waiting.remove(job)
                        return job
                self.changed.wait(timeout=1.0)
        return None

    def finish(self, job: Job) -> None:
        with self.changed:
            self.finished.add(job)
            self.changed.notify_all()

    def _can_begin(self, job: Job) -> bool:
        if job.plan == ORIGINAL:
            return True
        plan = PLANS[job.plan]
        if plan.start == "pretrained":
            return True
        seeds = range(1, self.seeds + 1) if plan.needs_all_originals else [job.seed]
        return all(Job(job.set, ORIGINAL, seed) in self.finished for seed in seeds)


# Worker processes


class Worker:
    """A process that makes one job after the other, so that torch and the GPU are started once."""

    def __init__(self, arguments: argparse.Namespace, number: int) -> None:
        self.arguments = arguments
        self.log = arguments.work / f"worker-{number}.log"
        self.is_stopped = False
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bench.compress_work", *self.arguments.sets, "--work", self.arguments.work]
        command += ["--model", self.arguments.model, "--device", self.arguments.device]
        command += ["--seeds", self.arguments.seeds, "--precision", self.arguments.precision]
        command += ["--epochs", self.arguments.epochs]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        with self.log.open("a") as log:
            return subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )

    def make(self, job: Job) -> dict[str, Any]:
        """The row of a job; a process that broke is started anew."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(vars(job)) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            row: dict[str, Any] = json.loads(line)
            if "failed" not in row:
                return row
        else:
            row = {"failed": self.log.read_text("utf-8", errors="replace")[-600:]}
        # A failure may have left the GPU of this process in any state.
        self.process.kill()
        self.process.wait()
        if not self.is_stopped:
            self.process = self._start()
        return row

    def stop(self) -> None:
        self.is_stopped = True
        self.process.kill()
        self.process.wait()


class Rows:
    """The file of rows, written from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()

    def read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text("utf-8").splitlines()]

    def add(self, row: dict[str, Any]) -> None:
        with self.lock, self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        shown = {key: value for key, value in row.items() if key not in ("answers", "gold")}
        print(json.dumps(shown, ensure_ascii=False), flush=True)


def work_off(queue: Queue, worker: Worker, rows: Rows, label: str) -> None:
    """Makes jobs until there are none."""
    while (job := queue.take()) is not None:
        began = time.monotonic()
        made = worker.make(job)
        if worker.is_stopped and "failed" in made:
            return
        row = {"model": label, **vars(job), **made, "seconds": round(time.monotonic() - began, 1)}
        rows.add(row)
        # Also where an original failed: what is made of it then fails with a reason.
        queue.finish(job)


def run(arguments: argparse.Namespace) -> None:
    began = time.monotonic()
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.work.mkdir(parents=True, exist_ok=True)
    for name in arguments.sets:
        write_rows(name, arguments.work / name, limit=arguments.limit)
    rows = Rows(arguments.out / ROWS)
    # Only where the folders of earlier runs are still there.
    done = [Job(row["set"], row["plan"], row["seed"]) for row in rows.read() if "failed" not in row]
    done = [job for job in done if job.plan != ORIGINAL or (arguments.work / job.folder / "model").exists()]
    deadline = began + 60 * arguments.minutes
    queue = Queue(all_jobs(arguments), done, deadline=deadline, seeds=arguments.seeds)
    workers = [Worker(arguments, number) for number in range(arguments.at_once)]
    threads = []
    for worker in workers:
        threads.append(threading.Thread(target=work_off, args=(queue, worker, rows, arguments.label), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for worker in workers:
        worker.stop()
    pack(arguments)
    left = len(queue.waiting)
    say(f"{len(rows.read())} rows in {time.monotonic() - began:.0f} s; {left} runs were not begun.")


# What goes there and comes back


def carry(arguments: argparse.Namespace) -> None:
    """The model with 8 bits a weight and the archives of the sets, as small as they can be."""
    from firth import checkpoint as checkpoints

    checkpoints.save(arguments.out / "model", checkpoints.load(arguments.model), bits=BITS)
    for archive in {SETS[name].archive for name in arguments.sets}:
        target = arguments.out / "data" / archive
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(data_folder() / archive, target)
    size = sum(path.stat().st_size for path in arguments.out.rglob("*") if path.is_file())
    print(f"{arguments.out}: {size / 2**20:.1f} MiB")


def pack(arguments: argparse.Namespace) -> None:
    """Stripped models in one archive, and the originals of the first seed in files of at most 15 MB."""
    shapes = arguments.work / SHAPES
    if shapes.exists():
        with tarfile.open(arguments.out / f"{SHAPES}.tar.xz", "w:xz", preset=3) as archive:
            for path in similar_files_together(shapes):
                archive.add(path, arcname=str(path.relative_to(arguments.work)))
    for name in arguments.sets:
        folder = arguments.work / "packed" / name
        if not folder.exists():
            continue
        whole = arguments.work / f"{name}.tar"
        with tarfile.open(whole, "w") as archive:
            archive.add(folder, arcname=f"original/{name}")
        data = whole.read_bytes()
        for number, start in enumerate(range(0, len(data), PART_BYTES)):
            (arguments.out / f"original-{name}.{number:02d}").write_bytes(data[start : start + PART_BYTES])


def similar_files_together(folder: Path) -> Iterator[Path]:
    """All files by their name, so that the same tokenizer of many models takes little room in an archive."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    yield from sorted(files, key=lambda path: (path.name, path))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("carry", "run"))
    parser.add_argument("sets", nargs="+", choices=SETS)
    parser.add_argument("--model", type=Path, required=True, help="the model that is fine-tuned")
    parser.add_argument("--label", default="", help="what the table calls the model; its folder's name unless given")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("compress-work"), help="for runs; fast, with 20 GB free")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plans", nargs="*", default=[], help="only plans with such names or beginnings")
    parser.add_argument("--minutes", type=float, default=8.0, help="stop after so long")
    parser.add_argument("--at-once", type=int, default=15)
    parser.add_argument("--limit", type=int, default=0, help="only so many rows of each file, for a rehearsal")
    parser.add_argument(
        "--epochs", type=float, default=0.0, help="of methods with training; 0: as many as the set has in the plans"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="auto", help="of training; bf16 on a CPU rehearses what a GPU does")
    arguments = parser.parse_args()
    arguments.label = arguments.label or arguments.model.name
    return arguments


def main() -> None:
    arguments = _arguments()
    if arguments.stage == "carry":
        carry(arguments)
    else:
        run(arguments)


if __name__ == "__main__":
    main()
