"""Small networks on top of an encoder's states."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from firth.nn.blocks import activation

RECENT = 0.05
"""The last batch's share in running means, once there were many."""


class Pooler(nn.Module):
    """tanh(W x + b) of a sequence's first token: what BERT gives to sentence-level heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, first_BD: Tensor) -> Tensor:
        return torch.tanh(self.dense(first_BD))


class VocabularyHead(nn.Module):
    """Dense + activation + norm, then a product with the input embedding and a bias: scores over the vocabulary."""

    def __init__(self, width: int, vocab_size: int, *, table_width: int, activation_name: str, norm_eps: float) -> None:
        super().__init__()
        self.dense = nn.Linear(width, table_width)
        self.norm = nn.LayerNorm(table_width, eps=norm_eps)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.activate: Callable[[Tensor], Tensor] = activation(activation_name)

    def forward(self, x_PD: Tensor, table_VE: Tensor) -> Tensor:
        hidden_PE = self.norm(self.activate(self.dense(x_PD)))
        return nn.functional.linear(hidden_PE, table_VE, self.bias)


class Standardised(nn.Module):
    """Every column less its mean and over its deviation, both as the training has seen them so far.

    Batch norm takes them from the batch itself, which mixes its texts; layer norm leaves in what all texts share.
    """

    mean_D: Tensor
    square_D: Tensor
    seen: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean_D", torch.zeros(width))
        self.register_buffer("square_D", torch.ones(width))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x_BD: Tensor) -> Tensor:
        if self.training:
            self._see(x_BD.detach().float())
        deviation_D = (self.square_D - self.mean_D.square()).clamp(min=1e-6).sqrt()
        return ((x_BD - self.mean_D) / deviation_D).to(x_BD.dtype)

    def _see(self, x_BD: Tensor) -> None:
        share = (1 / (self.seen + 1)).clamp(min=RECENT)
        self.mean_D.lerp_(x_BD.mean(0), share)
        self.square_D.lerp_(x_BD.square().mean(0), share)
        self.seen += 1


class HiddenHead(nn.Module):
    """Scores above one small layer, as ULMFiT's classifier has (Howard & Ruder 2018)."""

    def __init__(self, width: int, num_scores: int, *, hidden: int = 50) -> None:
        super().__init__()
        self.norm = Standardised(width)
        self.hidden = nn.Linear(width, hidden)
        self.out = nn.Linear(hidden, num_scores)

    def forward(self, x_BD: Tensor) -> Tensor:
        scores_BT: Tensor = self.out(torch.relu(self.hidden(self.norm(x_BD))))
        return scores_BT
