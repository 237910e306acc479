"""The order of an epoch: its sequences shuffled by a key and dealt into packs of a token budget."""

import numpy as np

from firth import rng
from firth.data.packing import Plan


def deal(
    plan: Plan,
    *,
    key: np.uint64,
    num_tokens: int,
    max_sequences: int,
    lengths_S: np.ndarray | None = None,
    window: int = 0,
) -> list[np.ndarray]:
    """Rows of the plan for each pack, next-fit: a pack ends where the next sequence would not fit.

    `lengths_S` is what each sequence takes of `num_tokens` where that is not its own length. With a `window`,
    sequences are only shuffled with those of the same stretch of so many tokens, and the stretches among themselves.
    """
    lengths = plan.lengths_S if lengths_S is None else lengths_S
    order = _shuffled(plan, key=key, window=window)
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


def _shuffled(plan: Plan, *, key: np.uint64, window: int) -> np.ndarray:
    """All rows of a plan in random order; those of a group stay next to each other."""
    starts_S = plan.pieces_SP2[:, 0, 0]
    if plan.groups_S is None:
        return _shuffled_units(starts_S, key=key, window=window)
    starts_G = np.zeros(int(plan.groups_S[-1]) + 1, np.int64)
    # From the last to the first, so that the first sequence of a group decides.
    starts_G[plan.groups_S[::-1]] = starts_S[::-1]
    order_G = _shuffled_units(starts_G, key=key, window=window)
    # The place of each group in the new order.
    places_G = np.argsort(order_G)
    return np.argsort(places_G[plan.groups_S], kind="stable")


def _shuffled_units(starts: np.ndarray, *, key: np.uint64, window: int) -> np.ndarray:
    """A random order of sequences or groups, which begin at these tokens."""
    order = rng.permutation(key, len(starts))
    if not window:
        return order
    windows = starts[order] // window
    num_windows = int(starts.max(initial=0)) // window + 1
    window_key = rng.key(int(key), "windows")
    places_W = np.argsort(rng.permutation(window_key, num_windows))
    # Stable, so that inside a window the random order stays.
    return order[np.argsort(places_W[windows], kind="stable")]


def _at_group_borders(groups: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """The ends of packs, moved back to where a group begins; a group that fills more than a pack is split."""
    is_another = groups[1:] != groups[:-1]
    is_first = np.concatenate([[True], is_another, [True]])
    places = np.arange(len(is_first))
    # For every place the last border that is not behind it.
    borders = np.maximum.accumulate(np.where(is_first, places, 0))
    moved = borders[limits]
    return np.where(moved > np.arange(len(groups)), moved, limits)
