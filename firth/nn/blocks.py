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
from firth.nn.attention import Bias, Fused, Mask, Projected, Source, attend, attention_weights
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


class SelfAttention(nn.Module):
    """Tokens attend to tokens of their own sequence; the three projections are one product.

    A mask, where one is given, says all about what a token may see, also in a causal layer.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        causal: bool = False,
        head_width: int | None = None,
        scale: float | None = None,
        use_bias: bool = True,
    ) -> None:
        super().__init__()
        self.head_width = head_width or head_width_of(width, num_heads)
        inner = num_heads * self.head_width
        self.num_heads = num_heads
        self.dropout = dropout
        self.causal = causal
        self.scale = scale
        self.qkv = nn.Linear(width, 3 * inner, bias=use_bias)
        self.out = nn.Linear(inner, width, bias=use_bias)

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        projected: Fused | Projected = self._project(x_ND)
        layout_k = layout
        if cache is not None:
            projected, layout_k = cache.extend(projected)
        mixed_NHK = attend(
            projected,
            layout,
            layout_k,
            causal=self.causal and mask is None,
            mask=mask,
            bias=bias,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
        )
        out_ND: Tensor = self.out(mixed_NHK.flatten(1))
        return out_ND

    def weights(
        self,
        x_ND: Tensor,
        layout: Layout,
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        cache: LayerCache | None = None,
    ) -> tuple[Tensor, ...]:
        """H x L x S for each sequence in order; without a cache its keys are its queries, so S is L."""
        projected: Fused | Projected = self._project(x_ND)
        layout_k = layout
        if cache is not None:
            projected, layout_k = cache.extend(projected)
        causal = self.causal and mask is None
        return attention_weights(projected, layout, layout_k, causal=causal, mask=mask, bias=bias, scale=self.scale)

    def _project(self, x_ND: Tensor) -> Fused:
        qkv: Tensor = self.qkv(x_ND)
        return Fused(qkv.view(len(x_ND), 3, self.num_heads, -1))


class CrossAttention(nn.Module):
    """A decoder's tokens attend to all tokens of their source."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        source_width: int | None = None,
        dropout: float = 0.0,
        head_width: int | None = None,
        scale: float | None = None,
        use_bias: bool = True,
    ) -> None:
        super().__init__()
        inner = num_heads * (head_width or head_width_of(width, num_heads))
        self.num_heads = num_heads
        self.dropout = dropout
        self.scale = scale
        self.q = nn.Linear(width, inner, bias=use_bias)
        self.kv = nn.Linear(source_width or width, 2 * inner, bias=use_bias)
        self.out = nn.Linear(inner, width, bias=use_bias)

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        source: Source | None,
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """With a cache the source is looked at in the first pass only, and may be left out later."""
        projected, layout_k = self._project_both(x_ND, source, cache)
        layout_q = layout if cache is None else cache.cache.query_layout(layout)
        mixed_NHK = attend(
            projected,
            layout_q,
            layout_k,
            mask=mask,
            bias=bias,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
        )
        out_ND: Tensor = self.out(mixed_NHK.flatten(1))
        return out_ND

    def weights(
        self, x_ND: Tensor, layout: Layout, source: Source | None, *, cache: LayerCache | None = None
    ) -> tuple[Tensor, ...]:
        """H x L x S for each sequence in order."""
        projected, layout_k = self._project_both(x_ND, source, cache)
        return attention_weights(projected, layout, layout_k, scale=self.scale)

    def _project_both(self, x_ND: Tensor, source: Source | None, cache: LayerCache | None) -> tuple[Projected, Layout]:
        """Queries of the tokens, keys and values of the source, and the layout of these."""
        if cache is not None:
            k_SHK, v_SHK, layout_k = cache.project_once(self._project_source, source)
        else:
            assert source is not None, "cross-attention without a cache needs a source"
            k_SHK, v_SHK = self._project_source(source.states_SD)
            layout_k = source.layout
        q: Tensor = self.q(x_ND)
        q_NHK = q.view(len(x_ND), self.num_heads, -1)
        return Projected(q_NHK, k_SHK, v_SHK), layout_k

    def _project_source(self, states_SD: Tensor) -> tuple[Tensor, Tensor]:
        kv: Tensor = self.kv(states_SD)
        k_SHK, v_SHK = kv.view(len(states_SD), 2, self.num_heads, -1).unbind(1)
        return k_SHK, v_SHK


class FeedForward(nn.Module):
    """W_down act(W_up x), each token by itself."""

    def __init__(
        self, width: int, ffn_width: int, *, activation_name: str, use_bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.up = nn.Linear(width, ffn_width, bias=use_bias)
        self.down = nn.Linear(ffn_width, width, bias=use_bias)
        self.activate = activation(activation_name)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_ND: Tensor) -> Tensor:
        hidden_NF = self.activate(self.up(x_ND))
        out_ND: Tensor = self.down(self.dropout(hidden_NF))
        return out_ND


class GatedFeedForward(nn.Module):
    """W_down (act(W_gate x) * W_up x) (Shazeer 2020), as in T5 1.1."""

    def __init__(
        self, width: int, ffn_width: int, *, activation_name: str, use_bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.gate = nn.Linear(width, ffn_width, bias=use_bias)
        self.up = nn.Linear(width, ffn_width, bias=use_bias)
        self.down = nn.Linear(ffn_width, width, bias=use_bias)
        self.activate = activation(activation_name)
        self.dropout = nn.Dropout(dropout)

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
        self.dropout = nn.Dropout(dropout)
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
        self, x_ND: Tensor, layout: Layout, *, mask: Mask | None, bias: Bias | None, cache: LayerCache | None
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


def head_width_of(width: int, num_heads: int) -> int:
    if width % num_heads:
        raise BadConfig(f"The width {width} is not a multiple of the number of heads {num_heads}.")
    return width // num_heads


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
    """The first token of every sequence; sequences of length zero at the end borrow the last token."""
    return x_ND.index_select(0, bounds_B1[:-1].long().clamp(max=x_ND.shape[0] - 1))


def compute_dtype(weight: Tensor) -> torch.dtype:
    """The precision matrix products run in here: autocast's where a caller turned it on, else the weights'."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
