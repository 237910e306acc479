"""Training under torchrun on one GPU: world 1 equals the plain run, and FSDP2 at world 1 costs at most 5 %.

    python bench/ranks_gpu.py                     # one H200, about 2 minutes
    python bench/ranks_gpu.py --tiny              # a rehearsal on a CPU

In: nothing; the text is made up. Out: one JSON object a line. `equal`: the losses of 20 steps of the plain process and
of torchrun with one process, which must be the same numbers. `speed`: tokens a second of `base` with 65,536 tokens a
step, plain and with FSDP2, each in a process of its own that torchrun started; `cost` is 1 - fsdp / plain.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from firth import lineage, models, rng, tokenizers
from firth.config import override
from firth.data.loader import BatchAddress, load, places
from firth.data.shards import Shards, write_shards
from firth.lineage import Recipe
from firth.pretraining.training import build
from firth.train.launch import joined_ranks
from firth.train.loop import Progress, train
from firth.train.optim import make_optimizer
from firth.train.sharding import sharded_copy

WARM = 12
LIMIT = 0.05
"""What FSDP2 may cost."""


def recipe_of(tiny: bool, steps_tokens: int) -> Recipe:
    recipe = lineage.make("bert", "tiny" if tiny else "base")
    shape = replace(recipe.encoder["bert"], dropout=0.0, init="normal")
    recipe = replace(recipe, encoder={"bert": shape})
    return override(recipe, [f"batches.tokens={steps_tokens}", "batches.workers=0" if tiny else "batches.workers=6"])


def make_text(folder: Path, num_tokens: int) -> None:
    """Prepared text of random pieces, with sentences of 8 to 39 tokens and documents of 20 sentences."""
    tokenizer = tokenizers.load(models.find("en-small"))
    key = rng.key(1, "random text")
    num_documents = num_tokens // 400 + 10
    lengths = 8 + rng.below(key, 32, np.arange(num_documents * 20), 0)
    ids = 5 + rng.below(key, len(tokenizer.vocab) - 5, np.arange(lengths.sum()), 1)
    starts = np.ones(len(ids), bool)
    ends = np.arange(20, num_documents * 20 + 1, 20)
    with write_shards(folder, tokenizer) as writer:
        writer.append(ids, starts, lengths=lengths, ends=ends)
        writer.info = {"health": {"entropy_nats": 10.0}}


def run(recipe: Recipe, data: Shards, *, mode: str, steps: int) -> dict[str, Any]:
    """Trains some steps; their losses and the tokens a second after the warm-up."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parts = build(recipe, data, device=device)
    learner = parts.learner
    if mode == "fsdp":
        learner = sharded_copy(learner, recipe.train)
    packs = parts.text.training
    losses: list[torch.Tensor] = []
    clock: list[float] = []

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def on_step(progress: Progress, norm: torch.Tensor) -> None:
        losses.append(progress.sums["masked_lm"] / progress.counts["masked_lm"])
        progress.sums = {}
        progress.counts = {}
        if progress.step == WARM:
            wait()
            clock.append(time.perf_counter())

    train(
        learner,
        load(packs, places(packs, BatchAddress()), workers=recipe.batches.workers),
        recipe.train,
        optimizer=make_optimizer(learner, recipe.train.optim),
        progress=Progress(WARM + steps),
        on_step=on_step,
    )
    wait()
    seconds = time.perf_counter() - clock[0]
    return {
        "mode": mode,
        "losses": [float(loss) for loss in losses[:20]],
        "tokens_per_second": steps * recipe.batches.tokens / seconds,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else None,
    }


def child(arguments: argparse.Namespace) -> None:
    """One run, in this process."""
    recipe = recipe_of(arguments.tiny, arguments.tokens)
    data = Shards.open(arguments.data, verify=False)
    with joined_ranks():
        found = run(recipe, data, mode=arguments.mode, steps=arguments.steps)
    arguments.out.write_text(json.dumps(found))


def started(arguments: argparse.Namespace, folder: Path, *, mode: str, torchrun: bool) -> dict[str, Any]:
    """One run in a process of its own, started by torchrun or plainly."""
    out = folder / f"{mode}-{torchrun}.json"
    own = [__file__, "--child", "--mode", mode, "--data", str(folder / "data"), "--out", str(out)]
    own += ["--steps", str(arguments.steps), "--tokens", str(arguments.tokens)]
    if arguments.tiny:
        own.append("--tiny")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"] if torchrun else []
    subprocess.run([sys.executable, *launcher, *own], check=True)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a small model on a CPU")
    parser.add_argument("--steps", type=int, help="steps that are timed")
    parser.add_argument("--tokens", type=int, help="tokens of a step")
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--mode", default="plain")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    arguments.steps = arguments.steps or (10 if arguments.tiny else 60)
    arguments.tokens = arguments.tokens or (1024 if arguments.tiny else 65_536)
    if arguments.child:
        child(arguments)
        return
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_text(folder / "data", (WARM + arguments.steps + 4) * arguments.tokens)
        alone = started(arguments, folder, mode="plain", torchrun=False)
        launched = started(arguments, folder, mode="plain", torchrun=True)
        sharded = started(arguments, folder, mode="fsdp", torchrun=True)
    is_equal = alone["losses"] == launched["losses"]
    print(json.dumps({"part": "equal", "equal": is_equal, "losses": alone["losses"][::5]}))
    largest = max(abs(a - b) for a, b in zip(alone["losses"], sharded["losses"], strict=True))
    cost = 1 - sharded["tokens_per_second"] / alone["tokens_per_second"]
    speeds = {
        "plain": alone["tokens_per_second"],
        "torchrun": launched["tokens_per_second"],
        "fsdp": sharded["tokens_per_second"],
    }
    memory = {"plain": alone["peak_gb"], "fsdp": sharded["peak_gb"]}
    print(json.dumps({"part": "speed", **speeds, "peak_gb": memory, "cost": cost, "reached": cost <= LIMIT}))
    print(json.dumps({"part": "losses of fsdp", "largest difference": largest}))


if __name__ == "__main__":
    main()
