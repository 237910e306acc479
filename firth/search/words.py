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
from pathlib import Path

import numpy as np

from firth.corpus.cleaning import fingerprints
from firth.data.spoken import words_of

K1 = 1.2
B = 0.75
MOST_COUNTED = 255
"""A word counts at most so often in a passage: it must fit into a byte."""


def write_words(folder: Path, texts: Sequence[str]) -> None:
    """Writes the words of passages into the folder of their index."""
    numbers: dict[str, int] = {}
    passage_words: list[np.ndarray] = []
    passage_counts: list[np.ndarray] = []
    lengths = np.zeros(len(texts), np.int32)
    for i, text in enumerate(texts):
        counted = Counter(words_of(text))
        lengths[i] = counted.total()
        words = [numbers.setdefault(word, len(numbers)) for word in counted]
        counts = [min(count, MOST_COUNTED) for count in counted.values()]
        passage_words.append(np.array(words, np.int32))
        passage_counts.append(np.array(counts, np.uint8))
    sizes = [len(words) for words in passage_words]
    passages = np.repeat(np.arange(len(texts), dtype=np.int32), sizes)

    keys = fingerprints([word.encode() for word in numbers])
    order_W = np.argsort(keys)
    # The place of each word in the order of the fingerprints.
    places_W = np.empty(len(keys), np.int32)
    places_W[order_W] = np.arange(len(keys), dtype=np.int32)
    entry_words = places_W[np.concatenate(passage_words)]
    order = np.argsort(entry_words, kind="stable")
    counts_W = np.bincount(entry_words, minlength=len(keys))
    np.save(folder / "words.npy", keys[order_W])
    np.save(folder / "word_bounds.npy", np.concatenate([[0], np.cumsum(counts_W)]))
    np.save(folder / "word_passages.npy", passages[order])
    np.save(folder / "word_counts.npy", np.concatenate(passage_counts)[order])
    np.save(folder / "word_lengths.npy", lengths)


class WordIndex:
    """The words of an index that is open."""

    def __init__(self, folder: Path) -> None:
        self._keys_W: np.ndarray = np.load(folder / "words.npy", mmap_mode="r")
        self._bounds_W1: np.ndarray = np.load(folder / "word_bounds.npy", mmap_mode="r")
        self._passages: np.ndarray = np.load(folder / "word_passages.npy", mmap_mode="r")
        self._counts: np.ndarray = np.load(folder / "word_counts.npy", mmap_mode="r")
        lengths_N = np.load(folder / "word_lengths.npy").astype(np.float32)
        mean_length = max(1.0, float(lengths_N.mean()))
        self._norms_N = K1 * (1 - B + B * lengths_N / mean_length)

    def scores(self, question: str) -> np.ndarray:
        """The score of every passage, from 0 (it has none of the question's words) to 1."""
        scores_N = np.zeros(len(self._norms_N), np.float32)
        best_possible = 0.0
        for word in sorted(set(words_of(question))):
            passages, counts = self._entries(word)
            idf = math.log(1 + (len(scores_N) - len(passages) + 0.5) / (len(passages) + 0.5))
            best_possible += idf * (K1 + 1)
            # No passage occurs twice among a word's entries.
            scores_N[passages] += idf * (K1 + 1) * counts / (counts + self._norms_N[passages])
        return scores_N / max(best_possible, 1e-12)

    def _entries(self, word: str) -> tuple[np.ndarray, np.ndarray]:
        """The passages that hold a word, and how often each does."""
        [key] = fingerprints([word.encode()])
        place = int(np.searchsorted(self._keys_W, key))
        if place == len(self._keys_W) or self._keys_W[place] != key:
            return np.empty(0, np.int32), np.empty(0, np.float32)
        start, end = self._bounds_W1[place : place + 2].tolist()
        return np.asarray(self._passages[start:end]), self._counts[start:end].astype(np.float32)
