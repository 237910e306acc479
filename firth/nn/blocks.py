"""The Transformer's blocks (Vaswani et al. 2017), put together from attention, feed-forward layer and norms.

Every sublayer is added to its input: LayerNorm(x + sublayer(x)) where norms come after (BERT, GPT), and
x + sublayer(LayerNorm(x)) where they come before (GPT-2, T5).
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from firth.errors import BadConfig
from firth.nn.attention import Bias, Mask, Source
from firth.nn.attention_layers import CrossAttention, SelfAttention
from firth.nn.dropout import Dropout
from firth.nn.kv_cache import LayerCache
from firth.nn.layout import Layout

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    if name not in ACTIVATIONS:
        raise BadConfig(f"There is no activation named '{name}' (known: {', '.join(ACTIVATIONS)}).")
    return ACTIVATIONS[name]


class _FeedForward(nn.Module):
    """What all feed-forward layers have: matrices that widen a token's state, and one that makes it narrow again."""

    widening: ClassVar[tuple[str, ...]]
    """The names of the matrices that widen, in the order in which they are drawn."""
    up: nn.Linear

    def __init__(
        self,
        width: int,
        ffn_width: int,
        *,
        activation_name: str,
        use_bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name in self.widening:
            self.add_module(name, nn.Linear(width, ffn_width, bias=use_bias))
        self.down = nn.Linear(ffn_width, width, bias=use_bias)
        self.activate = activation(activation_name)
        self.dropout = Dropout(dropout)


class FeedForward(_FeedForward):
    """W_down act(W_up x), each token by itself."""

    widening = ("up",)

    def forward(self, x_ND: Tensor) -> Tensor:
        hidden_NF = self.activate(self.up(x_ND))
        out_ND: Tensor = self.down(self.dropout(hidden_NF))
        return out_ND


class GatedFeedForward(_FeedForward):
    """W_down (act(W_gate x) * W_up x) (Shazeer 2020), as in T5 1.1."""

    widening = ("gate", "up")
    gate: nn.Linear

    def forward(self, x_ND: Tensor) -> Tensor:
        gate_NF = self.activate(self.gate(x_ND))
        hidden_NF = gate_NF * self.up(x_ND)
        out_ND: Tensor = self.down(self.dropout(hidden_NF))
        return out_ND


NormOrder = Literal["pre", "post"]
_Normalise = Callable[[nn.Module, Tensor], Tensor]


def _apply(norm: nn.Module, x_ND: Tensor) -> Tensor:
    out_ND: Tensor = norm(x_ND)
    return out_ND


def _skip(norm: nn.Module, x_ND: Tensor) -> Tensor:
    return x_ND


_BEFORE: dict[NormOrder, _Normalise] = {"pre": _apply, "post": _skip}
_AFTER: dict[NormOrder, _Normalise] = {"pre": _skip, "post": _apply}


class Block(nn.Module):
    """Self-attention and feed-forward layer, each with its norm.

    The slots do nothing until something (an adapter, a layer drop) is put in, without touching `forward`.
    """

    slots: ClassVar[tuple[str, ...]] = ("attention_slot", "ffn_slot")

    def __init__(
        self,
        attention: SelfAttention,
        ffn: nn.Module,
        *,
        attention_norm: nn.Module,
        ffn_norm: nn.Module,
        norm_order: NormOrder = "post",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_slot = nn.Identity()
        self.attention_norm = attention_norm
        self.ffn = ffn
        self.ffn_slot = nn.Identity()
        self.ffn_norm = ffn_norm
        self.dropout = Dropout(dropout)
        self.norm_order = norm_order
        self._before = _BEFORE[norm_order]
        self._after = _AFTER[norm_order]

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        return self._feed(self._attend(x_ND, layout, mask=mask, bias=bias, cache=cache))

    def weights(
        self,
        x_ND: Tensor,
        layout: Layout,
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        cache: LayerCache | None = None,
    ) -> tuple[Tensor, ...]:
        """Self-attention's weights, H x L x S for each sequence in order."""
        read_ND = self.attention_input(x_ND)
        return self.attention.weights(read_ND, layout, mask=mask, bias=bias, cache=cache)

    def attention_input(self, x_ND: Tensor) -> Tensor:
        """What self-attention reads of the block's input: its norm, where norms come before."""
        return self._before(self.attention_norm, x_ND)

    def _attend(
        self,
        x_ND: Tensor,
        layout: Layout,
        *,
        mask: Mask | None,
        bias: Bias | None,
        cache: LayerCache | None,
    ) -> Tensor:
        read_ND = self.attention_input(x_ND)
        mixed_ND = self.attention(read_ND, layout, mask=mask, bias=bias, cache=cache)
        x_ND = x_ND + self.attention_slot(self.dropout(mixed_ND))
        return self._after(self.attention_norm, x_ND)

    def _feed(self, x_ND: Tensor) -> Tensor:
        fed_ND = self.ffn(self._before(self.ffn_norm, x_ND))
        x_ND = x_ND + self.ffn_slot(self.dropout(fed_ND))
        return self._after(self.ffn_norm, x_ND)


class DecoderBlock(Block):
    """A block that also reads a source: self-attention, cross-attention and feed-forward layer, each with its norm."""

    slots: ClassVar[tuple[str, ...]] = ("attention_slot", "cross_slot", "ffn_slot")

    def __init__(
        self,
        attention: SelfAttention,
        cross: CrossAttention,
        ffn: nn.Module,
        *,
        attention_norm: nn.Module,
        cross_norm: nn.Module,
        ffn_norm: nn.Module,
        norm_order: NormOrder = "post",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            attention, ffn, attention_norm=attention_norm, ffn_norm=ffn_norm, norm_order=norm_order, dropout=dropout
        )
        self.cross = cross
        self.cross_slot = nn.Identity()
        self.cross_norm = cross_norm

    def forward(  # type: ignore[override]
        self,
        x_ND: Tensor,
        layout: Layout,
        source: Source | None,
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """The mask and the bias are self-attention's. With a cache the source is needed in the first pass only."""
        x_ND = self._attend(x_ND, layout, mask=mask, bias=bias, cache=cache)
        read_ND = self._before(self.cross_norm, x_ND)
        mixed_ND = self.cross(read_ND, layout, source, cache=cache)
        x_ND = x_ND + self.cross_slot(self.dropout(mixed_ND))
        return self._feed(self._after(self.cross_norm, x_ND))

    def cross_weights(
        self,
        x_ND: Tensor,
        layout: Layout,
        source: Source | None,
        *,
        bias: Bias | None = None,
        cache: LayerCache | None = None,
    ) -> tuple[Tensor, ...]:
        """Cross-attention's weights, H x L x S for each sequence in order."""
        x_ND = self._attend(x_ND, layout, mask=None, bias=bias, cache=cache)
        read_ND = self._before(self.cross_norm, x_ND)
        return self.cross.weights(read_ND, layout, source, cache=cache)


def recompute_blocks(module: nn.Module) -> None:
    """Makes every block keep only its input and compute the rest again in the backward pass.

    Blocks that do so already stay as they are: a run in two phases calls this twice.
    """
    for part in module.modules():
        is_changed = "forward" in vars(part)
        if isinstance(part, Block) and not is_changed:
            part.forward = partial(checkpoint, part.forward, use_reentrant=False)  # type: ignore[method-assign]


def initialise(module: nn.Module, *, std: float) -> None:
    """BERT's initial weights: normal matrices and embeddings, zero biases, unit norms."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=std)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm | nn.RMSNorm):
            nn.init.ones_(part.weight)
        if isinstance(part, nn.LayerNorm) and part.bias is not None:
            nn.init.zeros_(part.bias)


def first_rows(x_ND: Tensor, bounds_B1: Tensor) -> Tensor:
    """The first token of every sequence; an empty sequence has zeros."""
    return rows_at(x_ND, bounds_B1[:-1], bounds_B1)


def rows_at(x_ND: Tensor, token_B: Tensor, bounds_B1: Tensor) -> Tensor:
    """This token of every sequence; an empty sequence, such as filler at the end of a pack, has zeros."""
    num_tokens = x_ND.shape[0]
    if not num_tokens:
        return x_ND.new_zeros(len(token_B), x_ND.shape[1])
    rows_BD = x_ND.index_select(0, token_B.long().clamp(0, num_tokens - 1))
    is_empty_B = bounds_B1.diff() == 0
    return rows_BD.masked_fill(is_empty_B[:, None], 0.0)


def compute_dtype(weight: Tensor) -> torch.dtype:
    """The precision matrix products run in here: autocast's where a caller turned it on, else the weights'."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
