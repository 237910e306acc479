"""The nouns of text. Nothing here knows a tensor."""

from dataclasses import dataclass, field

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
