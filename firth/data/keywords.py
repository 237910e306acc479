"""TextRank (Mihalcea and Tarau 2004): the words of a text that many of its other words stand beside.

In: lines of text. Out: words with scores that add up to 1. Words that stand within a window are linked; the score of a
word is what a reader would spend on it who follows links and now and then jumps anywhere (PageRank).
"""

from collections.abc import Iterable

import numpy as np

from firth.data.spoken import words_of
from firth.data.stop_words import STOP_WORDS
from firth.errors import BadConfig, BadInput

DAMPING = 0.85
_TOLERANCE = 1e-10


def keywords(lines: Iterable[str], *, top: int = 10, window: int = 4) -> list[tuple[str, float]]:
    """The words with the highest scores; equal ones in the order of the text. Links do not reach over lines."""
    if window < 2 or top < 1:
        raise BadConfig("Keywords need a window of at least 2 words and a top of at least 1.")
    places: dict[str, int] = {}
    links: dict[tuple[int, int], int] = {}
    for line in lines:
        kept = [word for word in words_of(line) if _is_content(word)]
        ids = [places.setdefault(word, len(places)) for word in kept]
        for i, one in enumerate(ids):
            for other in ids[i + 1 : i + window]:
                if one != other:
                    pair = min(one, other), max(one, other)
                    links[pair] = links.get(pair, 0) + 1
    if not places:
        raise BadInput("The text has no words but function words and numbers.")
    scores = rank(len(places), np.array([*links], np.int64).reshape(-1, 2), np.array([*links.values()], np.float64))
    words = list(places)
    return [(words[i], float(scores[i])) for i in np.argsort(-scores, kind="stable")[:top]]


def rank(size: int, pairs_E2: np.ndarray, weights_E: np.ndarray) -> np.ndarray:
    """PageRank over links that go both ways; the score of a word without links is shared by all."""
    sources = np.concatenate([pairs_E2[:, 0], pairs_E2[:, 1]])
    targets = np.concatenate([pairs_E2[:, 1], pairs_E2[:, 0]])
    weights = np.concatenate([weights_E, weights_E])
    totals = np.bincount(sources, weights, size)
    shares = weights / totals[sources]
    scores = np.full(size, 1 / size)
    while True:
        moved = np.bincount(targets, scores[sources] * shares, size) + scores[totals == 0].sum() / size
        before, scores = scores, (1 - DAMPING) / size + DAMPING * moved
        if np.abs(scores - before).sum() < _TOLERANCE:
            return np.asarray(scores)


def _is_content(word: str) -> bool:
    return word not in STOP_WORDS and not word[0].isdigit() and len(word) > 1
