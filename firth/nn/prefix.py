"""Prefix-tuning (Li & Liang 2021): learned keys and values before each sequence, in every block; the model stays fixed.

In: an encoder. Out: the same encoder, whose tokens also attend to P learned keys in each layer. Only keys and values
learn; the paper makes them by a second network while training, which is left out here.
"""

import torch
from torch import Tensor, nn

from firth.errors import Unsupported
from firth.nn.attention import Bias, Mask, Projected, attend, attention_weights
from firth.nn.attention_layers import SelfAttention
from firth.nn.blocks import Block
from firth.nn.kv_cache import LayerCache
from firth.nn.layout import Layout
from firth.nn.relative_positions import RelativePositions

INITIAL_STD = 0.02


class PrefixedAttention(SelfAttention):
    """Self-attention to a sequence and to learned keys before it; the matrices are those of what it replaces."""

    def __init__(self, attention: SelfAttention, length: int) -> None:
        nn.Module.__init__(self)
        self.num_heads = attention.num_heads
        self.head_width = attention.head_width
        self.dropout = attention.dropout
        self.causal = False
        self.scale = attention.scale
        self.qkv = attention.qkv
        self.out = attention.out
        self.length = length
        shape = (length, self.num_heads, self.head_width)
        self.prefix_keys = nn.Parameter(torch.randn(shape) * INITIAL_STD)
        self.prefix_values = nn.Parameter(torch.randn(shape) * INITIAL_STD)

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        assert mask is None, "a prefix is for attention to the whole sequence"
        assert bias is None, "a prefix has no distance to its sequence"
        assert cache is None, "a prefix has no place in a key-value cache"
        projected, layout_k = self._project_both(x_ND, layout)
        dropout = self.dropout if self.training else 0.0
        mixed_NHK = attend(projected, layout, layout_k, scale=self.scale, dropout=dropout)
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
        """H x L x L for each sequence: what a token attends to of its own sequence, so rows may sum to less than 1."""
        projected, layout_k = self._project_both(x_ND, layout)
        maps = attention_weights(projected, layout, layout_k, scale=self.scale)
        return tuple(weights_HLS[:, :, self.length :] for weights_HLS in maps)

    def _project_both(self, x_ND: Tensor, layout: Layout) -> tuple[Projected, Layout]:
        parts = self._project(x_ND).apart()
        layout_k, rows_S = layout.with_prefix(self.length)
        # The rows of the prefix come first; `rows_S` says which are before each sequence.
        k_SHK = torch.cat([self.prefix_keys.to(x_ND.dtype), parts.k_SHK])[rows_S]
        v_SHK = torch.cat([self.prefix_values.to(x_ND.dtype), parts.v_SHK])[rows_S]
        return Projected(parts.q_NHK, k_SHK, v_SHK), layout_k


def insert_prefixes(encoder: nn.Module, length: int) -> None:
    """Puts a new prefix into the attention of every block; the prefixes are the only parameters not frozen."""
    blocks = [part for part in encoder.modules() if isinstance(part, Block)]
    is_plain = all(type(block) is Block and type(block.attention) is SelfAttention for block in blocks)
    has_bias = any(isinstance(part, RelativePositions) for part in encoder.modules())
    if not blocks or not is_plain or has_bias or any(block.attention.causal for block in blocks):
        raise Unsupported(
            f"{type(encoder).__name__} has attention of another kind than prefixes need; use transfer.mode=lora."
        )
    for parameter in encoder.parameters():
        parameter.requires_grad_(False)
    for block in blocks:
        block.attention = PrefixedAttention(block.attention, length)


def prefix_parameters(encoder: nn.Module) -> dict[str, Tensor]:
    """The parameters of all prefixes, by name."""
    return {name: parameter for name, parameter in encoder.named_parameters() if ".prefix_" in name}
