"""Multi-head attention as layers (Vaswani et al. 2017, section 3.2): projections, `attend`, and the output projection.

In: the states of packed tokens and their layout. Out: as many states, each mixed from the values that its token attends
to, of its own sequence (self-attention) or of a source (cross-attention).
"""

from torch import Tensor, nn

from firth.errors import BadConfig
from firth.nn.attention import Bias, Fused, Mask, Projected, Source, attend, attention_weights
from firth.nn.kv_cache import LayerCache
from firth.nn.layout import Layout


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
        projected, layout_k = self._project_with(cache, x_ND, layout)
        dropout = self.dropout if self.training else 0.0
        mixed_NHK = attend(
            projected,
            layout,
            layout_k,
            causal=self.causal and mask is None,
            mask=mask,
            bias=bias,
            scale=self.scale,
            dropout=dropout,
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
        projected, layout_k = self._project_with(cache, x_ND, layout)
        causal = self.causal and mask is None
        return attention_weights(projected, layout, layout_k, causal=causal, mask=mask, bias=bias, scale=self.scale)

    def _project_with(self, cache: LayerCache | None, x_ND: Tensor, layout: Layout) -> tuple[Fused | Projected, Layout]:
        """Queries, keys and values of the tokens, and the layout of the keys: with a cache, of earlier tokens too."""
        projected = self._project(x_ND)
        if cache is None:
            return projected, layout
        return cache.extend(projected)

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
        dropout = self.dropout if self.training else 0.0
        mixed_NHK = attend(
            projected,
            layout_q,
            layout_k,
            mask=mask,
            bias=bias,
            scale=self.scale,
            dropout=dropout,
        )
        out_ND: Tensor = self.out(mixed_NHK.flatten(1))
        return out_ND

    def weights(
        self,
        x_ND: Tensor,
        layout: Layout,
        source: Source | None,
        *,
        cache: LayerCache | None = None,
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


def head_width_of(width: int, num_heads: int) -> int:
    if width % num_heads:
        raise BadConfig(f"The width {width} is not a multiple of the number of heads {num_heads}.")
    return width // num_heads
