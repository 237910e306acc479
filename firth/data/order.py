"""The order of an epoch: its sequences shuffled by a key and dealt into packs of a token budget."""

import numpy as np

from firth import chance
from firth.data.packing import Plan


def deal(plan: Plan, *, key: np.uint64, num_tokens: int, max_sequences: int) -> list[np.ndarray]:
    """Rows of the plan for each pack, next-fit."""
    lengths = plan.lengths_S
    order = chance.permutation(key, len(plan))
    ends = np.cumsum(lengths[order])
    starts = ends - lengths[order]
    # For every place a pack could begin: where it must end, by tokens or by the number of sequences.
    limit = np.searchsorted(ends, starts + num_tokens, side="right")
    limit = np.minimum(limit, np.arange(len(plan)) + max_sequences)
    jumps, packs, first = limit.tolist(), [], 0
    while first < len(plan):
        packs.append(order[first : jumps[first]])
        first = jumps[first]
    return packs
