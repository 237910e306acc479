"""SimHash (Charikar 2002): texts that are alike get 64-bit fingerprints that differ in few bits.

In: texts. Out: fingerprints, and the pairs within a distance, found without comparing all with all: fingerprints that
differ in at most k bits agree in at least one of k + 1 stretches of bits (Manku et al. 2007).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from firth import chance
from firth.data.spoken import words_of
from firth.errors import BadConfig
from firth.types import Document

BITS = 64
_key = chance.key("simhash")
_FAR = 1 << 20
"""Pairs of a bucket that are compared at once."""


def fingerprint(text: str, *, shingle: int = 3) -> int:
    """Each bit is what most runs of `shingle` words say by their hashes; a text without words has 0."""
    words = words_of(text)
    if not words:
        return 0
    hashes = np.array([_hash(word) for word in words], np.uint64)
    size = min(shingle, len(words))
    runs = chance.bits(_key, *(hashes[i : len(hashes) - size + 1 + i] for i in range(size)))
    votes = np.unpackbits(runs.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1).sum(0, dtype=np.int64)
    return int.from_bytes(np.packbits(2 * votes > len(runs)).tobytes(), "little")


def distance(first: int, second: int) -> int:
    """The bits in which two fingerprints differ."""
    return (first ^ second).bit_count()


def near_pairs(fingerprints: Sequence[int], *, within: int = 3) -> Iterator[tuple[int, int, int]]:
    """Every pair of places (the earlier first) whose fingerprints differ in at most `within` bits, and in how many."""
    marks, masks = np.array(fingerprints, np.uint64), _stretches(within)
    known = np.flatnonzero(marks)  # 0 is a text without words, which is like nothing
    marks = marks[known]
    for number, mask in enumerate(masks):
        for first, second in _sharing(marks & mask):
            difference = marks[first] ^ marks[second]
            bits = np.bitwise_count(difference)
            near = bits <= within
            for earlier in masks[:number]:  # a pair is told by the first stretch it shares
                near &= (difference & earlier) != 0
            yield from zip(*(places[near].tolist() for places in (known[first], known[second], bits)), strict=True)


def drop_near_duplicates(
    documents: Iterable[Document], *, within: int, tally: Counter[str], shingle: int = 3
) -> Iterator[Document]:
    """The documents without those that are nearly one that came before; the tally counts the dropped ones."""
    masks = [int(mask) for mask in _stretches(within)]
    seen: list[dict[int, list[int]]] = [{} for _ in masks]
    for document in documents:
        mark = fingerprint("\n".join(document.lines), shingle=shingle)
        if not mark:  # no words
            yield document
            continue
        known = (old for mask, bucket in zip(masks, seen, strict=True) for old in bucket.get(mark & mask, ()))
        if any(distance(mark, old) <= within for old in known):
            tally["near_duplicate_documents"] += 1
            continue
        for mask, bucket in zip(masks, seen, strict=True):
            bucket.setdefault(mark & mask, []).append(mark)
        yield document


def _stretches(within: int) -> list[np.uint64]:
    """Masks that cut 64 bits into one stretch more than may differ."""
    if not 0 <= within < BITS // 2:
        raise BadConfig(f"A distance of {within} bits says nothing of likeness: choose 0 to {BITS // 2 - 1}.")
    edges = [round(i * BITS / (within + 1)) for i in range(within + 2)]
    return [np.uint64((1 << end) - (1 << start)) for start, end in pairwise(edges)]


def _sharing(values: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All pairs of places with the same value, some at a time."""
    order = np.argsort(values, kind="stable")
    cuts = np.flatnonzero(np.diff(values[order])) + 1
    for bucket in np.split(order, cuts):
        step = max(1, _FAR // len(bucket))
        for start in range(0, len(bucket) - 1, step):
            rows = np.arange(start, min(start + step, len(bucket) - 1))
            first, second = np.nonzero(np.arange(len(bucket))[None] > rows[:, None])
            yield bucket[rows[first]], bucket[second]


@lru_cache(1 << 18)
def _hash(word: str) -> int:
    return int(chance.key("word", word))
