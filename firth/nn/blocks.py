"""The Transformer's block (Vaswani et al. 2017), post-norm as in BERT, LayerNorm(x + sublayer(x)), or pre-norm."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from firth.errors import BadConfig
from firth.nn.attention import Layout, attend, attention_weights

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    if name not in ACTIVATIONS:
        raise BadConfig(f"There is no activation named '{name}' (known: {', '.join(ACTIVATIONS)}).")
    return ACTIVATIONS[name]


class Attention(nn.Module):
    """Self-attention with its three projections fused into one product."""

    def __init__(self, width: int, num_heads: int, *, dropout: float, causal: bool = False) -> None:
        super().__init__()
        if width % num_heads:
            raise BadConfig(f"The width {width} is not a multiple of the number of heads {num_heads}.")
        self.num_heads, self.dropout, self.causal = num_heads, dropout, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        mixed_NHK = attend(self._project(x_ND), layout, causal=self.causal, dropout=dropout)
        out_ND: Tensor = self.out(mixed_NHK.flatten(1))
        return out_ND

    def weights(self, x_ND: Tensor, layout: Layout) -> tuple[Tensor, ...]:
        return attention_weights(self._project(x_ND), layout, causal=self.causal)

    def _project(self, x_ND: Tensor) -> Tensor:
        projected: Tensor = self.qkv(x_ND)
        return projected.view(len(x_ND), 3, self.num_heads, -1)


class Block(nn.Module):
    """Attention and feed-forward, each added to its input and normalised.

    The two slots do nothing until something (an adapter, a layer drop) is put in, without touching `forward`.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        ffn_width: int,
        activation_name: str,
        dropout: float,
        attention_dropout: float,
        norm_eps: float,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.attention = Attention(width, num_heads, dropout=attention_dropout, causal=causal)
        self.attention_slot = nn.Identity()
        self.attention_norm = nn.LayerNorm(width, eps=norm_eps)
        self.up = nn.Linear(width, ffn_width)
        self.down = nn.Linear(ffn_width, width)
        self.ffn_slot = nn.Identity()
        self.ffn_norm = nn.LayerNorm(width, eps=norm_eps)
        self.activate = activation(activation_name)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        mixed_ND = self.attention_slot(self.dropout(self.attention(x_ND, layout)))
        x_ND = self.attention_norm(x_ND + mixed_ND)
        fed_ND = self.ffn_slot(self.dropout(self.down(self.activate(self.up(x_ND)))))
        out_ND: Tensor = self.ffn_norm(x_ND + fed_ND)
        return out_ND

    def weights(self, x_ND: Tensor, layout: Layout) -> tuple[Tensor, ...]:
        """Attention's weights, H x L x L for each sequence in order."""
        return self.attention.weights(x_ND, layout)


class PreNormBlock(Block):
    """The same parts with the norms in front, as in GPT-2: x + sublayer(LayerNorm(x))."""

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        mixed_ND = self.attention(self.attention_norm(x_ND), layout)
        x_ND = x_ND + self.attention_slot(self.dropout(mixed_ND))
        fed_ND = self.down(self.activate(self.up(self.ffn_norm(x_ND))))
        out_ND: Tensor = x_ND + self.ffn_slot(self.dropout(fed_ND))
        return out_ND

    def weights(self, x_ND: Tensor, layout: Layout) -> tuple[Tensor, ...]:
        return self.attention.weights(self.attention_norm(x_ND), layout)


def recompute_blocks(module: nn.Module) -> None:
    """Makes every block keep only its input and compute the rest again in the backward pass."""
    for part in module.modules():
        if isinstance(part, Block):
            part.forward = partial(checkpoint, part.forward, use_reentrant=False)  # type: ignore[method-assign]


def initialise(module: nn.Module, *, std: float) -> None:
    """BERT's initial weights: normal matrices and embeddings, zero biases, unit norms."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=std)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)


def first_rows(x_ND: Tensor, bounds_B1: Tensor) -> Tensor:
    """The first token of every sequence; sequences of length zero at the end borrow the last token."""
    return x_ND.index_select(0, bounds_B1[:-1].long().clamp(max=x_ND.shape[0] - 1))


def compute_dtype(weight: Tensor) -> torch.dtype:
    """The precision matrix products run in here: autocast's where a caller turned it on, else the weights'."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
