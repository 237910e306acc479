"""A text's tokens in, its words out: where each is in the text, and which tokens it is made of."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from firth.types import Encoding


@dataclass(frozen=True)
class WordSpan:
    start: int
    """The first character ..."""
    end: int
    """... and the one after the last."""
    first_token: int
    end_token: int


def word_spans(encoding: Encoding, text: str) -> list[WordSpan]:
    """The words of a text by its tokens: a word begins where a token begins one."""
    starts = np.flatnonzero(encoding.word_starts).tolist()
    if starts[:1] != [0]:
        starts.insert(0, 0)
    spans: list[WordSpan] = []
    # An empty text has no tokens, so its only stretch is empty.
    for first_token, end_token in pairwise([*starts, len(encoding)]):
        if first_token == end_token:
            continue
        start = int(encoding.offsets[first_token, 0])
        end = int(encoding.offsets[end_token - 1, 1])
        # A piece of a byte-level tokenizer may hold the space before the word.
        while start < end and text[start].isspace():
            start += 1
        if start < end:
            spans.append(WordSpan(start, end, first_token, end_token))
    return spans
