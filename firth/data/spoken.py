"""Text -> its words as people count them: lower-cased, without punctuation, Chinese as the word segmenter cuts it."""

import re
from itertools import pairwise

from firth.tokenizers.segmentation import chinese_borders, has_chinese

_word = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
"""Letters and digits, with single apostrophes and hyphens between them."""


def words_of(text: str) -> list[str]:
    """The words of a text, in order."""
    lowered = text.lower()
    return [lowered[start:end] for start, end in word_spans(lowered)]


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where the words of a text begin and end."""
    if not has_chinese(text):
        return [found.span() for found in _word.finditer(text)]
    borders = [*chinese_borders(text), len(text)]
    spans: list[tuple[int, int]] = []
    for start, end in pairwise(borders):
        spans += [found.span() for found in _word.finditer(text, start, end)]
    return spans
