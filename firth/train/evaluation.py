"""Held-out evaluation: a learner and packs in, means of losses and accuracies out.

Several ranks deal the packs among themselves and add up their sums, so each pack is read exactly once.
"""

import math
import time
from collections.abc import Mapping
from typing import SupportsFloat

import torch
from torch import Tensor

from firth.data.loader import BatchAddress, Packs, load
from firth.tensors import Loss
from firth.train.limit import EvaluationExtent
from firth.train.loop import Learner
from firth.train.parallel import Precision, current_world, in_precision, reseed


@torch.no_grad()
def evaluate(learner: Learner, packs: Packs, *, precision: Precision, extent: EvaluationExtent) -> dict[str, float]:
    """Losses and accuracies on held-out packs, as far as `extent` says."""
    world = current_world()
    device = next(learner.parameters()).device
    was_training = learner.training
    learner.eval()
    forward = in_precision(learner, precision)
    totals = _Totals()
    num_packs = packs.num_packs(0)
    # Longer sequences fall into another number of packs, which may be fewer than the extent has.
    num_read = min(extent.packs or num_packs, num_packs)
    began = time.perf_counter()
    own_addresses = [BatchAddress(0, index) for index in range(world.rank, num_read, world.size)]
    batches = load(packs, own_addresses, workers=0)
    for first in range(0, num_read, world.size):
        # One pack for each rank; in the last round there may be fewer packs than ranks.
        if first + world.rank < num_read:
            place, batch = next(batches)
            reseed("evaluation", place.index)  # a generator's samples are the same each time
            totals.add(forward(batch.to(device)), learner.counts(batch))
        num_done = first + world.size
        if num_done < num_read and _takes_too_long(began, extent):
            num_read = num_done
            extent.packs = num_read
            break
    extent.share = num_read / num_packs
    learner.train(was_training)
    own_sums = {name: float(total) for name, total in totals.sums.items()}
    return means(world.total(own_sums), world.total(totals.counts))


class _Totals:
    """Losses and tallies of all packs that this rank has read, on the device, and their denominators."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def add(self, loss: Loss, counts: Mapping[str, int]) -> None:
        """Adds those of a pack; nothing waits for the device."""
        for name, total in {**loss.sums, **loss.tallies}.items():
            exact = total.double()
            if name in self.sums:
                exact = self.sums[name] + exact
            self.sums[name] = exact
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count


def _takes_too_long(began: float, extent: EvaluationExtent) -> bool:
    """Whether an evaluation has used up its time; rank 0's clock decides."""
    if math.isinf(extent.seconds):
        return False
    return current_world().from_main(time.perf_counter() - began > extent.seconds)


def means(sums: Mapping[str, SupportsFloat], counts: Mapping[str, int]) -> dict[str, float]:
    """Losses, accuracies and shares from their sums.

    A loss is divided by the count of its name, the tally `<count>_correct` by that count, and the tally `x` by `x_of`.
    """
    values: dict[str, float] = {}
    # Sorted, because sums that come from a saved state are.
    for name, total in sorted(sums.items()):
        if name.endswith("_of"):
            continue
        figure = name.replace("_correct", "_accuracy")
        values[figure] = float(total) / max(1, _denominator(name, sums, counts))
    return values


def _denominator(name: str, sums: Mapping[str, SupportsFloat], counts: Mapping[str, int]) -> float:
    if f"{name}_of" in sums:
        return float(sums[f"{name}_of"])
    return counts[name.removesuffix("_correct")]
