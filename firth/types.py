"""The nouns of text. Nothing here knows a tensor."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Fill:
    """One candidate for a `[MASK]`: the token, how likely it is, and the text with it filled in."""

    token: str
    probability: float
    text: str


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
