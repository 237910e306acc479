"""Dropout (Srivastava et al. 2014): states in, the same states out with a share of zeros and the others made larger.

On a GPU it is torch's. On a CPU torch draws one number after the other, which takes six times as long as random words
of 64 bits; so each element gets 16 bits of such words there. They come from torch's own generator, too, so the loop's
seeds fix them.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 2**16
"""The numbers that 16 bits can be: a rate is rounded to a multiple of 1 / STEPS."""


class Dropout(nn.Dropout):
    """As torch's layer, but with the draws of this module."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, training=self.training)


def dropout(x: Tensor, rate: float, *, training: bool = True) -> Tensor:
    """Zero with a probability of `rate`, else x / (1 - rate); x itself if nothing is dropped."""
    if not training or not rate:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    kept, scale = draw_kept(x.shape, rate)
    # The scale is no part of the mask: it is not exact in bf16.
    return (x * kept).mul_(scale)


def dropped_attention(
    q_GHLK: Tensor,
    k_GHSK: Tensor,
    v_GHSK: Tensor,
    added: Tensor | None,
    dropout: float,
    *,
    scale: float | None,
) -> Tensor:
    """Attention of which a share of the weights is dropped, on the CPU: torch's has no kernel for it there."""
    scale = q_GHLK.shape[-1] ** -0.5 if scale is None else scale
    scores_GHLS = (q_GHLK * scale) @ k_GHSK.transpose(2, 3)
    if added is not None:
        scores_GHLS += added
    weights_GHLS = scores_GHLS.softmax(-1)
    kept_GHLS, upscale = draw_kept(weights_GHLS.shape, dropout)
    # The outputs are fewer numbers than the weights, so these take the scale.
    return ((weights_GHLS * kept_GHLS) @ v_GHSK).mul_(upscale)


def draw_kept(shape: torch.Size, rate: float) -> tuple[Tensor, float]:
    """On the CPU: 1 for each number that is kept and 0 for the others, and what makes up for those dropped.

    The mask is of bytes because a product with these is several times as fast as one with booleans.
    """
    dropped = min(round(rate * STEPS), STEPS - 1)
    num_words = -(-shape.numel() // 4)
    words = torch.empty(num_words, dtype=torch.int64).random_(-(2**63), None)
    # As signed numbers, 16 bits begin at -STEPS / 2.
    bits_E = words.view(torch.int16)[: shape.numel()]
    kept_E = bits_E.ge_(dropped - STEPS // 2).to(torch.uint8)
    return kept_E.view(shape), STEPS / (STEPS - dropped)
