"""`make bench`: every CPU bench at a size that fits, one after the other, as one table; progress goes to stderr.

    python -m bench [encode serve prepare ...]

Each part runs in a process of its own. A part whose data or peer is not there says so in its row. The benches
themselves (`python -m bench.encode_cpu --help` and so on) measure more and take larger sizes.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from importlib import import_module

import torch

from bench.table import Row, say, show
from firth.errors import FirthError

PARTS = ("encode", "finetune", "pretrain", "prepare", "ray", "loader", "store", "serve", "vectors", "chain")
PATIENCE = 180
"""Seconds a part may take."""


def main(names: list[str]) -> None:
    unknown = sorted(set(names) - set(PARTS))
    if unknown:
        sys.exit(f"There is no bench named '{unknown[0]}' (known: {', '.join(PARTS)}).")
    began, rows = time.perf_counter(), []
    for name in names or PARTS:
        say(f"{name} ...")
        start = time.perf_counter()
        rows += measure(name)
        say(f"{name}: {time.perf_counter() - start:.0f} s")
    print(f"{os.cpu_count()} cores, torch {torch.__version__}, load {os.getloadavg()[0]:.1f} at the end\n")
    show(rows)
    say(f"\n{time.perf_counter() - began:.0f} s in all")


def measure(name: str) -> list[Row]:
    command = [sys.executable, "-m", "bench", "--part", name]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
        return [Row(**row) for row in json.loads(done.stdout.splitlines()[-1])]
    except subprocess.TimeoutExpired:
        return [Row(name, note=f"not measured: took longer than {PATIENCE} s")]
    except (subprocess.CalledProcessError, ValueError, IndexError):
        return [Row(name, note="not measured: stopped, see above")]


def part(name: str) -> list[Row]:
    try:
        rows: list[Row] = import_module(f"bench.{name}_cpu").rows()
    except (ImportError, FileNotFoundError, FirthError) as error:
        return [Row(name, note=f"not measured: {error}")]
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        print(json.dumps([asdict(row) for row in part(sys.argv[2])]))
    else:
        main(sys.argv[1:])
