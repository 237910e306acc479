"""BERT's input: token + learned position + segment embeddings, normalised (Devlin et al. 2018, figure 2).

In: ids, positions and segments of all tokens. Out: their first states. Where the embedding is narrower than the states
(factorised, as in ELECTRA), a projection widens it.
"""

import torch
from torch import Tensor, nn

from firth.nn.dropout import Dropout


class OneSegment(nn.Embedding):
    """One kind of segment only (RoBERTa): every token has its row."""

    def __init__(self, width: int) -> None:
        super().__init__(1, width)

    def forward(self, segments_N: Tensor) -> Tensor:
        return self.weight


class NoEmbedding(nn.Module):
    """Nothing is added: a model without segments (DistilBERT), or without positions in its input (NomicBERT)."""

    def forward(self, numbers_N: Tensor) -> Tensor:
        return torch.zeros((), device=numbers_N.device)


def _segments(count: int, width: int) -> nn.Module:
    """The embedding of this many kinds of segment."""
    if count == 0:
        return NoEmbedding()
    if count == 1:
        return OneSegment(width)
    return nn.Embedding(count, width)


class Embeddings(nn.Module):
    """Token, position and segment embeddings; a `max_positions` or `num_segments` of 0 leaves these out."""

    def __init__(
        self,
        vocab_size: int,
        width: int,
        *,
        out_width: int,
        max_positions: int,
        num_segments: int,
        dropout: float,
        norm_eps: float,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(max_positions, width) if max_positions else NoEmbedding()
        self.segments = _segments(num_segments, width)
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.dropout = Dropout(dropout)
        self.project: nn.Module = nn.Identity()
        if out_width != width:
            self.project = nn.Linear(width, out_width)

    def forward(self, ids_N: Tensor, positions_N: Tensor, segments_N: Tensor) -> Tensor:
        x_NE = self.tokens(ids_N) + self.segments(segments_N) + self.positions(positions_N)
        out_ND: Tensor = self.project(self.dropout(self.norm(x_NE)))
        return out_ND
