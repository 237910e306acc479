"""Ratios of co-occurrence (Pennington et al. 2014, table 1): which words tell two others apart.

In: prepared text and word ids. Out: the share of every asked word among the neighbours of each of two. The farther a
neighbour stands, the less it counts: 1 / distance, up to a window, within its document.
"""

from collections.abc import Sequence

import numpy as np

from firth.data.shards import Shards

_BLOCK = 1 << 16


def neighbour_counts(shards: Shards, word: int, *, window: int = 10) -> np.ndarray:
    """How much of each id stands around a word, for all ids."""
    edges = shards.sentences[shards.documents]  # the tokens where documents begin
    places = np.flatnonzero(shards.ids == word)
    totals = np.zeros(len(shards.counts))
    steps = np.concatenate([np.arange(-window, 0), np.arange(1, window + 1)])
    for start in range(0, len(places), _BLOCK):
        some = places[start : start + _BLOCK]
        document = np.searchsorted(edges, some, side="right")
        around = some[:, None] + steps
        inside = (around >= edges[document - 1][:, None]) & (around < edges[document][:, None])
        weights = np.broadcast_to(1 / np.abs(steps), around.shape)[inside]
        totals += np.bincount(shards.ids[around[inside]], weights, len(totals))
    return totals


def shares(shards: Shards, word: int, others: Sequence[int], *, window: int = 10) -> np.ndarray:
    """P(other | word) for each of the others."""
    totals = neighbour_counts(shards, word, window=window)
    return np.asarray(totals[list(others)] / max(float(totals.sum()), 1e-12))
