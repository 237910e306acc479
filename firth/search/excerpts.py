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
Window = tuple[int, int]
"""The first piece of a text that is shown, and the one after the last."""


def excerpt(text: str, weights: Mapping[str, float], *, columns: int = COLUMNS) -> str:
    """The part of a text in which a question's words weigh most, cut between words; the beginning if no other has more.

    `weights` are those of the question's words, in lower case, as far as any passage holds them; a word counts once.
    """
    # The columns that the first characters take: none, one, two ...
    columns_of_first = [0, *accumulate(map(_width, text))]
    if columns_of_first[-1] <= columns:
        return text
    words, bounds = _pieces(text)
    columns_of_bounds = [columns_of_first[bound] for bound in bounds]
    windows = _windows(columns_of_bounds, columns)
    first_piece, end_piece = _heaviest_window(words, windows, _heavy(weights))
    start = bounds[first_piece]
    # A word that is too long for a line is cut.
    last_that_fits = bisect_right(columns_of_first, columns_of_first[start] + columns) - 1
    end = min(bounds[end_piece], last_that_fits)
    return _with_ellipses(text, start, end)


def _pieces(text: str) -> tuple[list[str], list[int]]:
    """The words of a text in lower case, and the bounds of its pieces, one more than there are words.

    A piece is a word with what is between it and the next one; the first piece begins with the text.
    """
    words = []
    bounds = []
    for start, end in word_spans(text) or [(0, len(text))]:
        words.append(text[start:end].lower())
        bounds.append(start)
    bounds[0] = 0
    bounds.append(len(text))
    return words, bounds


def _windows(columns_of_bounds: Sequence[int], columns: int) -> list[Window]:
    """From each piece on, as many pieces as fit into a line, and at least one.

    Those after the first window that reaches the end of the text hold only less, so they are left out.
    """
    num_pieces = len(columns_of_bounds) - 1
    windows: list[Window] = []
    for first in range(num_pieces):
        end_of_line = columns_of_bounds[first] + columns
        last_bound = bisect_right(columns_of_bounds, end_of_line) - 1
        end = max(last_bound, first + 1)
        windows.append((first, end))
        if end == num_pieces:
            break
    return windows


def _heaviest_window(words: Sequence[str], windows: Sequence[Window], weights: Mapping[str, float]) -> Window:
    """The window whose words weigh most; of several the first of all windows, or else the one in the middle."""
    found = [_weight(words[first:end], weights) for first, end in windows]
    heaviest = max(found)
    if found[0] == heaviest:
        return windows[0]
    best = [window for window, weight in zip(windows, found, strict=True) if weight == heaviest]
    # The middle one has some text on both sides of the words.
    return best[len(best) // 2]


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
    if start > 0:
        shown = f"{ELLIPSIS} {shown}"
    return shown
