"""The order of an epoch: its sequences shuffled by a key and dealt into packs of a token budget."""

import numpy as np

from firth import rng
from firth.data.packing import Plan


def deal(plan: Plan, *, key: np.uint64, num_tokens: int, max_sequences: int) -> list[np.ndarray]:
    """Rows of the plan for each pack, next-fit: a pack ends where the next sequence would not fit."""
    lengths = plan.lengths_S
    order = rng.permutation(key, len(plan))
    ends = np.cumsum(lengths[order])
    starts = ends - lengths[order]
    # For every sequence a pack could begin with: where it must end, by tokens or by the number of sequences.
    token_limits = np.searchsorted(ends, starts + num_tokens, side="right")
    sequence_limits = np.arange(len(plan)) + max_sequences
    # A plain list, because the loop below reads single numbers.
    limits = np.minimum(token_limits, sequence_limits).tolist()
    packs = []
    first = 0
    while first < len(plan):
        last = limits[first]
        packs.append(order[first:last])
        first = last
    return packs
