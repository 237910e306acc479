"""Text -> its words as people count them: lower-cased, without punctuation, Chinese ones as the segmenter cuts them."""

import re
from itertools import pairwise

from firth.tokenizers.words import chinese_borders, has_chinese

_word = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


def words_of(text: str) -> list[str]:
    lowered = text.lower()
    if not has_chinese(lowered):
        return _word.findall(lowered)
    borders = [*chinese_borders(lowered), len(lowered)]
    return [word for a, b in pairwise(borders) for word in _word.findall(lowered[a:b])]
