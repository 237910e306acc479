"""A tensor of which each rank holds a share in, the whole tensor on every rank out."""

import torch
from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or all shares of it; then all ranks must call this together."""
    if not is_shared(tensor):
        return tensor
    gathered: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return gathered


def is_shared(tensor: Tensor) -> bool:
    """Whether each rank holds a share of the tensor only."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    from torch.distributed.tensor import DTensor  # slow to import, and needed by several ranks only

    return isinstance(tensor, DTensor)
