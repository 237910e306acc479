"""Blocks that run in another way while they are trained: put in before training, taken out after it.

The weights and their names stay as they are, so states and folders are those of a plain encoder.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from torch import Tensor

from firth.nn.blocks import Block

Forward = Callable[..., Tensor]


class Replaced(Protocol):
    """What runs in the place of a block's `forward`, which is its first argument."""

    def __call__(self, forward: Forward, x_ND: Tensor, /, *arguments: object, **options: object) -> Tensor: ...


def replace_forward(block: Block, replaced: Replaced) -> None:
    block.forward = partial(replaced, block.forward)  # type: ignore[method-assign]


def restore_forward(blocks: Iterable[Block]) -> None:
    """The blocks run as their class says."""
    for block in blocks:
        vars(block).pop("forward", None)
