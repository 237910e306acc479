"""A short measurement on the user's own machine: a recipe in, its device with the speed that was found out.

Some steps of the real loop, on text of random pieces. The measured speed is compared with the cost model's for the
same steps, so that it can be scaled to other sizes.
"""

import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from firth import models, rng, tokenizers
from firth.data.shards import Shards, write_shards
from firth.lineage import Recipe
from firth.planning.cost import step_seconds, work_of
from firth.planning.machines import Device, cpu, find, from_cuda_name

CPU_TOKENS = 2048
"""Of a step on a CPU."""
TOKENIZER = "en-small"
"""Whose vocabulary the text has."""
NUM_SPECIALS = 5
"""The first tokens of that vocabulary, which do not occur in a text."""
SHORTEST_SENTENCE = 8
LONGEST_SENTENCE = 39
DOCUMENT_SENTENCES = 20
DOCUMENT_TOKENS = 400
"""Fewer than those of a document on average, so that there are enough tokens."""
SPARE_DOCUMENTS = 10
"""More documents than a short text needs, of which some are held out."""
NUM_STEPS = 8
"""Steps of one pass over the text."""
WARM_STEPS = 3
LEAST_STEPS = 3


def probe(recipe: Recipe, *, seconds: float = 60.0) -> Device:
    """This machine's GPU, or its CPU, with the speed of some steps."""
    import torch

    from firth.train.parallel import chosen_device

    device = chosen_device(None)
    if device.type == "cuda":
        known = from_cuda_name(torch.cuda.get_device_name(device))
        # The speed of an unknown GPU is measured as a multiple of an H200's.
        table_entry = find(known or "H200")
        memory = float(torch.cuda.get_device_properties(device).total_memory)
        named = replace(table_entry, name=known or torch.cuda.get_device_name(device), memory=memory)
    else:
        named = cpu(torch.get_num_threads(), precision=recipe.train.precision)
        tokens = min(recipe.batches.tokens, CPU_TOKENS)
        recipe = replace(recipe, batches=replace(recipe.batches, tokens=tokens))
    with TemporaryDirectory() as folder:
        recipe, measured = _seconds_of_step(recipe, Path(folder), str(device), seconds)
    predicted = step_seconds(work_of(recipe), named)
    return replace(named, speed=predicted / measured, source="probe")


def _seconds_of_step(recipe: Recipe, folder: Path, device: str, limit: float) -> tuple[Recipe, float]:
    """The recipe as it was measured, and the seconds of one of its steps."""
    from firth.data.loader import BatchAddress, load, places
    from firth.pretraining.planning import num_sentinels, with_vocab_size
    from firth.pretraining.training import build
    from firth.train.loop import Progress, train
    from firth.train.optim import make_optimizer

    batches = replace(recipe.batches, last_length=0, workers=0)
    recipe = replace(recipe, batches=batches, train=replace(recipe.train, accumulate=1, minutes=0.0))
    shards = random_text(folder / "data", NUM_STEPS * batches.tokens)
    recipe = with_vocab_size(recipe, None, shards.info["vocab_size"] + num_sentinels(recipe))
    parts = build(recipe, shards, device=device)
    packs = parts.text.training
    clock = _Clock(limit)
    train(
        parts.learner,
        load(packs, places(packs, BatchAddress()), workers=0),
        recipe.train,
        optimizer=make_optimizer(parts.learner, recipe.train.optim),
        progress=Progress(1_000_000),
        # Reading a number of the step waits until the device has finished it.
        on_step=lambda progress, norm: clock.tick(after=float(norm)),
        until=clock.last_step,
    )
    return recipe, clock.seconds_of_step


def random_text(folder: Path, num_tokens: int) -> Shards:
    """Prepared text of random pieces, in sentences of random lengths and documents of one size."""
    tokenizer = tokenizers.load(models.find(TOKENIZER))
    key = rng.key(1, "random text")
    num_documents = num_tokens // DOCUMENT_TOKENS + SPARE_DOCUMENTS
    num_sentences = DOCUMENT_SENTENCES * num_documents
    num_lengths = LONGEST_SENTENCE - SHORTEST_SENTENCE + 1
    lengths = SHORTEST_SENTENCE + rng.below(key, num_lengths, np.arange(num_sentences), 0)
    num_pieces = len(tokenizer.vocab) - NUM_SPECIALS
    ids = NUM_SPECIALS + rng.below(key, num_pieces, np.arange(lengths.sum()), 1)
    starts = np.ones(len(ids), bool)
    ends = np.arange(DOCUMENT_SENTENCES, num_sentences + 1, DOCUMENT_SENTENCES)
    with write_shards(folder, tokenizer) as writer:
        writer.append(ids, starts, lengths=lengths, ends=ends)
    return Shards.open(folder)


class _Clock:
    """Times steps after the first ones, until the time is up."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.began = time.perf_counter()
        self.times: list[float] = []

    def tick(self, *, after: float) -> None:
        """Called after each step, with a number of it."""
        del after
        self.times.append(time.perf_counter())

    def last_step(self) -> int:
        """Before which step to stop, as far as is known now."""
        done = len(self.times)
        elapsed = time.perf_counter() - self.began
        is_over = elapsed > self.limit and done >= WARM_STEPS + LEAST_STEPS
        return done if is_over else done + 1

    @property
    def seconds_of_step(self) -> float:
        timed = self.times[WARM_STEPS - 1 :]
        # The median: other programs disturb some steps.
        gaps = sorted(later - earlier for earlier, later in pairwise(timed))
        return gaps[len(gaps) // 2]
