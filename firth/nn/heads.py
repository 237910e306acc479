"""Small networks on top of an encoder's states."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from firth.nn.blocks import activation


class Pooler(nn.Module):
    """tanh(W x + b) of a sequence's first token: what BERT gives to sentence-level heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, first_BD: Tensor) -> Tensor:
        return torch.tanh(self.dense(first_BD))


class VocabularyHead(nn.Module):
    """Dense + activation + norm, then a product with the input embedding and a bias: scores over the vocabulary."""

    def __init__(
        self,
        width: int,
        vocab_size: int,
        *,
        table_width: int,
        activation_name: str,
        norm_eps: float,
        dense_bias: bool = True,
        norm_bias: bool = True,
    ) -> None:
        super().__init__()
        self.dense = nn.Linear(width, table_width, bias=dense_bias)
        self.norm = nn.LayerNorm(table_width, eps=norm_eps, bias=norm_bias)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.activate: Callable[[Tensor], Tensor] = activation(activation_name)

    def hidden(self, x_PD: Tensor) -> Tensor:
        """What is multiplied with the embedding."""
        hidden_PE: Tensor = self.norm(self.activate(self.dense(x_PD)))
        return hidden_PE

    def forward(self, x_PD: Tensor, table_VE: Tensor) -> Tensor:
        return nn.functional.linear(self.hidden(x_PD), table_VE, self.bias)
