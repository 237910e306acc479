"""Texts -> ids by remembering: texts repeat themselves, so most words were encoded before.

A text is cut where BERT's tokenizer always cuts (spaces, ASCII punctuation, Chinese characters), which changes nothing;
only stretches not met before go to the tokenizer. Two to four times as fast as encoding every text whole.
"""

import re
from collections.abc import Callable
from itertools import chain
from typing import Generic, TypeVar

from firth.tokenizers.words import CHINESE, has_chinese

Kept = TypeVar("Kept")
_PUNCTUATION = r"!-/:-@\[-`{-~"
_MOST_CHARACTERS = 500_000
"""About 50,000 words and 15 MB; then all is forgotten, which costs less than forgetting piece by piece."""


class Remembered(Generic[Kept]):
    """What `encode` says of each stretch. Safe to use from several threads."""

    def __init__(self, encode: Callable[[list[str]], list[Kept]]) -> None:
        self._encode = encode
        self._known: dict[str, Kept] = {}
        self._characters = 0

    def __call__(self, stretches: set[str]) -> dict[str, Kept]:
        """All that is known, `stretches` included. A full memory is replaced, not emptied: another thread may still be
        reading it."""
        known = self._known
        new = list(stretches.difference(known))
        if self._characters > _MOST_CHARACTERS:
            known = self._known = {}
            self._characters, new = 0, list(stretches)
        self._characters += sum(map(len, new))
        known.update(zip(new, self._encode(new), strict=True))
        return known


class CachedIds:
    def __init__(self, encode: Callable[[list[str]], list[list[int]]], *, chinese_characters: bool) -> None:
        self._remembered = Remembered(encode)
        self._cut = re.compile(f"[{_PUNCTUATION}]|[^ {_PUNCTUATION}]+")
        alone = _PUNCTUATION + CHINESE if chinese_characters else _PUNCTUATION
        self._cut_chinese = re.compile(f"[{alone}]|[^ {alone}]+")

    def __call__(self, texts: list[str]) -> list[list[int]]:
        cuts = [(self._cut_chinese if has_chinese(text) else self._cut).findall(text) for text in texts]
        ids_of = self._remembered(set().union(*cuts)).__getitem__
        return [list(chain.from_iterable(map(ids_of, cut))) for cut in cuts]
