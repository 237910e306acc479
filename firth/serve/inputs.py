"""Texts made ready for a model: texts in, ids out. What remains is computing, and that is done for many together."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Cut:
    """Texts ready for `Model.vectors`: sequences of ids with their special tokens, and for each the text it is of."""

    sequences: list[np.ndarray]
    owners: np.ndarray
    num_texts: int

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.sequences))

    def merge(self, vectors: np.ndarray) -> np.ndarray:
        """Windows of one text become their mean, weighted by length."""
        if len(self.owners) == self.num_texts:
            return vectors
        weights = np.array([len(ids) for ids in self.sequences], np.float64)
        totals = np.zeros((self.num_texts, vectors.shape[1]))
        np.add.at(totals, self.owners, vectors * weights[:, None])
        return (totals / np.bincount(self.owners, weights, self.num_texts)[:, None]).astype(np.float32)


@dataclass(frozen=True)
class Masked:
    """A text ready for `Model.fill_all`: its ids, which of them are masks, and where these stand in the text."""

    text: str
    ids: np.ndarray
    masks: np.ndarray
    spans: np.ndarray
