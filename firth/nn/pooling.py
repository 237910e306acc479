"""One vector for each sequence of a pack."""

import torch
from torch import Tensor

from firth.nn.blocks import first_rows
from firth.tensors import States


def pooled_rows(states: States, bounds_B1: Tensor, kind: str) -> Tensor:
    """What stands for each sequence: cls (through the model's pooler, if it has one), last, mean, max or concat."""
    if kind == "cls":
        return first_rows(states.last_ND, bounds_B1) if states.pooled_BD is None else states.pooled_BD
    rows = {"last": last_rows, "mean": mean_rows, "max": max_rows, "concat": concat_rows}[kind]
    return rows(states.last_ND, bounds_B1)


def layered_rows(states: States, bounds_B1: Tensor, kind: str) -> Tensor:
    """A vector for each sequence in single precision, past any pooler: cls, last, max, mean, or first-last, the mean
    over the first and the last layer."""
    last_ND = states.last_ND.float()
    if kind == "first-last":
        # The first block's output, not the embeddings below it: these are the same in every context.
        last_ND = (states.layers[1].float() + last_ND) / 2
    rows = {"cls": first_rows, "last": last_rows, "max": max_rows}.get(kind, mean_rows)
    return rows(last_ND, bounds_B1)


def mean_rows(x_ND: Tensor, bounds_B1: Tensor) -> Tensor:
    """The mean over each sequence's tokens; an empty sequence has zeros."""
    return _reduce(x_ND, bounds_B1, "mean")


def max_rows(x_ND: Tensor, bounds_B1: Tensor) -> Tensor:
    """The largest value of each column over each sequence's tokens; an empty sequence has zeros."""
    return _reduce(x_ND, bounds_B1, "amax")


def last_rows(x_ND: Tensor, bounds_B1: Tensor) -> Tensor:
    """The last token of each sequence, the only one that has read all of it where states are causal."""
    return x_ND.index_select(0, (bounds_B1[1:].long() - 1).clamp(min=0))


def concat_rows(x_ND: Tensor, bounds_B1: Tensor) -> Tensor:
    """The last token, the maximum and the mean of each sequence, side by side (Howard & Ruder 2018, section 3.3)."""
    return torch.cat([last_rows(x_ND, bounds_B1), max_rows(x_ND, bounds_B1), mean_rows(x_ND, bounds_B1)], 1)


def _reduce(x_ND: Tensor, bounds_B1: Tensor, kind: str) -> Tensor:
    lengths_B = bounds_B1.long().diff()
    owners_N = torch.repeat_interleave(torch.arange(len(lengths_B), device=x_ND.device), lengths_B)
    empty_BD = x_ND.new_zeros(len(lengths_B), x_ND.shape[1])
    return empty_BD.scatter_reduce(0, owners_N[:, None].expand_as(x_ND), x_ND, kind, include_self=False)
