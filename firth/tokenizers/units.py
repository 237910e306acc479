"""Features of a unit (a character or a word): its columns for templates, and its class where it is unknown.

In: units as strings. Out: 64-bit keys of their columns, as arrays over all units seen; a class by shape or suffix.
Arrays carry shape suffixes: N the units of a request, U all cached units, C columns.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock

import numpy as np

from firth import rng
from firth.tokenizers.segmentation import has_chinese

SHAPES = ("digit", "numeral", "date", "latin", "punctuation", "chinese", "other", "number", "mixed", "upper", "capital")
"""The classes by shape; classes by suffix follow."""
MOST = 1 << 20
"""Units in the cache at most."""
MOST_CHARACTERS = 1 << 23
"""Characters of all units in the cache at most."""
_NUMERALS = "零〇○一二三四五六七八九十百千万亿两"
_DATES = "年月日时分秒"
# Full-width forms lie at a fixed distance from ASCII; the full-width space does not.
_narrow_of_wide = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}
_number = re.compile(r"[+-]?\d[\d.,:/%-]*")


def normal(unit: str) -> str:
    """The unit with full-width letters, digits and marks as ASCII."""
    if unit.isascii():
        return unit
    return unit.translate(_narrow_of_wide)


def kind_of(unit: str) -> str:
    """The kind of a unit's last character."""
    last = normal(unit)[-1:]
    if not last:
        return "other"
    if last.isdigit():
        return "digit"
    if last in _NUMERALS:
        return "numeral"
    if last in _DATES:
        return "date"
    if has_chinese(last):
        return "chinese"
    if last.isalpha() and last.isascii():
        return "latin"
    if last.isalnum() or last.isspace():
        return "other"
    return "punctuation"


def shape(unit: str) -> str:
    """Capitals as X, small letters as x, digits as d, Chinese as c, marks as they are; runs shortened to two."""
    drawn = "".join(map(_shape_of, normal(unit)))
    return re.sub(r"(.)\1\1+", r"\1\1", drawn)


def _shape_of(character: str) -> str:
    if character.isdigit():
        return "d"
    if has_chinese(character):
        return "c"
    if character.isupper():
        return "X"
    if character.isalpha():
        return "x"
    return character


def class_of(unit: str, suffixes: Mapping[str, int]) -> int:
    """The class of a unit that is not in the vocabulary: its longest common suffix if it is a plain word, or its shape.

    `suffixes` numbers the common suffixes.
    """
    text = normal(unit)
    if len(text) == 1:
        return SHAPES.index(kind_of(text))
    if _number.fullmatch(text):
        return SHAPES.index("number")
    if any(map(str.isdigit, text)):
        return SHAPES.index("mixed")
    if text.isupper() and text[:1].isupper():
        return SHAPES.index("upper")
    if text[:1].isupper():
        return SHAPES.index("capital")
    # A lower-case or Chinese word: its ending says most about it.
    for size in (3, 2, 1):
        suffix = text[-size:]
        if len(text) > size and suffix in suffixes:
            return len(SHAPES) + suffixes[suffix]
    return SHAPES.index(kind_of(text))


def common_suffixes(units: Iterable[str], *, min_count: int = 20, most: int = 1000) -> tuple[str, ...]:
    """The endings of one to three characters that many different units share, most frequent first."""
    counts: Counter[str] = Counter()
    for unit in units:
        word = normal(unit)
        for size in (1, 2, 3):
            if len(word) > size:
                counts[word[-size:]] += 1
    frequent = [(-count, ending) for ending, count in counts.items() if count >= min_count]
    frequent.sort()
    return tuple(ending for _, ending in frequent[:most])


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
"""The columns that a template may name."""


class Units(dict[str, int]):
    """A cache of units: unit -> its row in `own_U` and in the columns. Row 0 is the padding around a sentence."""

    def __init__(self, columns: Sequence[str], own: Callable[[str], int]) -> None:
        super().__init__()
        self.names = columns
        self.own_U = np.zeros(1, np.int32)
        self.keys_CU = np.zeros((len(columns), 1), np.uint64)
        self._own_part = own
        self._lock = Lock()
        self._num_characters = 0
        self._new_own: list[int] = []
        self._new_keys: list[list[int]] = []

    def look_up(self, units: Iterable[str]) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """The units' rows; and the arrays these rows index: each unit's own part, and the keys of every column."""
        with self._lock:
            if len(self) > MOST or self._num_characters > MOST_CHARACTERS:
                self._forget()
            rows_N = np.fromiter(map(self.__getitem__, units), np.int64)  # new units go through `__missing__`
            if len(self._new_own) > 0:
                self._append_new()
            return rows_N, self.own_U, dict(zip(self.names, self.keys_CU, strict=True))

    def _forget(self) -> None:
        """Empties the cache. The arrays are replaced, not changed: another thread may still read them."""
        self.clear()
        self._num_characters = 0
        self.own_U = self.own_U[:1]
        self.keys_CU = self.keys_CU[:, :1]

    def _append_new(self) -> None:
        new_own_U = np.array(self._new_own, np.int32)
        shape = (len(self._new_own), len(self.names))
        new_keys_UC = np.array(self._new_keys, np.uint64).reshape(shape)
        self.own_U = np.concatenate([self.own_U, new_own_U])
        self.keys_CU = np.concatenate([self.keys_CU, new_keys_UC.T], 1)
        self._new_own = []
        self._new_keys = []

    def __missing__(self, unit: str) -> int:
        """Gives a new unit the next row; `look_up` appends its values to the arrays."""
        self._num_characters += len(unit)
        keys = []
        for name in self.names:
            value = COLUMNS[name](unit)
            keys.append(int(rng.key(name, value)))
        self._new_own.append(self._own_part(unit))
        self._new_keys.append(keys)
        self[unit] = len(self.own_U) + len(self._new_own) - 1
        return self[unit]
