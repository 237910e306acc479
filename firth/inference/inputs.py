"""Texts made ready for a model: texts in, ids out. What remains is computing, and that is done for many together; for
masks also the end of it: states in, candidates out."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from firth.objectives.masked_lm import MaskedLM
from firth.tensors import States
from firth.tokenizers import Tokenizer
from firth.tokenizers.vocab import Vocab
from firth.types import Fill

SCORED_MASKS = 64
"""Masks scored at once: each has a number for every token of the vocabulary."""


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


def likeliest(
    head: MaskedLM, states: States, rows_P: np.ndarray, *, vocab: Vocab, top: int
) -> Iterator[tuple[list[float], list[int]]]:
    """For each mask the probabilities and the ids of its likeliest tokens, special ones left out."""
    for start in range(0, len(rows_P), SCORED_MASKS):
        some_P = torch.from_numpy(rows_P[start : start + SCORED_MASKS])
        scores_PV = head.scores(states, some_P)[:, : len(vocab)]
        scores_PV[:, sorted(vocab.specials)] = -torch.inf
        best = scores_PV.softmax(-1).topk(min(top, len(vocab)))
        yield from zip(best.values.tolist(), best.indices.tolist(), strict=True)


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
