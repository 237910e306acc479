"""Weights that are changed whenever they are used: pruned or rounded in every forward pass, and in the end for good.

A linear layer's weight becomes a function of a parameter (torch.nn.utils.parametrize). The masks are saved with the
training state.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.utils import parametrize

from firth.compression.structure import blocks_of
from firth.tensors import Encoder


class MaskedWeight(nn.Module):
    """W * mask."""

    mask_RC: Tensor

    def __init__(self, weight_RC: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask_RC", torch.ones_like(weight_RC))

    def forward(self, weight_RC: Tensor) -> Tensor:
        return weight_RC * self.mask_RC.to(weight_RC.dtype)

    def importance(self, weight_RC: Tensor) -> Tensor:
        """What decides which weights stay: here their size."""
        return weight_RC.abs()

    @torch.no_grad()
    def prune(self, weight_RC: Tensor, share: float) -> None:
        """Masks the least important share of the weights."""
        importance = self.importance(weight_RC).flatten()
        count = int(share * importance.numel())
        self.mask_RC.fill_(1)
        if count:
            least = importance.argsort(stable=True)[:count]
            self.mask_RC.view(-1)[least] = 0


class ScoredWeight(MaskedWeight):
    """W * mask, where the mask goes by learned scores. A score's gradient is that of its weight's mask."""

    def __init__(self, weight_RC: Tensor) -> None:
        super().__init__(weight_RC)
        self.scores_RC = nn.Parameter(torch.zeros_like(weight_RC))

    def forward(self, weight_RC: Tensor) -> Tensor:
        masked_RC: Tensor = _StraightThrough.apply(weight_RC, self.scores_RC, self.mask_RC.to(weight_RC.dtype))  # type: ignore[no-untyped-call]
        return masked_RC

    def importance(self, weight_RC: Tensor) -> Tensor:
        return self.scores_RC


class _StraightThrough(torch.autograd.Function):
    """weight * mask; the gradient of the scores is as if they were the mask."""

    @staticmethod
    def forward(ctx: FunctionCtx, weight_RC: Tensor, scores_RC: Tensor, mask_RC: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(weight_RC, mask_RC)
        return weight_RC * mask_RC

    @staticmethod
    def backward(ctx: FunctionCtx, gradient_RC: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        weight_RC, mask_RC = ctx.saved_tensors  # type: ignore[attr-defined]
        return gradient_RC * mask_RC, gradient_RC * weight_RC, None


def linear_layers(encoder: Encoder) -> Iterator[nn.Linear]:
    """The linear layers of all blocks."""
    for block in blocks_of(encoder):
        for module in block.modules():
            if isinstance(module, nn.Linear):
                yield module


def change_weights(encoder: Encoder, make: Callable[[Tensor], nn.Module]) -> None:
    """Makes every linear layer's weight go through a module of its own."""
    for linear in list(linear_layers(encoder)):
        parametrize.register_parametrization(linear, "weight", make(linear.weight.detach()))


def masks_of(encoder: Encoder) -> Iterator[tuple[MaskedWeight, Tensor]]:
    """The masks with the weights that they are of."""
    for linear in linear_layers(encoder):
        chain = linear.parametrizations["weight"]  # type: ignore[index]
        mask = chain[0]
        assert isinstance(mask, MaskedWeight)
        yield mask, chain.original  # type: ignore[union-attr]


def keep_changes(encoder: Encoder) -> None:
    """The weights are what they were changed to, as plain parameters."""
    for linear in list(linear_layers(encoder)):
        parametrize.remove_parametrizations(linear, "weight", leave_parametrized=True)
