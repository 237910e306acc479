"""Texts as the sequences of tokens that a model reads: what embedding's two steps pass to each other."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from firth.data.items import Window

TokenSequence = np.ndarray | Window
"""The ids of a sequence with its special tokens; a `Window` for a tokenizer whose tokens have parts (n-grams)."""


@dataclass(frozen=True)
class TokenizedTexts:
    """Texts ready for `Embedder.embed_tokenized`."""

    sequences: list[TokenSequence]
    text_of_sequence: np.ndarray
    """For each sequence the number of its text: a long text is read in several windows."""
    num_texts: int

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.sequences))

    @property
    def ids(self) -> list[np.ndarray]:
        """The ids of each sequence, special tokens included."""
        found = []
        for sequence in self.sequences:
            ids = sequence.ids if isinstance(sequence, Window) else sequence
            found.append(ids)
        return found

    def add_windows(self, sums: np.ndarray) -> np.ndarray:
        """One vector for each text: the sum of its windows' vectors."""
        if len(self.text_of_sequence) == self.num_texts:
            return sums
        added = np.zeros((self.num_texts, sums.shape[1]), np.float32)
        np.add.at(added, self.text_of_sequence, sums)
        return added

    def merge_windows(self, vectors: np.ndarray) -> np.ndarray:
        """One vector for each text: the mean of its windows' vectors, weighted by their lengths."""
        if len(self.text_of_sequence) == self.num_texts:
            return vectors
        # In double precision, because a long text has many windows.
        weights = np.array([len(sequence) for sequence in self.sequences], np.float64)
        sums = np.zeros((self.num_texts, vectors.shape[1]))
        np.add.at(sums, self.text_of_sequence, vectors * weights[:, None])
        total_weights = np.bincount(self.text_of_sequence, weights, self.num_texts)
        return (sums / total_weights[:, None]).astype(np.float32)


def all_sequences(requests: Sequence[TokenizedTexts]) -> list[TokenSequence]:
    """The sequences of all requests, one after the other."""
    sequences: list[TokenSequence] = []
    for request in requests:
        sequences += request.sequences
    return sequences


def deal(rows: np.ndarray, requests: Sequence[TokenizedTexts]) -> list[np.ndarray]:
    """Rows of all sequences, dealt back to the requests that they belong to."""
    counts = [len(request.sequences) for request in requests]
    ends = np.cumsum(counts)
    return np.split(rows, ends[:-1])
