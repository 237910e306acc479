"""Networks without weights, for their names and shapes alone: built on torch's meta device, without initial values.

Drawing random numbers there would make torch import its compiler, which takes more than a second.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

DRAWS = (Tensor.normal_, Tensor.uniform_)
"""What some functions of `torch.nn.init` and the networks' own initial weights are drawn by."""


class _WithoutInitialValues(TorchFunctionMode):
    """Tensors stay as they are where initial values would be written into them."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        named = kwargs or {}
        is_initial_value = getattr(func, "__module__", "") == nn.init.__name__ or func in DRAWS
        if is_initial_value:
            return args[0] if args else named["tensor"]
        return func(*args, **named)


@contextmanager
def on_meta_device() -> Iterator[None]:
    """What is built inside has shapes and no weights."""
    with torch.device("meta"), _WithoutInitialValues():
        yield
