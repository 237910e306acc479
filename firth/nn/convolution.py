"""A convolution over packed sequences, added to other states: what DeBERTa-v2 has after its first block.

In: the states of all tokens. Out: LayerNorm(other + act(W [x_(n-r) ... x_(n+r)] + b)), where tokens beyond the bounds
of a sequence are zeros.
"""

import torch
from torch import Tensor, nn

from firth.nn.blocks import activation
from firth.nn.dropout import Dropout
from firth.nn.layout import token_sequences


class SequenceConvolution(nn.Module):
    def __init__(self, width: int, kernel_size: int, *, activation_name: str, norm_eps: float, dropout: float) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, kernel_size)
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.dropout = Dropout(dropout)
        self.activate = activation(activation_name)

    def forward(self, x_ND: Tensor, other_ND: Tensor, bounds_B1: Tensor) -> Tensor:
        kernel_size = self.conv.kernel_size[0]
        radius = (kernel_size - 1) // 2
        token_N = torch.arange(len(x_ND), device=x_ND.device)
        sequence_N = token_sequences(bounds_B1, len(x_ND))
        neighbours = []
        for offset in range(-radius, kernel_size - radius):
            wanted_N = token_N + offset
            rows_N = wanted_N.clamp(0, len(x_ND) - 1)
            is_inside_N = (sequence_N[rows_N] == sequence_N) & (rows_N == wanted_N)
            neighbours.append(x_ND[rows_N] * is_inside_N[:, None])
        windows = torch.stack(neighbours, 2)
        mixed_ND: Tensor = self.conv(windows)[..., 0]
        added_ND = self.activate(self.dropout(mixed_ND))
        out_ND: Tensor = self.norm(other_ND + added_ND)
        return out_ND
