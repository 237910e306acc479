"""Ratios of co-occurrence (Pennington et al. 2014, table 1): which words tell two others apart.

In: prepared text and word ids. Out: the share of given words among the neighbours of a word. A neighbour counts 1 /
distance, up to a window, within its document. As in GloVe, ids that are no words are left out first, so that the words
around them are neighbours.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np

from firth.data.shards import Shards
from firth.ragged import bounds_of

_BLOCK = 1 << 16
"""Occurrences of the word whose neighbours are counted at once."""
_BLOCK_TOKENS = 1 << 20
"""About the number of tokens that are read at once."""


def neighbour_counts(
    shards: Shards,
    word: int,
    *,
    window: int = 10,
    without: Collection[int] = frozenset(),
) -> np.ndarray:
    """The weighted count of every id around a word; ids in `without` are removed from the text first."""
    # The tokens where documents begin, and the end.
    edges = np.asarray(shards.sentences[shards.documents])
    wanted_starts = np.arange(0, edges[-1], _BLOCK_TOKENS)
    block_starts = np.searchsorted(edges, wanted_starts)
    cuts = np.append(block_starts, len(edges) - 1)
    vocab_size = len(shards.counts)
    totals_V = np.zeros(vocab_size)
    is_kept_V = np.ones(vocab_size, bool)
    is_kept_V[sorted(without)] = False
    # Whole documents, some at a time.
    for first, last in pairwise(np.unique(cuts)):
        ids = shards.ids[edges[first] : edges[last]]
        is_kept = is_kept_V[ids]
        num_kept_before = bounds_of(is_kept)
        edges_in_block = edges[first : last + 1] - edges[first]
        kept_edges = num_kept_before[edges_in_block]
        totals_V += _counts_around(ids[is_kept], kept_edges, word, window=window, vocab_size=vocab_size)
    return totals_V


def _counts_around(ids: np.ndarray, edges: np.ndarray, word: int, *, window: int, vocab_size: int) -> np.ndarray:
    """The weighted counts in some documents: `ids` end to end, `edges` where they begin, and the end."""
    places = np.flatnonzero(ids == word)
    totals_V = np.zeros(vocab_size)
    steps_before = np.arange(-window, 0)
    steps_after = np.arange(1, window + 1)
    steps = np.concatenate([steps_before, steps_after])
    step_weights = 1 / np.abs(steps)
    for start in range(0, len(places), _BLOCK):
        some_places = places[start : start + _BLOCK]
        document = np.searchsorted(edges, some_places, side="right")
        document_start = edges[document - 1][:, None]
        document_end = edges[document][:, None]
        # Occurrences x steps: the places of all neighbours.
        around = some_places[:, None] + steps
        is_inside = (around >= document_start) & (around < document_end)
        weights = np.broadcast_to(step_weights, around.shape)[is_inside]
        neighbours = ids[around[is_inside]]
        totals_V += np.bincount(neighbours, weights, vocab_size)
    return totals_V


def shares(
    shards: Shards,
    word: int,
    others: Sequence[int],
    *,
    window: int = 10,
    without: Collection[int] = frozenset(),
) -> np.ndarray:
    """P(other | word) for each of the others."""
    totals_V = neighbour_counts(shards, word, window=window, without=without)
    # A word without neighbours has shares of 0.
    total = max(float(totals_V.sum()), 1e-12)
    return np.asarray(totals_V[list(others)] / total)
