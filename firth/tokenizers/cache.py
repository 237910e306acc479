"""Texts -> ids through a cache: text repeats itself, so most words were encoded before.

A text is cut where BERT's tokenizer always cuts (spaces, ASCII punctuation, Chinese characters), which changes no id;
only chunks that are not in the cache go to the tokenizer. Two to four times as fast as encoding every text whole.
"""

import re
from collections.abc import Callable
from itertools import chain
from typing import Generic, TypeVar

from firth.tokenizers.segmentation import CHINESE, has_chinese

Value = TypeVar("Value")
_PUNCTUATION = r"!-/:-@\[-`{-~"
_MOST_CHARACTERS = 500_000
"""About 50,000 words and 15 MB. A full cache is dropped whole, which costs less than evicting single entries."""


class ChunkCache(Generic[Value]):
    """Chunk of text -> the value that `encode` gives it. Safe to use from several threads."""

    def __init__(self, encode: Callable[[list[str]], list[Value]]) -> None:
        self._encode = encode
        self._known: dict[str, Value] = {}
        self._num_characters = 0

    def __call__(self, chunks: set[str]) -> dict[str, Value]:
        """The whole cache, `chunks` included."""
        known = self._known
        new = list(chunks.difference(known))
        if self._num_characters > _MOST_CHARACTERS:
            # A full cache is replaced, not emptied: another thread may still be reading it.
            known = {}
            self._known = known
            self._num_characters = 0
            new = list(chunks)
        self._num_characters += sum(map(len, new))
        known.update(zip(new, self._encode(new), strict=True))
        return known


class CachedIds:
    """Encodes texts to ids, chunk by chunk, with a cache in front of `encode`."""

    def __init__(self, encode: Callable[[list[str]], list[list[int]]], *, chinese_characters: bool) -> None:
        self._cache = ChunkCache(encode)
        self._chunk = re.compile(f"[{_PUNCTUATION}]|[^ {_PUNCTUATION}]+")
        single = _PUNCTUATION
        if chinese_characters:
            single = _PUNCTUATION + CHINESE
        self._chunk_with_chinese = re.compile(f"[{single}]|[^ {single}]+")

    def __call__(self, texts: list[str]) -> list[list[int]]:
        chunked_texts = [self._split(text) for text in texts]
        all_chunks: set[str] = set().union(*chunked_texts)
        ids_of = self._cache(all_chunks).__getitem__
        return [list(chain.from_iterable(map(ids_of, chunks))) for chunks in chunked_texts]

    def _split(self, text: str) -> list[str]:
        # Most text has no Chinese, and the pattern without it is faster.
        pattern = self._chunk_with_chinese if has_chinese(text) else self._chunk
        return pattern.findall(text)
