"""What a unit (a character or a word) looks like: its columns for templates, and its class where it is unknown.

In: units as strings. Out: 64-bit keys of their columns, as arrays over all units met; a class by shape or suffix.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock

import numpy as np

from firth import chance
from firth.tokenizers.words import has_chinese

SHAPES = ("digit", "numeral", "date", "latin", "punctuation", "chinese", "other", "number", "mixed", "upper", "capital")
"""The classes by shape; classes by suffix follow."""
MOST, MOST_CHARACTERS = 1 << 20, 1 << 23
"""Units remembered at once, and their characters in all."""
_NUMERALS = "零〇○一二三四五六七八九十百千万亿两"
_DATES = "年月日时分秒"
_wide = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}
_number = re.compile(r"[+-]?\d[\d.,:/%-]*")


def normal(unit: str) -> str:
    """Wide letters, digits and marks as narrow ones."""
    return unit if unit.isascii() else unit.translate(_wide)


def kind_of(unit: str) -> str:
    """The kind of a unit's last character."""
    last = normal(unit)[-1:]
    if last.isdigit():
        return "digit"
    if last in _NUMERALS and last:
        return "numeral"
    if last in _DATES and last:
        return "date"
    if has_chinese(last):
        return "chinese"
    if last.isalpha():
        return "latin" if last.isascii() else "other"
    return "other" if last.isalnum() or not last or last.isspace() else "punctuation"


def shape(unit: str) -> str:
    """Capitals as X, small letters as x, digits as d, Chinese as c, marks as they are; runs shortened to two."""
    drawn = "".join(
        "d" if c.isdigit() else "c" if has_chinese(c) else "X" if c.isupper() else "x" if c.isalpha() else c
        for c in normal(unit)
    )
    return re.sub(r"(.)\1\1+", r"\1\1", drawn)


def class_of(unit: str, suffixes: Mapping[str, int]) -> int:
    """The class of a unit that is not known by itself: the longest common suffix of a plain word, else its shape."""
    text = normal(unit)
    if len(text) == 1:
        return SHAPES.index(kind_of(text))
    if _number.fullmatch(text):
        return SHAPES.index("number")
    if any(map(str.isdigit, text)):
        return SHAPES.index("mixed")
    if text[:1].isupper():
        return SHAPES.index("upper" if text.isupper() else "capital")
    for size in (3, 2, 1):
        if len(text) > size and text[-size:] in suffixes:
            return len(SHAPES) + suffixes[text[-size:]]
    return SHAPES.index(kind_of(text))


def common_suffixes(units: Iterable[str], *, min_count: int = 20, most: int = 1000) -> tuple[str, ...]:
    """The endings of one to three characters that many different units share."""
    words = [text for text in map(normal, units) if len(text) > 1]
    counts = Counter(word[-size:] for word in words for size in (1, 2, 3) if len(word) > size)
    often = sorted((-count, ending) for ending, count in counts.items() if count >= min_count)
    return tuple(ending for _, ending in often[:most])


COLUMNS: dict[str, Callable[[str], str]] = {
    "unit": normal,
    "lower": str.lower,
    "kind": kind_of,
    "shape": shape,
    "prefix1": lambda unit: unit[:1],
    "prefix2": lambda unit: unit[:2],
    "prefix3": lambda unit: unit[:3],
    "prefix4": lambda unit: unit[:4],
    "suffix1": lambda unit: unit[-1:],
    "suffix2": lambda unit: unit[-2:],
    "suffix3": lambda unit: unit[-3:],
    "suffix4": lambda unit: unit[-4:],
}
"""What a template may ask of a unit."""


class Units(dict[str, int]):
    """Every unit met so far -> its row in `own_U` and in the columns; row 0 is what lies beyond a sentence's edges."""

    def __init__(self, columns: Sequence[str], own: Callable[[str], int]) -> None:
        super().__init__()
        self.names, self._own, self._lock = columns, own, Lock()
        self.own_U, self.keys_CU = np.zeros(1, np.int32), np.zeros((len(columns), 1), np.uint64)
        self._characters = 0
        self._new_own: list[int] = []
        self._new_keys: list[list[int]] = []

    def look(self, units: Iterable[str]) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """The units' rows, and what these rows hold: each unit's own number, and the keys of its columns."""
        with self._lock:
            if len(self) > MOST or self._characters > MOST_CHARACTERS:
                self.clear()
                self._characters = 0
                self.own_U, self.keys_CU = self.own_U[:1], self.keys_CU[:, :1]
            rows_N = np.fromiter(map(self.__getitem__, units), np.int64)
            if len(self._new_own) > 0:
                self.own_U = np.concatenate([self.own_U, np.array(self._new_own, np.int32)])
                new_CU = np.array(self._new_keys, np.uint64).reshape(len(self._new_own), len(self.names)).T
                self.keys_CU = np.concatenate([self.keys_CU, new_CU], 1)
                self._new_own, self._new_keys = [], []
            return rows_N, self.own_U, dict(zip(self.names, self.keys_CU, strict=True))

    def __missing__(self, unit: str) -> int:
        self._characters += len(unit)
        self._new_own.append(self._own(unit))
        self._new_keys.append([int(chance.key(name, COLUMNS[name](unit))) for name in self.names])
        self[unit] = len(self.own_U) + len(self._new_own) - 1
        return self[unit]
