"""The types of text that all folders share: documents, encodings, labelled rows, predictions. No tensors here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Cell = str | bool | int | float | None | Sequence[str]
"""One value of a labelled row: a text, a number, or a list of texts."""
TaskInput = str | Sequence[str] | Mapping[str, Cell]
"""What a fine-tuned model predicts for: a text, several texts such as a pair, or a row with the task's columns."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text that belongs together: its lines (paragraphs), in order."""

    lines: tuple[str, ...]
    source: str = ""
    """Where it came from, for messages: file name and position."""
    languages: tuple[str, ...] = ()
    """Its language, if it was given; two for a text and its translation, which are its two lines."""

    @property
    def is_pair(self) -> bool:
        """Whether it is a text and its translation."""
        return len(self.languages) == 2


@dataclass(frozen=True, slots=True)
class Encoding:
    """A text as ids; `offsets[i]` is the range of characters of the original text that id i covers."""

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
        """The tokens at these rows, in this order; the row -1 gives the unknown token."""
        # Each array gets the unknown token as its last element, which the row -1 then selects.
        ids = np.append(self.ids, unknown)
        offsets = np.append(self.offsets, np.zeros((1, 2), np.int32), 0)
        word_starts = np.append(self.word_starts, True)
        chosen = Encoding(ids[rows], offsets[rows], word_starts[rows])
        if self.parts is None or self.part_sizes is None:
            return chosen
        # `split` gives one array more than there are tokens. It is empty: an unknown token has no parts.
        parts_by_token = np.split(self.parts, np.cumsum(self.part_sizes))
        no_parts = self.parts[:0]
        parts = np.concatenate([no_parts, *(parts_by_token[row] for row in rows)])
        part_sizes = np.append(self.part_sizes, 0)
        return replace(chosen, parts=parts, part_sizes=part_sizes[rows])

    def parts_between(self, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """The parts of the tokens from `start` up to but not including `end`, and how many each token has."""
        if self.parts is None or self.part_sizes is None:
            raise ValueError("these tokens have no parts")
        first_part = int(self.part_sizes[:start].sum())
        sizes = self.part_sizes[start:end]
        num_parts = int(sizes.sum())
        return self.parts[first_part : first_part + num_parts], sizes


@dataclass(frozen=True, slots=True)
class Fill:
    """One candidate for a `[MASK]`: the token, its probability, and the text with the token filled in."""

    token: str
    probability: float
    text: str


@dataclass(frozen=True, slots=True)
class Generated:
    """A text that a causal language model continued."""

    text: str
    """The prompt and its continuation."""
    continuation: str
    """Only the continuation."""
    num_tokens: int
    """New tokens, including the one that ends a text."""
    ended: bool
    """Whether the model ended the text itself."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A text that a model wrote from another one: a translation, a summary."""

    text: str
    probability: float
    """The geometric mean of its tokens' probabilities."""
    num_tokens: int
    """Its tokens, including the one that ends a text."""
    ended: bool
    """Whether the model ended the text itself."""


@dataclass(frozen=True)
class Example:
    """A row of a labelled file: its texts and its gold label. Tasks that need more of a row extend this class."""

    texts: tuple[str, ...]
    """One text, a pair, a question and its passage, a prompt and its options: the task defines which."""
    gold: Any = None
    """Names, numbers, tags or answers, never indices; None for a row without a label."""
    row: int = 0
    """The row of the file, counted from 1 and including any header, as editors count."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a row of a labelled file."""

    row: int
    what: str
    remedy: str = ""
    bad: bool = True
    """The row cannot be used; if false, this is only a warning."""
    example_row: int | None = None
    """Where the example begins, if that is not `row`: a tagged sentence has many rows, and one of them is at fault."""
    is_unknown: bool = False
    """The row itself is fine, but its answer never occurs in training."""


@dataclass(frozen=True, slots=True)
class Span:
    """A labelled range of a text; the offsets count characters of the original text."""

    label: str
    start: int
    end: int
    text: str
    probability: float = 1.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model predicts for one input."""

    label: Any
    """A name, several names, a number, a list of tags or an answer's text: the same type as `Example.gold`."""
    probability: float = 1.0
    """The probability of the label."""
    probabilities: Mapping[str, float] = field(default_factory=dict)
    """The probability of every label there is to choose from."""
    spans: tuple[Span, ...] = ()
    """Entities or the answer, with their offsets in the text."""
    text: str | None = None
    """The prediction as a text of its own, if the task has such a form: segmented words, words with tags, what a
    model wrote."""


@dataclass(frozen=True)
class ShareFigure:
    """A figure from 0 to 1 among an objective's metrics, as reports show it."""

    label: str
    chance: float | None = None
    """What guessing reaches, where that is known."""
