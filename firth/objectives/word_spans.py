"""Spans of whole words in the sequences of a pack, drawn for all sequences at once.

In: a pack, whose texts are single pieces. Out: its words, and random spans of them. Words are those of the stored
borders (in Chinese, the segmenter's). All draws are keyed by sequence, so they do not depend on the rest of the pack.

Suffixes: B sequences, W words of all sequences, T tokens of their texts (no special ones), J spans of all sequences.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from firth import rng
from firth.data.packing import Pack
from firth.ragged import owners_of, places_of, ranges, starts_of

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class PackText:
    """The texts of a pack's sequences, end to end and without special tokens."""

    ids_T: np.ndarray
    sequence_T: np.ndarray
    word_starts_T: np.ndarray
    rows_B: np.ndarray
    """The number of each sequence in the plan: the counter of its random numbers."""

    @cached_property
    def sizes_B(self) -> np.ndarray:
        """Tokens of each sequence."""
        return np.bincount(self.sequence_T, minlength=len(self.rows_B))

    @cached_property
    def starts_B(self) -> np.ndarray:
        """The first token of each sequence."""
        return starts_of(self.sizes_B)

    @cached_property
    def offsets_T(self) -> np.ndarray:
        """The place of each token in its sequence."""
        return places_of(self.sizes_B)

    @cached_property
    def words(self) -> "TextWords":
        # A text may begin in the middle of a word; what is there of it counts as a word.
        is_first_T = self.word_starts_T | (self.offsets_T == 0)
        first_W = np.flatnonzero(is_first_T)
        ends_W = np.append(first_W, len(self.ids_T))[1:]
        sequence_W = self.sequence_T[first_W]
        counts_B = np.bincount(sequence_W, minlength=len(self.rows_B))
        return TextWords(first_W, ends_W, sequence_W, counts_B)


@dataclass(frozen=True)
class TextWords:
    """The words of a text."""

    first_W: np.ndarray
    """The first token of each word."""
    ends_W: np.ndarray
    """The token after its last."""
    sequence_W: np.ndarray
    counts_B: np.ndarray
    """Words of each sequence."""

    @property
    def starts_B(self) -> np.ndarray:
        """The first word of each sequence."""
        return starts_of(self.counts_B)


@dataclass(frozen=True)
class Spans:
    """Spans of a text's tokens, in the order of the text; none is empty and none overlap."""

    first_J: np.ndarray
    ends_J: np.ndarray
    sequence_J: np.ndarray
    number_J: np.ndarray
    """The number of each span in its sequence."""

    def tokens(self) -> np.ndarray:
        """All tokens in spans."""
        return ranges(self.first_J, self.ends_J)


def text_of(pack: Pack) -> PackText:
    """The text of a pack without its special tokens."""
    tokens = np.flatnonzero(pack.ordinary_N)
    ids_T = pack.ids_N[tokens]
    sequence_T = pack.sequence_N[tokens]
    word_starts_T = pack.word_starts_N[tokens]
    return PackText(ids_T, sequence_T, word_starts_T, pack.rows_B)


def rounded(values_B: np.ndarray, rows_B: np.ndarray, *, key: np.uint64, purpose: int) -> np.ndarray:
    """Whole numbers that are these values on average: rounded up or down at random."""
    draws_B = rng.uniform(key, rows_B, purpose)
    return np.asarray(np.floor(values_B + draws_B), np.int64)


def composition(
    totals_B: np.ndarray,
    parts_B: np.ndarray,
    rows_B: np.ndarray,
    *,
    key: np.uint64,
    purpose: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Each total as a sum of so many parts of at least 1, all sums equally likely: the parts end to end, and whose.

    A total of t is a row of t items. Its parts begin at the first item and at some of the others, drawn at random.
    """
    sequence = owners_of(totals_B)
    number = places_of(totals_B)
    draws = rng.uniform(key, rows_B[sequence], number, purpose)
    draws[number == 0] = -1.0  # always comes first: a part begins there
    # Draws are below 1, so twice the sequence sorts by sequence, and at random within each sequence.
    order = np.argsort(2 * sequence + draws, kind="stable")
    is_start = np.zeros(len(sequence), bool)
    is_start[order] = number < parts_B[sequence]  # after sorting, `number` is an item's rank in its sequence
    starts = np.flatnonzero(is_start)
    ends = np.append(starts, len(sequence))[1:]
    return ends - starts, sequence[starts]


def place_spans(
    text: PackText,
    sizes_J: np.ndarray,
    counts_B: np.ndarray,
    *,
    min_gap: int,
    key: np.uint64,
    purpose: int,
) -> Spans:
    """Spans of these numbers of words at random places: all places are equally likely.

    `sizes_J` lists the spans of the first sequence, then those of the second, and so on; `counts_B` says how many each
    sequence has. There are at least `min_gap` (0 or 1) words between two spans.
    """
    words = text.words
    num_sequences = len(text.rows_B)
    sequence_J = np.repeat(np.arange(num_sequences), counts_B)
    taken_B = np.bincount(sequence_J, sizes_J, minlength=num_sequences).astype(np.int64)
    # A sequence with j spans has j + 1 gaps. Those at its ends may be empty, and with min_gap 0 all of them. Parts of a
    # composition are never empty, so each such gap is drawn one too large.
    num_too_large_B = counts_B + 1
    if min_gap:
        num_too_large_B = np.full(num_sequences, 2)
    items_B = words.counts_B - taken_B + num_too_large_B
    num_gaps_B = counts_B + 1
    gaps, gap_sequence = composition(items_B, num_gaps_B, text.rows_B, key=key, purpose=purpose)
    number = places_of(num_gaps_B)
    # The gap before each span: all but the last of a sequence.
    is_before_span = number < counts_B[gap_sequence]
    number_J = number[is_before_span]
    too_large_by_J = np.where(number_J == 0, 1, 1 - min_gap)
    gaps_J = gaps[is_before_span] - too_large_by_J
    # A span ends behind all gaps and spans of its sequence up to it.
    ends_in_all_J = np.cumsum(gaps_J + sizes_J)
    first_span_B = starts_of(counts_B)
    before_B = np.append(0, ends_in_all_J)[first_span_B]
    word_end_J = ends_in_all_J - before_B[sequence_J] + words.starts_B[sequence_J]
    first_word_J = word_end_J - sizes_J
    first_J = words.first_W[first_word_J]
    ends_J = words.ends_W[word_end_J - 1]
    return Spans(first_J, ends_J, sequence_J, number_J)


def span_hashes(ids: np.ndarray, first_J: np.ndarray, ends_J: np.ndarray) -> np.ndarray:
    """A number for each span, equal for equal ids: a 64-bit polynomial hash."""
    sizes_J = ends_J - first_J
    tokens = ranges(first_J, ends_J)
    # Tokens of a span are counted from 1, ids from 1: no term vanishes.
    place = tokens - np.repeat(first_J, sizes_J) + 1
    digits = ids[tokens].astype(np.uint64) + np.uint64(1)
    with np.errstate(over="ignore"):
        terms = digits * _MULTIPLIER ** place.astype(np.uint64)
        # The sum of a span is the difference of two running sums, also where these overflow.
        running = np.cumsum(terms, dtype=np.uint64)
        sums = np.concatenate([np.zeros(1, np.uint64), running])
    ends = np.cumsum(sizes_J)
    starts = ends - sizes_J
    return np.asarray(sums[ends] - sums[starts]).astype(np.int64)
