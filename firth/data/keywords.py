"""TextRank (Mihalcea and Tarau 2004): the words of a text that occur near many of its other words.

In: lines of text. Out: words with scores that add up to 1. Words within a window of each other are linked. The score of
a word is its PageRank: the share of time a random surfer spends on it, following links and sometimes jumping anywhere.
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
        content_words = filter(_is_content, words_of(line))
        # A new word gets the next number.
        ids = [index.setdefault(word, len(index)) for word in content_words]
        _add_links(links, ids, window=window)
    if not index:
        raise BadInput("The text has no words but function words and numbers.")
    # The shape is given, because there may be no links.
    pairs_E2 = np.array(list(links), np.int64).reshape(-1, 2)
    weights_E = np.array(list(links.values()), np.float64)
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
    first_E = pairs_E2[:, 0]
    second_E = pairs_E2[:, 1]
    sources = np.concatenate([first_E, second_E])
    targets = np.concatenate([second_E, first_E])
    weights = np.concatenate([weights_E, weights_E])
    # A word gives its score to its neighbours in proportion to the weights of the links.
    totals = np.bincount(sources, weights, size)
    shares = weights / totals[sources]
    has_no_links = totals == 0
    # What every word gets from the surfer's random jumps.
    jump = (1 - DAMPING) / size
    scores = np.full(size, 1 / size)
    while True:
        before = scores
        given = before[sources] * shares
        given_to_all = before[has_no_links].sum() / size
        moved = np.bincount(targets, given, size) + given_to_all
        scores = jump + DAMPING * moved
        change = np.abs(scores - before).sum()
        if change < _TOLERANCE:
            return np.asarray(scores)


def _is_content(word: str) -> bool:
    """False for function words, numbers and single characters."""
    return word not in STOP_WORDS and not word[0].isdigit() and len(word) > 1
