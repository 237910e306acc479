"""SimHash (Charikar 2002): similar texts get 64-bit fingerprints that differ in few bits.

In: texts. Out: fingerprints, and the pairs within a distance, found without comparing all with all: fingerprints that
differ in at most k bits agree in at least one of k + 1 stretches of bits (Manku et al. 2007).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from firth import rng
from firth.data.spoken import words_of
from firth.errors import BadConfig
from firth.types import Document

BITS = 64
_PAIRS_AT_ONCE = 1 << 20
"""Pairs of a bucket that are compared at once."""
_key = rng.key("simhash")


def fingerprint(text: str, *, shingle: int = 3) -> int:
    """Each bit is the majority vote of the hashes of all runs of `shingle` words; a text without words has 0."""
    words = words_of(text)
    if not words:
        return 0
    hashes = np.array([_hash(word) for word in words], np.uint64)
    size = min(shingle, len(words))
    num_runs = len(hashes) - size + 1
    # Column i has word i of every run; `bits` mixes the columns to one hash of each run.
    columns = [hashes[i : i + num_runs] for i in range(size)]
    run_hashes = rng.bits(_key, *columns)
    run_bytes = run_hashes.astype("<u8").view(np.uint8).reshape(-1, 8)
    votes = np.unpackbits(run_bytes, axis=1).sum(0, dtype=np.int64)
    majority = np.packbits(2 * votes > num_runs)
    return int.from_bytes(majority.tobytes(), "little")


def distance(first: int, second: int) -> int:
    """The number of bits in which two fingerprints differ."""
    return (first ^ second).bit_count()


def near_pairs(fingerprints: Sequence[int], *, within: int = 3) -> Iterator[tuple[int, int, int]]:
    """(earlier position, later position, distance) of every two fingerprints that differ in at most `within` bits."""
    all_marks = np.array(fingerprints, np.uint64)
    masks = _stretch_masks(within)
    # 0 is a text without words, which is similar to nothing.
    known = np.flatnonzero(all_marks)
    marks = all_marks[known]
    for number, mask in enumerate(masks):
        for first, second in _equal_pairs(marks & mask):
            difference = marks[first] ^ marks[second]
            num_bits = np.bitwise_count(difference)
            is_near = num_bits <= within
            # A pair is reported for the first stretch it shares only.
            for earlier_mask in masks[:number]:
                is_near &= (difference & earlier_mask) != 0
            firsts = known[first][is_near].tolist()
            seconds = known[second][is_near].tolist()
            distances = num_bits[is_near].tolist()
            yield from zip(firsts, seconds, distances, strict=True)


def drop_near_duplicates(
    documents: Iterable[Document],
    *,
    within: int,
    tally: Counter[str],
    shingle: int = 3,
) -> Iterator[Document]:
    """The documents without those that are nearly an earlier one; the tally counts the dropped ones."""
    index = NearIndex(within)
    for document in documents:
        mark = fingerprint("\n".join(document.lines), shingle=shingle)
        if index.add_if_far(mark):
            yield document
        else:
            tally["near_duplicate_documents"] += 1


class NearIndex:
    """Fingerprints seen so far, in one table for each stretch of bits."""

    def __init__(self, within: int) -> None:
        self.within = within
        self.tables: list[tuple[int, dict[int, list[int]]]] = []
        for mask in _stretch_masks(within):
            self.tables.append((int(mask), {}))

    def add_if_far(self, mark: int) -> bool:
        """Adds a fingerprint, unless it is near to an earlier one; a text without words is near to none."""
        if mark == 0:
            return True
        if self.has_near(mark):
            return False
        self.add(mark)
        return True

    def has_near(self, mark: int) -> bool:
        """Whether a fingerprint that was added differs from this one in at most `within` bits."""
        for mask, table in self.tables:
            for other in table.get(mark & mask, ()):
                if distance(mark, other) <= self.within:
                    return True
        return False

    def add(self, mark: int) -> None:
        for mask, table in self.tables:
            table.setdefault(mark & mask, []).append(mark)


def _stretch_masks(within: int) -> list[np.uint64]:
    """Masks that cut 64 bits into one stretch more than the bits that may differ."""
    if not 0 <= within < BITS // 2:
        raise BadConfig(f"A distance of {within} bits says nothing of likeness: choose 0 to {BITS // 2 - 1}.")
    num_stretches = within + 1
    edges = [round(i * BITS / num_stretches) for i in range(num_stretches + 1)]
    masks = []
    for start, end in pairwise(edges):
        mask = (1 << end) - (1 << start)
        masks.append(np.uint64(mask))
    return masks


def _equal_pairs(values: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All pairs of positions with the same value, some at a time."""
    order = np.argsort(values, kind="stable")
    is_border = np.diff(values[order]) != 0
    # A bucket: the positions of one value, in order.
    for bucket in np.split(order, np.flatnonzero(is_border) + 1):
        yield from _pairs_of(bucket)


def _pairs_of(bucket: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All pairs of a bucket, of some first positions at a time."""
    columns = np.arange(len(bucket))
    num_rows = len(bucket) - 1
    step = max(1, _PAIRS_AT_ONCE // len(bucket))
    for start in range(0, num_rows, step):
        rows = np.arange(start, min(start + step, num_rows))
        # A table of rows x columns, of which the pairs above the diagonal are taken.
        is_later = columns[None] > rows[:, None]
        first, second = np.nonzero(is_later)
        yield bucket[rows[first]], bucket[second]


@lru_cache(1 << 18)
def _hash(word: str) -> int:
    return int(rng.key("word", word))
