"""A short measurement on the user's own machine: a recipe in, its device with the speed that was found out.

Some steps of the real loop, on text that comes with firth. The measured speed is compared with the cost model's for the
same steps, so that it can be scaled to other sizes.
"""

import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from firth import samples
from firth.data import prepare as preparation
from firth.data.shards import Shards
from firth.data.vocabulary import train_tokenizer
from firth.lineage import Recipe
from firth.planning.cost import step_seconds, work_of
from firth.planning.machines import Device, cpu, find, from_cuda_name

CPU_TOKENS = 2048
"""Of a step on a CPU."""
VOCAB_SIZE = 4000
WARM_STEPS = 3
LEAST_STEPS = 3


def probe(recipe: Recipe, *, seconds: float = 60.0) -> Device:
    """This machine's GPU, or its CPU, with the speed of some steps."""
    import torch

    from firth.train.parallel import chosen_device

    device = chosen_device(None)
    if device.type == "cuda":
        known = from_cuda_name(torch.cuda.get_device_name(device))
        table_entry = find(known or "H200")
        memory = float(torch.cuda.get_device_properties(device).total_memory)
        named = replace(table_entry, name=known or torch.cuda.get_device_name(device), memory=memory)
    else:
        named = cpu(torch.get_num_threads())
        tokens = min(recipe.batches.tokens, CPU_TOKENS)
        recipe = replace(recipe, batches=replace(recipe.batches, tokens=tokens))
    with TemporaryDirectory() as folder:
        recipe, measured = _seconds_of_step(recipe, Path(folder), str(device), seconds)
    predicted = step_seconds(work_of(recipe), named)
    return replace(named, speed=predicted / measured, source="probe")


def _seconds_of_step(recipe: Recipe, folder: Path, device: str, limit: float) -> tuple[Recipe, float]:
    """The recipe as it was measured, and the seconds of one of its steps."""
    from firth.data.loader import BatchAddress, load, places
    from firth.pretraining.planning import with_vocab_size
    from firth.pretraining.training import build
    from firth.train.loop import Progress, train
    from firth.train.optim import make_optimizer

    paths: list[str | Path] = [samples.prose("en"), samples.prose("zh")]
    tokenizer = train_tokenizer("wordpiece", paths, vocab_size=VOCAB_SIZE)
    preparation.prepare(paths, folder / "data", tokenizer=tokenizer, processes=0)
    shards = Shards.open(folder / "data")
    # The text is short, so a step has at most half of it.
    tokens = min(recipe.batches.tokens, max(recipe.batches.max_length, shards.num_tokens // 2))
    batches = replace(recipe.batches, tokens=tokens, last_length=0, workers=0)
    recipe = replace(recipe, batches=batches, train=replace(recipe.train, accumulate=1, minutes=0.0))
    recipe = with_vocab_size(recipe, None, shards.info["vocab_size"])
    parts = build(recipe, shards, device=device)
    packs = parts.text.training
    clock = _Clock(limit)
    train(
        parts.learner,
        load(packs, places(packs, BatchAddress()), workers=0),
        recipe.train,
        optimizer=make_optimizer(parts.learner, recipe.train.optim),
        progress=Progress(1_000_000),
        on_step=lambda progress, norm: clock.tick(float(norm)),
        until=clock.last_step,
    )
    return recipe, clock.seconds_of_step


class _Clock:
    """Times steps after the first ones, until the time is up."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.began = time.perf_counter()
        self.times: list[float] = []

    def tick(self, norm: float) -> None:
        """Called after each step, with a number of it, so that the device has finished."""
        self.times.append(time.perf_counter())

    def last_step(self) -> int:
        """Before which step to stop, as far as is known now."""
        done = len(self.times)
        is_over = time.perf_counter() - self.began > self.limit and done >= WARM_STEPS + LEAST_STEPS
        return done if is_over else done + 1

    @property
    def seconds_of_step(self) -> float:
        timed = self.times[WARM_STEPS - 1 :]
        # The median: other programs disturb some steps.
        gaps = sorted(later - earlier for earlier, later in pairwise(timed))
        return gaps[len(gaps) // 2]
