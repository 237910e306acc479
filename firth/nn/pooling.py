"""One vector for each sequence of a pack."""

import torch
from torch import Tensor


def mean_rows(x_ND: Tensor, bounds_B1: Tensor) -> Tensor:
    """The mean over each sequence's tokens; an empty sequence has zeros."""
    return _reduce(x_ND, bounds_B1, "mean")


def max_rows(x_ND: Tensor, bounds_B1: Tensor) -> Tensor:
    """The largest value of each column over each sequence's tokens; an empty sequence has zeros."""
    return _reduce(x_ND, bounds_B1, "amax")


def _reduce(x_ND: Tensor, bounds_B1: Tensor, kind: str) -> Tensor:
    lengths_B = bounds_B1.long().diff()
    owners_N = torch.repeat_interleave(torch.arange(len(lengths_B), device=x_ND.device), lengths_B)
    empty_BD = x_ND.new_zeros(len(lengths_B), x_ND.shape[1])
    return empty_BD.scatter_reduce(0, owners_N[:, None].expand_as(x_ND), x_ND, kind, include_self=False)
