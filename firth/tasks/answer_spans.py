"""Spans of a passage in numbers: where an answer is in its tokens, which spans score best, and how right they are.

In: offsets and scores as numpy arrays. Out: places of first and last tokens, and exact match and F1 of their texts.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from firth import metrics
from firth.tasks.squad import Question
from firth.types import Example

BEST = 20
"""Spans among which the probability is divided."""

TokenSpan = tuple[int, int]
"""The first and the last token of a span."""


class WindowFacts(NamedTuple):
    """What the head knows of a window: rows count its tokens, special ones included."""

    passage_start: int
    passage_end: int
    cls_row: int
    """Where [CLS] is: it stands for no answer."""
    answer_first: int
    """The first row of the answer; the row of [CLS] if the window does not hold it."""
    answer_last: int


def token_span(example: Example, offsets: np.ndarray) -> TokenSpan | None:
    """First and last token of the first answer whose place is known."""
    if not isinstance(example, Question) or not example.gold:
        return None
    # The reader refuses a question whose answers are all at unknown places.
    known = [i for i, start in enumerate(example.starts) if start >= 0]
    start = example.starts[known[0]]
    end = start + len(example.gold[known[0]])
    # The first token that ends behind the start, and the last one that starts before the end.
    first = int(np.searchsorted(offsets[:, 1], start, side="right"))
    last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1
    if first > last:
        return None
    return first, last


def legal_rows(length: int, facts: WindowFacts) -> np.ndarray:
    """Where an answer may begin or end: in the passage, or at [CLS] if there is none."""
    legal = np.zeros(length, bool)
    legal[facts.cls_row] = True
    legal[facts.passage_start : facts.passage_end] = True
    return legal


def best_spans(scores_L2: np.ndarray, max_answer: int) -> Iterator[tuple[int, int, float]]:
    """The best (first, last, score) of a window's passage, in tokens: last >= first, at most `max_answer` tokens."""
    size = len(scores_L2)
    if not size:
        return
    width = min(max_answer, size)
    # Row i of the sums has the scores of the spans that begin at token i; -inf beyond the end of the passage.
    padding = np.full(width, -np.inf, scores_L2.dtype)
    ends = np.concatenate([scores_L2[:, 1], padding])
    end_scores = np.lib.stride_tricks.sliding_window_view(ends, width)[:size]
    sums = scores_L2[:, :1] + end_scores
    flat = sums.ravel()
    last_kept = min(BEST, flat.size - 1)
    best = np.argpartition(-flat, last_kept)[:BEST]
    for place in best.tolist():
        if np.isfinite(flat[place]):
            first, more = divmod(place, width)
            yield first, first + more, float(flat[place])


def em_and_f1(golds: Sequence[Sequence[str]], texts: Sequence[str], *, rules: str) -> np.ndarray:
    """EM and F1 of every question, against the gold answer that fits best."""
    if rules != "cmrc":
        return np.stack(metrics.squad_each(golds, texts), 1)
    rows = []
    for gold, text in zip(golds, texts, strict=True):
        if gold:
            figures = metrics.cmrc([gold], [text])
            rows.append((figures["em"], figures["f1"]))
        else:
            is_right = float(not text)
            rows.append((is_right, is_right))
    return np.array(rows, np.float64).reshape(-1, 2)
