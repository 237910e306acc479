"""Ratios of co-occurrence (Pennington et al. 2014, table 1): which words tell two others apart.

In: prepared text and word ids. Out: the share of every asked word among the neighbours of each of two. The farther a
neighbour stands, the less it counts: 1 / distance, up to a window, within its document. As GloVe counts, what is no
word is left out, as if the words beside it were neighbours.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np

from firth.data.shards import Shards

_BLOCK = 1 << 16
_BLOCK_TOKENS = 1 << 20


def neighbour_counts(
    shards: Shards, word: int, *, window: int = 10, without: Collection[int] = frozenset()
) -> np.ndarray:
    """How much of each id stands around a word, for all ids; those in `without` are as if they were not there."""
    edges = np.asarray(shards.sentences[shards.documents])  # the tokens where documents begin
    cuts = np.append(np.searchsorted(edges, np.arange(0, edges[-1], _BLOCK_TOKENS)), len(edges) - 1)
    totals, kept_V = np.zeros(len(shards.counts)), np.ones(len(shards.counts), bool)
    kept_V[sorted(without)] = False
    for first, last in pairwise(np.unique(cuts)):  # whole documents, some at a time
        ids = shards.ids[edges[first] : edges[last]]
        kept = kept_V[ids]
        places = np.append(0, np.cumsum(kept))[edges[first : last + 1] - edges[first]]
        totals += _around(ids[kept], places, word, window, len(totals))
    return totals


def _around(ids: np.ndarray, edges: np.ndarray, word: int, window: int, vocab_size: int) -> np.ndarray:
    places = np.flatnonzero(ids == word)
    totals = np.zeros(vocab_size)
    steps = np.concatenate([np.arange(-window, 0), np.arange(1, window + 1)])
    for start in range(0, len(places), _BLOCK):
        some = places[start : start + _BLOCK]
        document = np.searchsorted(edges, some, side="right")
        around = some[:, None] + steps
        inside = (around >= edges[document - 1][:, None]) & (around < edges[document][:, None])
        weights = np.broadcast_to(1 / np.abs(steps), around.shape)[inside]
        totals += np.bincount(ids[around[inside]], weights, len(totals))
    return totals


def shares(
    shards: Shards, word: int, others: Sequence[int], *, window: int = 10, without: Collection[int] = frozenset()
) -> np.ndarray:
    """P(other | word) for each of the others."""
    totals = neighbour_counts(shards, word, window=window, without=without)
    return np.asarray(totals[list(others)] / max(float(totals.sum()), 1e-12))
