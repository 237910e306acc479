"""Text -> its words as people count them: lower-cased, without punctuation, Chinese as the word segmenter cuts it."""

import re
from itertools import pairwise

from firth.tokenizers.segmentation import chinese_borders, has_chinese

_word = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
"""Letters and digits, with single apostrophes and hyphens between them."""


def words_of(text: str) -> list[str]:
    """The words of a text, in order."""
    lowered = text.lower()
    if not has_chinese(lowered):
        return _word.findall(lowered)
    borders = [*chinese_borders(lowered), len(lowered)]
    words: list[str] = []
    for start, end in pairwise(borders):
        words += _word.findall(lowered[start:end])
    return words
