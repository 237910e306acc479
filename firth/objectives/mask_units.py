"""What is masked together: tokens, words, runs of words, or names and phrases of a list.

In: a pack and which of its tokens may be chosen. Out: for each of these, whether a unit begins there. A unit never
crosses a special token, and all units but single tokens consist of whole words (in Chinese, those of the segmenter).
"""

from typing import Literal

import numpy as np

from firth import rng
from firth.data.packing import Pack
from firth.objectives.entities import Names
from firth.objectives.word_spans import PackText

Unit = Literal["token", "word", "span", "ngram", "entity"]
SPAN = 0.8 ** np.arange(10)
"""Weights of spans of 1 to 10 words: geometric with p = 0.2 (Joshi et al. 2019, section 3.1)."""
NGRAM = 1 / np.arange(1, 4)
"""Weights of runs of 1 to 3 words, in proportion to 1/n (Lan et al. 2019, section 4.1)."""


def unit_starts(unit: Unit, pack: Pack, tokens: np.ndarray, *, key: np.uint64, entities: Names) -> np.ndarray:
    """For each of these tokens of a pack: whether a unit begins there."""
    if unit == "token":
        return np.ones(len(tokens), bool)
    # A piece of text may begin in the middle of a word; after a special token it still begins a unit.
    after_special = np.diff(tokens, prepend=-2) > 1
    words = np.asarray(pack.word_starts_N[tokens] | after_special)
    if unit == "word":
        return words
    if unit == "entity":
        return join_names(entities, pack.ids_N[tokens], words, after_special)
    weights = SPAN if unit == "span" else NGRAM
    first = np.flatnonzero(words)
    sizes = _run_sizes(pack, tokens[first], weights, key=key)
    runs = _consecutive_runs(sizes, after_special[first])
    starts = np.zeros(len(tokens), bool)
    starts[first[runs]] = True
    return starts


def _run_sizes(pack: Pack, tokens: np.ndarray, weights: np.ndarray, *, key: np.uint64) -> np.ndarray:
    """For each of these tokens a random number of words, drawn by these weights of 1, 2, ... words."""
    rows = pack.rows_B[pack.sequence_N[tokens]]
    positions = pack.positions_N[tokens]
    cumulative = np.cumsum(weights)
    draws = rng.uniform(key, rows, positions, 4) * cumulative[-1]
    return np.asarray(1 + np.searchsorted(cumulative, draws, side="right"))


def _consecutive_runs(sizes: np.ndarray, borders: np.ndarray) -> list[int]:
    """Where consecutive runs of words begin.

    `sizes` is the size of a run that would begin at each word. No run crosses a word marked in `borders`.
    """
    limits = np.append(np.flatnonzero(borders), len(borders))
    place = np.arange(len(sizes))
    next_limit = limits[np.searchsorted(limits, place, side="right")]
    jumps = np.minimum(place + sizes, next_limit).tolist()
    visited = []
    word = 0
    while word < len(jumps):
        visited.append(word)
        word = jumps[word]
    return visited


def join_names(names: Names, ids: np.ndarray, words: np.ndarray, after_special: np.ndarray) -> np.ndarray:
    """The starts of words without those inside a name; of overlapping names the longest counts."""
    starts = words.copy()
    if not len(ids):
        return starts
    # What lies between special tokens is a sequence of its own, so that no name crosses one.
    sequence_T = np.cumsum(after_special)
    sequence_T -= sequence_T[0]
    text = PackText(ids, sequence_T, words, rows_B=np.arange(sequence_T[-1] + 1))
    found = names.find(text)
    for first, end in zip(found.first_J.tolist(), found.ends_J.tolist(), strict=True):
        starts[first + 1 : end] = False
    return starts
