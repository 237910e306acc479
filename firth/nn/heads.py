"""Small networks on top of an encoder's states."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from firth.nn.blocks import activation, initialise
from firth.tensors import Encoder

LAYERS = ("none", "tanh", "gelu", "relu", "gelu-norm")
"""Layers between states and scores: act(W x + b), with or without a norm after it."""


class ScoringLayer(nn.Module):
    """act(W x + b), then a norm if there is one: the layer that some models have before the scores of a task."""

    def __init__(
        self,
        width: int,
        kind: str,
        *,
        norm_eps: float = 1e-5,
        dense_bias: bool = True,
        norm_bias: bool = True,
    ) -> None:
        super().__init__()
        self.kind = kind
        activation_name, _, norm = kind.partition("-")
        self.dense = nn.Linear(width, width, bias=dense_bias)
        self.activate = activation(activation_name)
        self.norm = nn.LayerNorm(width, eps=norm_eps, bias=norm_bias) if norm else nn.Identity()

    def forward(self, x_ND: Tensor) -> Tensor:
        out_ND: Tensor = self.norm(self.activate(self.dense(x_ND)))
        return out_ND


def scoring_layer(encoder: Encoder, kind: str) -> nn.Module:
    """A new layer of a kind over an encoder's states; for the kind `none`, one that does nothing."""
    if kind == "none":
        return nn.Identity()
    layer = ScoringLayer(
        encoder.width,
        kind,
        norm_eps=getattr(encoder.config, "norm_eps", 1e-5),
        # Only ModernBERT's heads can be without biases.
        dense_bias=getattr(encoder.config, "head_bias", True),
        norm_bias=getattr(encoder.config, "norm_bias", True),
    )
    initialise(layer, std=encoder.init_std)
    return layer


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
