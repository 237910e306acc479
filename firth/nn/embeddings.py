"""BERT's input: token + learned position + segment embeddings, normalised (Devlin et al. 2018, figure 2)."""

from torch import Tensor, nn


class Embeddings(nn.Module):
    def __init__(
        self, vocab_size: int, width: int, *, max_positions: int, num_segments: int, dropout: float, norm_eps: float
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(max_positions, width)
        self.segments = nn.Embedding(num_segments, width)
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids_N: Tensor, positions_N: Tensor, segments_N: Tensor) -> Tensor:
        x_ND = self.tokens(ids_N) + self.segments(segments_N) + self.positions(positions_N)
        out_ND: Tensor = self.dropout(self.norm(x_ND))
        return out_ND
