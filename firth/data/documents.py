"""Documents as counts of words: what tf-idf, LSA and LDA see of a text. In: a view of shards. Out: sparse rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from firth.data.stream import Stream, ranges

_BLOCK_TOKENS = 1 << 20


@dataclass(frozen=True)
class Counts:
    """Row d has words_M[bounds_D1[d] : bounds_D1[d + 1]], ascending, each so many times."""

    bounds_D1: np.ndarray
    words_M: np.ndarray
    counts_M: np.ndarray

    def __len__(self) -> int:
        return len(self.bounds_D1) - 1

    @property
    def owners_M(self) -> np.ndarray:
        """The row of every entry."""
        return np.repeat(np.arange(len(self)), np.diff(self.bounds_D1))

    def rows(self, index: np.ndarray) -> "Counts":
        """Some rows, in this order."""
        starts, ends = self.bounds_D1[index], self.bounds_D1[index + 1]
        places = ranges(starts, ends)
        return Counts(np.concatenate([[0], np.cumsum(ends - starts)]), self.words_M[places], self.counts_M[places])


def count_words(stream: Stream, vocab_size: int, *, without: frozenset[int]) -> Counts:
    """The words of every document of a view; those in `without` are left out, so a row may be empty."""
    parts = list(_blocks(stream, vocab_size, without=without))
    sizes = np.concatenate([np.zeros(1, np.int64), *(sizes for sizes, _, _ in parts)])
    words, counts = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
    return Counts(np.cumsum(sizes), words, counts)


def _blocks(
    stream: Stream, vocab_size: int, *, without: frozenset[int]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Entries of each document, and their words and counts, for some documents at a time: sorting needs room."""
    starts = stream.starts_S[stream.bounds_D1[:-1]]
    ends = stream.ends_S[stream.bounds_D1[1:] - 1]
    lengths = ends - starts
    blocks = np.cumsum(lengths) // _BLOCK_TOKENS
    kept = np.ones(vocab_size, bool)
    kept[sorted(without)] = False
    for first, last in pairwise([*np.unique(blocks, return_index=True)[1].tolist(), len(blocks)]):  # they ascend
        inside = slice(first, last)
        ids = stream.shards.ids[ranges(starts[inside], ends[inside])].astype(np.int64)
        owners = np.repeat(np.arange(last - first), lengths[inside])
        keys, counts = np.unique((owners * vocab_size + ids)[kept[ids]], return_counts=True)
        sizes = np.bincount(keys // vocab_size, minlength=last - first)
        yield sizes, (keys % vocab_size).astype(np.int32), counts.astype(np.int32)


def idf(counts: Counts, vocab_size: int, kind: str = "smooth") -> np.ndarray:
    """How telling each word is: the logarithm of documents by documents with it (Spärck Jones 1972).

    `smooth` counts one more document that has every word and adds 1, so no word weighs nothing; `none` weighs all
    alike.
    """
    if kind == "none":
        return np.ones(vocab_size)
    having = np.bincount(counts.words_M, minlength=vocab_size)
    if kind == "smooth":
        return np.log((1 + len(counts)) / (1 + having)) + 1
    return np.log(len(counts) / np.maximum(having, 1)) * (having > 0)
