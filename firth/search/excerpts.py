"""A passage and the words of a question -> the part of the passage that fits into a line of a terminal."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from unicodedata import east_asian_width

from firth.data.spoken import word_spans

COLUMNS = 90
"""The most columns that an excerpt takes, without its ellipses; a Chinese character takes two."""
ELLIPSIS = "…"
HEAVY = 0.5
"""A word of the question that weighs less than this share of its heaviest one is not looked for."""
OPENING = " \t\u3000([{<“‘「『《〈（【"
"""What does not end an excerpt."""


def excerpt(text: str, weights: Mapping[str, float], *, columns: int = COLUMNS) -> str:
    """The part of a text in which a question's words weigh most, cut between words; the beginning if no other has more.

    `weights` are those of the question's words, in lower case; a word counts once.
    """
    # The columns that the first characters take: none, one, two ...
    columns_of_first = [0, *accumulate(map(_width, text))]
    if columns_of_first[-1] <= columns:
        return text
    spans = word_spans(text) or [(0, len(text))]
    words = [text[start:end].lower() for start, end in spans]
    # A piece of the text is a word with what stands between it and the next one.
    bounds = [0, *(start for start, _ in spans[1:]), len(text)]
    room = [columns_of_first[bound] for bound in bounds]
    # The pieces from each one on that fit; a word that is too long for a line is cut.
    lasts = [max(bisect_right(room, room[first] + columns) - 1, first + 1) for first in range(len(words))]
    # Those after the first one that reaches the end hold only less.
    lasts = lasts[: lasts.index(len(words)) + 1]
    heavy = _heavy(weights)
    found = [_weight(words[first:last], heavy) for first, last in enumerate(lasts)]
    heaviest = max(found)
    best = [first for first, weight in enumerate(found) if weight == heaviest]
    # The middle one has some text on both sides of the words.
    first = 0 if best[0] == 0 else best[len(best) // 2]
    start = bounds[first]
    end = min(bounds[lasts[first]], bisect_right(columns_of_first, columns_of_first[start] + columns) - 1)
    return _with_ellipses(text, start, end)


def _width(character: str) -> int:
    return 2 if east_asian_width(character) in "WF" else 1


def _heavy(weights: Mapping[str, float]) -> dict[str, float]:
    """The words that an excerpt is to show; a word such as `it` would only move it away from the beginning."""
    least = HEAVY * max(weights.values(), default=0.0)
    return {word: weight for word, weight in weights.items() if weight >= least}


def _weight(words: Sequence[str], weights: Mapping[str, float]) -> float:
    return sum(weights.get(word, 0.0) for word in sorted(set(words)))


def _with_ellipses(text: str, start: int, end: int) -> str:
    """A part of a text, with an ellipsis where something is left out."""
    shown = text[start:end]
    if end < len(text):
        shown = f"{shown.rstrip(OPENING)} {ELLIPSIS}"
    return f"{ELLIPSIS} {shown}" if start else shown
