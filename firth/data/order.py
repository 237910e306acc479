"""The order of an epoch: its sequences shuffled by a key and dealt into packs of a token budget."""

import numpy as np

from firth import rng
from firth.data.packing import Plan


def deal(
    plan: Plan, *, key: np.uint64, num_tokens: int, max_sequences: int, lengths_S: np.ndarray | None = None
) -> list[np.ndarray]:
    """Rows of the plan for each pack, next-fit: a pack ends where the next sequence would not fit.

    `lengths_S` is what each sequence takes of `num_tokens` where that is not its own length.
    """
    lengths = plan.lengths_S if lengths_S is None else lengths_S
    order = _shuffled(plan, key=key)
    ends = np.cumsum(lengths[order])
    starts = ends - lengths[order]
    # For every sequence a pack could begin with: where it must end, by tokens or by the number of sequences.
    token_limits = np.searchsorted(ends, starts + num_tokens, side="right")
    sequence_limits = np.arange(len(plan)) + max_sequences
    limits = np.minimum(token_limits, sequence_limits)
    if plan.groups_S is not None:
        limits = _at_group_borders(plan.groups_S[order], limits)
    # A plain list, because the loop below reads single numbers.
    pack_ends = limits.tolist()
    packs = []
    first = 0
    while first < len(plan):
        last = pack_ends[first]
        packs.append(order[first:last])
        first = last
    return packs


def _shuffled(plan: Plan, *, key: np.uint64) -> np.ndarray:
    """All rows of a plan in random order; those of a group stay next to each other."""
    if plan.groups_S is None:
        return rng.permutation(key, len(plan))
    num_groups = int(plan.groups_S[-1]) + 1
    # The place of each group in the new order.
    places_G = np.argsort(rng.permutation(key, num_groups))
    return np.argsort(places_G[plan.groups_S], kind="stable")


def _at_group_borders(groups: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """The ends of packs, moved back to where a group begins; a group that fills more than a pack is split."""
    is_first = np.concatenate([[True], groups[1:] != groups[:-1], [True]])
    # For every place the last border that is not behind it.
    borders = np.maximum.accumulate(np.where(is_first, np.arange(len(is_first)), 0))
    moved = borders[limits]
    return np.where(moved > np.arange(len(groups)), moved, limits)
