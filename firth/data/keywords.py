"""TextRank (Mihalcea and Tarau 2004): the words of a text that occur near many of its other words.

In: lines of text. Out: words with scores that add up to 1. Words within a window of each other are linked. The score of
a word is its PageRank: the share of time that a random surfer spends on it who follows links and sometimes jumps to any
word.
"""

from collections.abc import Iterable

import numpy as np

from firth.data.spoken import words_of
from firth.data.stop_words import STOP_WORDS
from firth.errors import BadConfig, BadInput

DAMPING = 0.85
"""The probability that the surfer follows a link."""
_TOLERANCE = 1e-10
"""The iteration stops when the scores change by less than this in total."""


def keywords(lines: Iterable[str], *, top: int = 10, window: int = 4) -> list[tuple[str, float]]:
    """The words with the highest scores; equal ones in the order of the text. Links do not cross lines."""
    if window < 2 or top < 1:
        raise BadConfig("Keywords need a window of at least 2 words and a top of at least 1.")
    index: dict[str, int] = {}
    links: dict[tuple[int, int], int] = {}
    for line in lines:
        content_words = [word for word in words_of(line) if _is_content(word)]
        ids = [index.setdefault(word, len(index)) for word in content_words]
        _add_links(links, ids, window=window)
    if not index:
        raise BadInput("The text has no words but function words and numbers.")
    pairs_E2 = np.array([*links], np.int64).reshape(-1, 2)
    weights_E = np.array([*links.values()], np.float64)
    scores = rank(len(index), pairs_E2, weights_E)
    words = list(index)
    best = np.argsort(-scores, kind="stable")[:top]
    return [(words[i], float(scores[i])) for i in best]


def _add_links(links: dict[tuple[int, int], int], ids: list[int], *, window: int) -> None:
    """Counts every pair of different words of a line that are less than `window` words apart."""
    for i, one in enumerate(ids):
        for other in ids[i + 1 : i + window]:
            if one != other:
                pair = (min(one, other), max(one, other))
                links[pair] = links.get(pair, 0) + 1


def rank(size: int, pairs_E2: np.ndarray, weights_E: np.ndarray) -> np.ndarray:
    """PageRank over links that go both ways; the score of a word without links is shared by all."""
    sources = np.concatenate([pairs_E2[:, 0], pairs_E2[:, 1]])
    targets = np.concatenate([pairs_E2[:, 1], pairs_E2[:, 0]])
    weights = np.concatenate([weights_E, weights_E])
    totals = np.bincount(sources, weights, size)
    shares = weights / totals[sources]
    has_no_links = totals == 0
    scores = np.full(size, 1 / size)
    while True:
        moved = np.bincount(targets, scores[sources] * shares, size) + scores[has_no_links].sum() / size
        before = scores
        scores = (1 - DAMPING) / size + DAMPING * moved
        if np.abs(scores - before).sum() < _TOLERANCE:
            return np.asarray(scores)


def _is_content(word: str) -> bool:
    """False for function words, numbers and single characters."""
    return word not in STOP_WORDS and not word[0].isdigit() and len(word) > 1
