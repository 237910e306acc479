"""Training under torchrun on one GPU: world 1 equals the plain run, and FSDP2 at world 1 costs at most 5 %.

    PYTHONPATH=. python bench/ranks_gpu.py --out rows.jsonl    # all of it in one call: one H200, about 3 minutes
    PYTHONPATH=. python bench/ranks_gpu.py --tiny              # a rehearsal on a CPU, half a minute

In: nothing; the text is made up. Out: one JSON object a line, printed and written to --out. `equal`: the losses of 20
steps of the plain process and of torchrun with one process, which must be the same numbers. `speed`: tokens a second of
`base` with 65,536 tokens a step, plain and with FSDP2, each in a process of its own, best of --rounds; `cost` is
1 - fsdp / plain. `losses`: the largest difference between the losses of the plain run and those with FSDP2.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch

from firth import lineage
from firth.config import from_dict, override
from firth.data.loader import BatchAddress, load, places
from firth.data.shards import Shards
from firth.lineage import Recipe
from firth.planning.probe import random_text
from firth.pretraining.training import build
from firth.train.launch import joined_ranks
from firth.train.loop import Progress, train
from firth.train.optim import make_optimizer
from firth.train.sharding import sharded_copy

WARM = 12
"""Steps before the clock begins."""
COMPARED = 20
"""Steps whose losses are compared."""
LIMIT = 0.05
"""What FSDP2 may cost."""
Mode = Literal["plain", "fsdp"]


@dataclass(frozen=True)
class Measured:
    """What one process found."""

    losses: tuple[float, ...]
    tokens_per_second: float
    peak_gb: float
    """0 on a CPU."""


def recipe_of(tiny: bool, tokens: int) -> Recipe:
    recipe = lineage.make("bert", "tiny" if tiny else "base")
    shape = replace(recipe.encoder["bert"], dropout=0.0, init="normal")
    recipe = replace(recipe, encoder={"bert": shape})
    return override(recipe, [f"batches.tokens={tokens}", "batches.workers=0" if tiny else "batches.workers=6"])


def measure(recipe: Recipe, data: Shards, *, mode: Mode, steps: int) -> Measured:
    """Trains some steps in this process: their losses, and the tokens a second after the warm-up."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parts = build(recipe, data, device=device)
    learner = parts.learner
    if mode == "fsdp":
        learner = sharded_copy(learner, recipe.train)
    packs = parts.text.training
    losses: list[torch.Tensor] = []
    began = 0.0

    def on_step(progress: Progress, norm: torch.Tensor) -> None:
        nonlocal began
        losses.append(progress.sums["masked_lm"] / progress.counts["masked_lm"])
        progress.sums = {}
        progress.counts = {}
        if progress.step == WARM:
            began = _now(device)

    train(
        learner,
        load(packs, places(packs, BatchAddress()), workers=recipe.batches.workers),
        recipe.train,
        optimizer=make_optimizer(learner, recipe.train.optim),
        progress=Progress(WARM + steps),
        on_step=on_step,
    )
    seconds = _now(device) - began
    return Measured(
        losses=tuple(float(loss) for loss in losses[:COMPARED]),
        tokens_per_second=steps * recipe.batches.tokens / seconds,
        peak_gb=torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else 0.0,
    )


def _now(device: str) -> float:
    """The clock once the device has done its work."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def child(arguments: argparse.Namespace) -> None:
    """One measurement, in this process."""
    recipe = recipe_of(arguments.tiny, arguments.tokens)
    data = Shards.open(arguments.data, verify=False)
    with joined_ranks():
        found = measure(recipe, data, mode=arguments.mode, steps=arguments.steps)
    arguments.out.write_text(json.dumps(asdict(found)))


def started(arguments: argparse.Namespace, folder: Path, *, mode: Mode, torchrun: bool) -> Measured:
    """One measurement in a process of its own, started by torchrun or plainly."""
    out = folder / "measured.json"
    own = [__file__, "--child", "--mode", mode, "--data", str(folder / "data"), "--out", str(out)]
    own += ["--steps", str(arguments.steps), "--tokens", str(arguments.tokens)]
    if arguments.tiny:
        own.append("--tiny")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"] if torchrun else []
    subprocess.run([sys.executable, *launcher, *own], check=True)
    return from_dict(Measured, json.loads(out.read_text()))


def main() -> None:
    arguments = _arguments()
    if arguments.child:
        child(arguments)
        return
    alone: list[Measured] = []
    launched: list[Measured] = []
    sharded: list[Measured] = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        random_text(folder / "data", (WARM + arguments.steps + 4) * arguments.tokens)
        for _ in range(arguments.rounds):
            alone.append(started(arguments, folder, mode="plain", torchrun=False))
            launched.append(started(arguments, folder, mode="plain", torchrun=True))
            sharded.append(started(arguments, folder, mode="fsdp", torchrun=True))
    rows = [_equality(alone[0], launched[0]), _speeds(alone, launched, sharded), _difference(alone[0], sharded[0])]
    lines = [json.dumps(row) for row in rows]
    print("\n".join(lines))
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


def _equality(alone: Measured, launched: Measured) -> dict[str, object]:
    return {"part": "equal", "equal": alone.losses == launched.losses, "losses": alone.losses[::5]}


def _speeds(alone: Iterable[Measured], launched: Iterable[Measured], sharded: Iterable[Measured]) -> dict[str, object]:
    plain = max(alone, key=lambda found: found.tokens_per_second)
    torchrun = max(launched, key=lambda found: found.tokens_per_second)
    fsdp = max(sharded, key=lambda found: found.tokens_per_second)
    cost = 1 - fsdp.tokens_per_second / plain.tokens_per_second
    return {
        "part": "speed",
        "plain": plain.tokens_per_second,
        "torchrun": torchrun.tokens_per_second,
        "fsdp": fsdp.tokens_per_second,
        "cost": cost,
        "reached": cost <= LIMIT,
        "plain_gb": plain.peak_gb,
        "fsdp_gb": fsdp.peak_gb,
    }


def _difference(alone: Measured, sharded: Measured) -> dict[str, object]:
    differences = [abs(a - b) for a, b in zip(alone.losses, sharded.losses, strict=True)]
    return {"part": "losses", "largest_difference": max(differences)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a small model on a CPU")
    parser.add_argument("--steps", type=int, help="steps that are timed")
    parser.add_argument("--tokens", type=int, help="tokens of a step")
    parser.add_argument("--rounds", type=int, default=2, help="the best of so many is reported")
    parser.add_argument("--out", type=Path, help="a file for the rows")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--mode", default="plain", help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.steps = arguments.steps or (10 if arguments.tiny else 60)
    arguments.tokens = arguments.tokens or (1024 if arguments.tiny else 65_536)
    return arguments


if __name__ == "__main__":
    main()
