"""Texts made ready for a model: texts in, ids out. What remains is computing, and that is done for many together."""

from dataclasses import dataclass

import numpy as np

from firth.tokenizers import Tokenizer
from firth.types import Fill


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


def filled(tokenizer: Tokenizer, text: str, span: np.ndarray, *, token: int, probability: float) -> Fill:
    """A candidate for the mask at `span`, and the text with it."""
    piece = tokenizer.vocab.tokens[token]
    before, after = text[: span[0]], text[span[1] :]
    if hasattr(tokenizer, "spelled"):  # pieces that bring the space before them along
        piece = tokenizer.spelled(token)
        joined = before.rstrip() + piece if piece.startswith(" ") else before + piece
        return Fill(piece.strip() or piece, probability, joined.lstrip() + after)
    if tokenizer.continues[token]:
        return Fill(piece, probability, before.rstrip() + piece.removeprefix("##") + after)
    return Fill(piece, probability, before + piece + after)
