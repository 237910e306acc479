"""Documents as counts of words, which is all that tf-idf, LSA and LDA use of a text.

In: a view of shards. Out: sparse rows, one per document. Suffixes: D documents, M entries of all rows end to end.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from firth.data.stream import CorpusView
from firth.ragged import bounds_of, owners_of, ranges

_BLOCK_TOKENS = 1 << 20
"""About the number of tokens that are counted at once: sorting needs memory."""


@dataclass(frozen=True)
class Counts:
    """Sparse rows: row d has the entries bounds_D1[d] to bounds_D1[d + 1], words in ascending order."""

    bounds_D1: np.ndarray
    words_M: np.ndarray
    counts_M: np.ndarray
    """How often each word occurs in its document."""

    def __len__(self) -> int:
        return len(self.bounds_D1) - 1

    @property
    def owners_M(self) -> np.ndarray:
        """The row of every entry."""
        return owners_of(np.diff(self.bounds_D1))

    def rows(self, index: np.ndarray) -> "Counts":
        """Some rows, in this order."""
        starts = self.bounds_D1[index]
        ends = self.bounds_D1[index + 1]
        bounds = bounds_of(ends - starts)
        entries = ranges(starts, ends)
        return Counts(bounds, self.words_M[entries], self.counts_M[entries])


def count_words(stream: CorpusView, vocab_size: int, *, without: frozenset[int]) -> Counts:
    """The words of every document of a view; those in `without` are left out, so a row may be empty."""
    sizes = [np.zeros(1, np.int64)]
    words = []
    counts = []
    for block_sizes, block_words, block_counts in _blocks(stream, vocab_size, without=without):
        sizes.append(block_sizes)
        words.append(block_words)
        counts.append(block_counts)
    bounds_D1 = np.cumsum(np.concatenate(sizes))
    return Counts(bounds_D1, np.concatenate(words), np.concatenate(counts))


def _blocks(
    stream: CorpusView,
    vocab_size: int,
    *,
    without: frozenset[int],
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For some documents at a time: the number of entries of each, and the words and counts of all."""
    starts_D = stream.starts_S[stream.bounds_D1[:-1]]
    ends_D = stream.ends_S[stream.bounds_D1[1:] - 1]
    lengths_D = ends_D - starts_D
    is_counted_V = np.ones(vocab_size, bool)
    is_counted_V[sorted(without)] = False
    block_D = np.cumsum(lengths_D) // _BLOCK_TOKENS
    # The first document of each block; block numbers ascend.
    _, first_documents = np.unique(block_D, return_index=True)
    for first, last in pairwise([*first_documents.tolist(), len(block_D)]):
        num_documents = last - first
        tokens = ranges(starts_D[first:last], ends_D[first:last])
        ids = stream.shards.ids[tokens].astype(np.int64)
        owners = np.repeat(np.arange(num_documents), lengths_D[first:last])
        # One number for each (document, word), so that a single sort counts all pairs.
        pairs = owners * vocab_size + ids
        pairs, counts = np.unique(pairs[is_counted_V[ids]], return_counts=True)
        sizes = np.bincount(pairs // vocab_size, minlength=num_documents)
        words = pairs % vocab_size
        yield sizes, words.astype(np.int32), counts.astype(np.int32)


def idf(counts: Counts, vocab_size: int, kind: str = "smooth") -> np.ndarray:
    """Inverse document frequency of each word: log(documents / documents with the word) (Spärck Jones 1972).

    `smooth` counts one more document that has every word and adds 1, so that no word has the weight 0; `none` gives
    all words the weight 1.
    """
    if kind == "none":
        return np.ones(vocab_size)
    num_documents = len(counts)
    num_with_word_V = np.bincount(counts.words_M, minlength=vocab_size)
    if kind == "smooth":
        return np.log((1 + num_documents) / (1 + num_with_word_V)) + 1
    # A word that never occurs has the weight 0.
    return np.log(num_documents / np.maximum(num_with_word_V, 1)) * (num_with_word_V > 0)
