"""Rotary positions (Su et al. 2021, section 3.4.2): queries and keys are turned by an angle that grows with position.

In: the positions of all tokens. Out: attention whose scores depend on the distance of query and key. Column i of a head
and column i + K / 2 are the two coordinates of a plane, which turns by position / theta^(2i / K).

A block with a window sees only near tokens (local attention, Beltagy et al. 2020).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from firth.nn.attention import Fused, attend, attention_weights
from firth.nn.attention_layers import SelfAttention
from firth.nn.blocks import Block, NormOrder
from firth.nn.layout import Layout


@dataclass(frozen=True, eq=False)
class Rotation:
    """The angles of all tokens of a batch; all layers with the same theta share one."""

    cos_N11K: Tensor
    sin_N11K: Tensor

    def turn(self, qk_N2HK: Tensor) -> Tensor:
        """Queries and keys, turned; in single precision, because angles of far positions need it."""
        wide_N2HK = qk_N2HK.float()
        first, second = wide_N2HK.chunk(2, -1)
        quarter_turn_N2HK = torch.cat([-second, first], -1)
        turned_N2HK = wide_N2HK * self.cos_N11K + quarter_turn_N2HK * self.sin_N11K
        return turned_N2HK.to(qk_N2HK.dtype)


def rotation(positions_N: Tensor, *, head_width: int, theta: float) -> Rotation:
    """The angles of tokens at these positions."""
    exponents = torch.arange(0, head_width, 2, device=positions_N.device).float() / head_width
    frequencies = 1.0 / theta**exponents
    angles = positions_N[:, None].float() * frequencies
    angles_N11K = torch.cat([angles, angles], 1)[:, None, None]
    return Rotation(angles_N11K.cos(), angles_N11K.sin())


class RotaryAttention(SelfAttention):
    """Self-attention with rotary positions, to the whole sequence or to tokens at most `window` positions away."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        use_bias: bool = True,
        window: int | None = None,
    ) -> None:
        super().__init__(width, num_heads, dropout=dropout, use_bias=use_bias)
        self.window = window

    def forward(self, x_ND: Tensor, layout: Layout, rotation: Rotation) -> Tensor:  # type: ignore[override]
        dropout = self.dropout if self.training else 0.0
        turned = self._turned(x_ND, rotation)
        mixed_NHK = attend(turned, layout, layout, dropout=dropout, window=self.window)
        out_ND: Tensor = self.out(mixed_NHK.flatten(1))
        return out_ND

    def weights(self, x_ND: Tensor, layout: Layout, rotation: Rotation) -> tuple[Tensor, ...]:  # type: ignore[override]
        return attention_weights(self._turned(x_ND, rotation), layout, layout, window=self.window)

    def _turned(self, x_ND: Tensor, rotation: Rotation) -> Fused:
        qkv_N3HK = self._project(x_ND).qkv_N3HK
        qk_N2HK = rotation.turn(qkv_N3HK[:, :2])
        return Fused(torch.cat([qk_N2HK, qkv_N3HK[:, 2:]], 1))


class RotaryBlock(Block):
    """A Transformer block whose attention has rotary positions."""

    attention: RotaryAttention

    def __init__(
        self,
        attention: RotaryAttention,
        ffn: nn.Module,
        *,
        attention_norm: nn.Module,
        ffn_norm: nn.Module,
        norm_order: NormOrder,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            attention, ffn, attention_norm=attention_norm, ffn_norm=ffn_norm, norm_order=norm_order, dropout=dropout
        )

    def forward(self, x_ND: Tensor, layout: Layout, rotation: Rotation) -> Tensor:  # type: ignore[override]
        mixed_ND = self.attention(self.attention_input(x_ND), layout, rotation)
        x_ND = x_ND + self.attention_slot(self.dropout(mixed_ND))
        return self._feed(self._after(self.attention_norm, x_ND))

    def weights(self, x_ND: Tensor, layout: Layout, rotation: Rotation) -> tuple[Tensor, ...]:  # type: ignore[override]
        return self.attention.weights(self.attention_input(x_ND), layout, rotation)
