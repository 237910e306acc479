"""The nouns of text. Nothing here knows a tensor."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Document:
    """A run of text that belongs together: its lines (paragraphs), in order."""

    lines: tuple[str, ...]
    source: str = ""
    """Where it came from, for messages: file name and position."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """A text as ids; `offsets[i]` are the characters of the original text that id i stands for."""

    ids: np.ndarray
    offsets: np.ndarray
    word_starts: np.ndarray
    tokens: tuple[str, ...] = field(default=())
    parts: np.ndarray | None = None
    """Where a token has many ids (n-grams), those of all tokens end to end ..."""
    part_sizes: np.ndarray | None = None
    """... and how many each token has."""

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: np.ndarray, *, unknown: int) -> "Encoding":
        """Some of its tokens, in this order; the row -1 is the unknown token."""
        ids, starts = np.append(self.ids, unknown)[rows], np.append(self.word_starts, True)[rows]
        chosen = Encoding(ids, np.append(self.offsets, np.zeros((1, 2), np.int32), 0)[rows], starts)
        if self.parts is None or self.part_sizes is None:
            return chosen
        pieces = np.split(self.parts, np.cumsum(self.part_sizes))  # the last is empty: an unknown token has no parts
        parts = np.concatenate([self.parts[:0], *(pieces[row] for row in rows)])
        return replace(chosen, parts=parts, part_sizes=np.append(self.part_sizes, 0)[rows])

    def parts_between(self, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """The parts of some tokens in a row, and how many each has."""
        if self.parts is None or self.part_sizes is None:
            raise ValueError("these tokens have no parts")
        first = int(self.part_sizes[:start].sum())
        sizes = self.part_sizes[start:end]
        return self.parts[first : first + int(sizes.sum())], sizes


@dataclass(frozen=True, slots=True)
class Fill:
    """One candidate for a `[MASK]`: the token, how likely it is, and the text with it filled in."""

    token: str
    probability: float
    text: str


@dataclass(frozen=True, slots=True)
class Generated:
    """A text a model went on with."""

    text: str
    """The prompt and what follows it."""
    continuation: str
    """What follows it."""
    num_tokens: int
    """New tokens, the one that ends a text included."""
    ended: bool
    """Whether the model ended the text itself."""


@dataclass(frozen=True)
class Example:
    """A row of a labelled file: what is read and what people said of it. Tasks that know more of a row extend this."""

    texts: tuple[str, ...]
    """One text, a pair, a question and its passage, a prompt and its options: as the task says."""
    gold: Any = None
    """Names, numbers, tags or answers, never indices; None where nobody said."""
    row: int = 0
    """Its place in the file, counted from 1 and with any header, as editors count."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a row of a labelled file."""

    row: int
    what: str
    remedy: str = ""
    bad: bool = True
    """The row cannot be used; otherwise it is only worth a look."""
    example_row: int | None = None
    """Where the example begins, if that is not `row`: a tagged sentence has many rows, and one of them is at fault."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a text with a name; the offsets count characters of the original text."""

    label: str
    start: int
    end: int
    text: str
    probability: float = 1.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model says of one input."""

    label: Any
    """A name, several names, a number, a list of tags or an answer's text: what `Example.gold` would be."""
    probability: float = 1.0
    """How sure the model is of the label."""
    probabilities: Mapping[str, float] = field(default_factory=dict)
    """Of every name it chose from."""
    spans: tuple[Span, ...] = ()
    """Entities or the answer, with their places in the text."""
    text: str | None = None
    """The input with the answer written into it, where that says all: words parted by spaces, words with tags."""
