"""Tokens <-> ids, the special tokens around texts, and the windows of a text that is too long for a model."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from firth.errors import BadConfig, BadInput

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PREFIX = "##"


def sentinel(number: int) -> str:
    """The token in place of the span with this number, as T5 names it."""
    return f"<extra_id_{number}>"


@dataclass(frozen=True)
class Frame:
    """The special tokens around and between the texts of a sequence, as ids."""

    opening: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()
    second_segment: int = 1
    """The segment of a second text and of what closes it."""
    last_segment: int | None = None
    """The segment of the very last token, where it has one of its own (XLNet's `<cls>`)."""

    def size(self, texts: int = 1) -> int:
        """How many special tokens a sequence of this many texts has."""
        num_between = (texts - 1) * len(self.between)
        return len(self.opening) + num_between + len(self.closing)

    def join(self, *texts: np.ndarray) -> np.ndarray:
        """One sequence: `opening first between second closing`."""
        parts: list[np.ndarray | tuple[int, ...]] = [self.opening]
        for text in texts:
            parts += [text, self.between]
        parts[-1] = self.closing  # not `between`: no text follows
        return np.concatenate([np.asarray(part, np.int64) for part in parts])

    def segments(self, *texts: np.ndarray) -> np.ndarray:
        """The segment of each token of `join`: what follows the first text belongs to its segment, too."""
        following = self.between if len(texts) > 1 else self.closing
        first_size = len(self.opening) + len(texts[0]) + len(following)
        total_size = self.size(len(texts)) + sum(map(len, texts))
        both_segments = np.array([0, self.second_segment])
        segments = np.repeat(both_segments, [first_size, total_size - first_size])
        if self.last_segment is not None:
            segments[-1] = self.last_segment
        return segments


@dataclass(frozen=True)
class Vocab:
    """The token at index i has id i."""

    tokens: tuple[str, ...]
    roles: tuple[str, ...] = SPECIALS
    """The padding, unknown, opening, separating and mask tokens, in this order."""
    other_specials: frozenset[str] = frozenset()
    """Special tokens without one of these roles."""
    own_frame: Frame | None = None
    """The frame, where it is not BERT's `[CLS] first [SEP] second [SEP]`."""

    def __post_init__(self) -> None:
        # `ids` is not built here: a long list whose words are only counted never needs it.
        if len(set(self.tokens)) < len(self.tokens):
            # The id of a repeated token is that of its last occurrence.
            repeated = [token for i, token in enumerate(self.tokens) if self.ids[token] != i]
            raise BadInput(f"the token {repeated[0]!r} occurs twice in the vocabulary.")
        missing = [role for role in self.roles if role not in self.tokens]
        if missing:
            raise BadInput(f"the vocabulary has no {' '.join(missing)}.")

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    @cached_property
    def frame(self) -> Frame:
        if self.own_frame:
            return self.own_frame
        return Frame((self.cls,), (self.sep,), (self.sep,))

    def parts(self, ids: Iterable[int]) -> tuple[np.ndarray, np.ndarray] | None:
        """The parts of all tokens end to end, and how many each has; None where tokens have no parts."""
        return None

    @cached_property
    def specials(self) -> frozenset[int]:
        """The ids of all special tokens."""
        special = {*self.roles, *self.other_specials}
        return frozenset(i for i, token in enumerate(self.tokens) if token in special)

    @cached_property
    def sentinels(self) -> np.ndarray:
        """The ids of `<extra_id_0>`, `<extra_id_1>` and so on, as far as the vocabulary has them."""
        special = {*self.roles, *self.other_specials}
        found: list[int] = []
        while sentinel(len(found)) in special:
            found.append(self.ids[sentinel(len(found))])
        return np.array(found, np.int64)

    @cached_property
    def continues(self) -> np.ndarray:
        """True for the ids of pieces that continue a word."""
        flags = []
        for i, token in enumerate(self.tokens):
            has_prefix = token.startswith(PREFIX) and len(token) > len(PREFIX)
            flags.append(has_prefix and i not in self.specials)
        return np.array(flags, bool)

    @cached_property
    def pad(self) -> int:
        return self.tokens.index(self.roles[0])

    @cached_property
    def unk(self) -> int:
        return self.tokens.index(self.roles[1])

    @cached_property
    def cls(self) -> int:
        return self.tokens.index(self.roles[2])

    @cached_property
    def sep(self) -> int:
        return self.tokens.index(self.roles[3])

    @cached_property
    def mask(self) -> int:
        return self.tokens.index(self.roles[4])


def each_begins_word(rows: Iterable[list[int]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows of ids, each with word starts, of a tokenizer whose tokens are words."""
    pairs = []
    for row in rows:
        ids = np.array(row, np.int32)
        pairs.append((ids, np.ones(len(row), bool)))
    return pairs


def windows(length: int, size: int, stride: int) -> list[tuple[int, int]]:
    """Windows of at most `size` tokens, each `stride` after the one before, that together cover all `length` tokens.

    Not left to the tokenizers library, because its versions 0.23.1 and 0.23.2 lose windows. An empty text has one empty
    window.
    """
    if not 0 < stride <= size:
        raise BadConfig(
            f"A stride of {stride} leaves gaps or does not advance: use 1 to {size}, the size of the window."
        )
    starts = range(0, max(length - size, 0) + stride, stride)
    return [(start, min(start + size, length)) for start in starts]
