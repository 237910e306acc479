"""The words of an index: which passages hold a word and how often, as files; a question -> its best passages by BM25.

BM25 (Robertson & Zaragoza 2009) adds, for every word of the question that a passage holds,

    idf * f * (K1 + 1) / (f + K1 * (1 - B + B * length / mean length))        f: how often the passage holds it

Here the sum is divided by the largest one that the question can reach, so that a score is between 0 and 1 and can be
added to a cosine. The folder of an index holds

    words.npy          W uint64        fingerprints of the words, ascending
    word_bounds.npy    W + 1 int64     where each word's entries begin in the two files below
    word_passages.npy  int32           the passages that hold the word, ascending
    word_counts.npy    uint8           how often each of them holds it
    word_lengths.npy   N int32         the words of each passage
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firth.corpus.cleaning import fingerprints
from firth.data.spoken import words_of
from firth.ragged import bounds_of

K1 = 1.2
B = 0.75
MOST_COUNTED = 255
"""A word counts at most so often in a passage: it must fit into a byte."""


@dataclass(frozen=True)
class WordCounts:
    """What the passages hold: M entries of a word in a passage, passage by passage, and N lengths."""

    words: Sequence[str]
    """All different words, in the order in which they occur first."""
    words_M: np.ndarray
    """The number of each entry's word ..."""
    passages_M: np.ndarray
    """... that of its passage ..."""
    counts_M: np.ndarray
    """... and how often the passage holds the word."""
    lengths_N: np.ndarray


def write_words(folder: Path, texts: Sequence[str]) -> None:
    """Writes the words of passages into the folder of their index."""
    counted = _count_words(texts)
    keys_W = fingerprints([word.encode() for word in counted.words])
    order_W = np.argsort(keys_W, kind="stable")
    # The place of each word in the order of the fingerprints.
    places_W = np.empty(len(keys_W), np.int32)
    places_W[order_W] = np.arange(len(keys_W), dtype=np.int32)

    # The entries word by word; those of one word stay in the order of the passages.
    places_M = places_W[counted.words_M]
    order_M = np.argsort(places_M, kind="stable")
    num_entries_W = np.bincount(places_M, minlength=len(keys_W))
    bounds_W1 = bounds_of(num_entries_W)

    np.save(folder / "words.npy", keys_W[order_W])
    np.save(folder / "word_bounds.npy", bounds_W1)
    np.save(folder / "word_passages.npy", counted.passages_M[order_M])
    np.save(folder / "word_counts.npy", counted.counts_M[order_M])
    np.save(folder / "word_lengths.npy", counted.lengths_N)


def _count_words(texts: Sequence[str]) -> WordCounts:
    numbers: dict[str, int] = {}
    passage_words: list[np.ndarray] = []
    passage_counts: list[np.ndarray] = []
    lengths_N = np.zeros(len(texts), np.int32)
    for passage, text in enumerate(texts):
        counted = Counter(words_of(text))
        words = []
        counts = []
        for word, count in counted.items():
            words.append(numbers.setdefault(word, len(numbers)))
            counts.append(min(count, MOST_COUNTED))
        passage_words.append(np.array(words, np.int32))
        passage_counts.append(np.array(counts, np.uint8))
        lengths_N[passage] = counted.total()
    num_entries = [len(words) for words in passage_words]
    return WordCounts(
        words=list(numbers),
        words_M=np.concatenate(passage_words),
        passages_M=np.repeat(np.arange(len(texts), dtype=np.int32), num_entries),
        counts_M=np.concatenate(passage_counts),
        lengths_N=lengths_N,
    )


class WordIndex:
    """The words of an index that is open."""

    def __init__(self, folder: Path) -> None:
        self._keys_W: np.ndarray = np.load(folder / "words.npy", mmap_mode="r")
        self._bounds_W1: np.ndarray = np.load(folder / "word_bounds.npy", mmap_mode="r")
        self._passages_M: np.ndarray = np.load(folder / "word_passages.npy", mmap_mode="r")
        self._counts_M: np.ndarray = np.load(folder / "word_counts.npy", mmap_mode="r")
        lengths_N = np.load(folder / "word_lengths.npy").astype(np.float32)
        mean_length = max(1.0, float(lengths_N.mean()))
        self._norms_N = K1 * (1 - B + B * lengths_N / mean_length)

    def weights(self, question: str) -> dict[str, float]:
        """The words of a question with their idf, in alphabetical order: the fewer passages hold a word, the higher."""
        num_passages = len(self._norms_N)
        idfs: dict[str, float] = {}
        for word in sorted(set(words_of(question))):
            start, end = self._bounds(word)
            num_holding = end - start
            idfs[word] = math.log(1 + (num_passages - num_holding + 0.5) / (num_holding + 0.5))
        return idfs

    def weights_of_held(self, question: str) -> dict[str, float]:
        """The same without words that no passage holds: they weigh most, and nothing of a passage shows them."""
        held: dict[str, float] = {}
        for word, idf in self.weights(question).items():
            start, end = self._bounds(word)
            if end > start:
                held[word] = idf
        return held

    def scores(self, question: str) -> np.ndarray:
        """The score of every passage, from 0 (it has none of the question's words) to 1."""
        scores_N = np.zeros(len(self._norms_N), np.float32)
        best_possible = 0.0
        for word, idf in self.weights(question).items():
            passages_P, counts_P = self._entries(word)
            highest = idf * (K1 + 1)
            best_possible += highest
            norms_P = self._norms_N[passages_P]
            # No passage occurs twice among a word's entries.
            scores_N[passages_P] += highest * counts_P / (counts_P + norms_P)
        return scores_N / max(best_possible, 1e-12)

    def _bounds(self, word: str) -> tuple[int, int]:
        """Where the entries of a word begin and end; there are none of a word that no passage holds."""
        [key] = fingerprints([word.encode()])
        place = int(np.searchsorted(self._keys_W, key))
        is_known = place < len(self._keys_W) and self._keys_W[place] == key
        if not is_known:
            return 0, 0
        return int(self._bounds_W1[place]), int(self._bounds_W1[place + 1])

    def _entries(self, word: str) -> tuple[np.ndarray, np.ndarray]:
        """The P passages that hold a word, and how often each does."""
        start, end = self._bounds(word)
        passages_P = np.asarray(self._passages_M[start:end])
        counts_P = self._counts_M[start:end].astype(np.float32)
        return passages_P, counts_P
