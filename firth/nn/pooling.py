"""Pooling. In: the states of all tokens and the bounds of their sequences. Out: one vector for each sequence."""

import torch
from torch import Tensor

from firth.nn.blocks import first_rows, rows_at
from firth.nn.layout import token_sequences
from firth.tensors import States


def pooled_rows(states: States, bounds_B1: Tensor, kind: str) -> Tensor:
    """A vector for each sequence: cls (through the model's pooler, if it has one), last, mean, max or concat."""
    if kind == "cls":
        if states.pooled_BD is not None:
            return states.pooled_BD
        return first_rows(states.last_ND, bounds_B1)
    pools = {"last": last_rows, "mean": mean_rows, "max": max_rows, "concat": concat_rows}
    return pools[kind](states.last_ND, bounds_B1)


def layered_rows(states: States, bounds_B1: Tensor, kind: str) -> Tensor:
    """A vector for each sequence in single precision, without the model's pooler.

    `kind` is cls, last, max, mean, or first-last, the mean over the first and the last layer.
    """
    last_ND = states.last_ND.float()
    if kind == "first-last":
        # The output of the first block, because the embeddings below it are the same in every context.
        last_ND = (states.layers[1].float() + last_ND) / 2
    pool = {"cls": first_rows, "last": last_rows, "max": max_rows}.get(kind, mean_rows)
    return pool(last_ND, bounds_B1)


def pool(x_ND: Tensor, bounds_B1: Tensor, names: str) -> Tensor:
    """A vector for each sequence, by the `POOLINGS` of these names; several of them, joined by `+`, side by side."""
    pooled = [POOLINGS[name](x_ND, bounds_B1) for name in names.split("+")]
    return torch.cat(pooled, 1)


def mean_rows(x_ND: Tensor, bounds_B1: Tensor) -> Tensor:
    """The mean over each sequence's tokens; an empty sequence has zeros."""
    return _reduce(x_ND, bounds_B1, "mean")


def mean_sqrt_rows(x_ND: Tensor, bounds_B1: Tensor) -> Tensor:
    """The sum over each sequence's tokens, divided by the root of their number."""
    lengths_B = bounds_B1.long().diff()
    return mean_rows(x_ND, bounds_B1) * lengths_B[:, None].to(x_ND.dtype).sqrt()


def weighted_mean_rows(x_ND: Tensor, bounds_B1: Tensor) -> Tensor:
    """The mean over each sequence's tokens, weighted by their place, counted from 1 (Muennighoff 2022)."""
    bounds_B1 = bounds_B1.long()
    token_N = torch.arange(len(x_ND), device=x_ND.device)
    last_sequence = len(bounds_B1) - 2
    sequence_N = token_sequences(bounds_B1, len(x_ND)).clamp(max=last_sequence)
    places_N = token_N - bounds_B1[sequence_N] + 1
    places_N1 = places_N[:, None].to(x_ND.dtype)
    weights_B1 = mean_rows(places_N1, bounds_B1)
    return mean_rows(x_ND * places_N1, bounds_B1) / weights_B1.clamp(min=1.0)


def max_rows(x_ND: Tensor, bounds_B1: Tensor) -> Tensor:
    """The largest value of each column over each sequence's tokens; an empty sequence has zeros."""
    return _reduce(x_ND, bounds_B1, "amax")


def last_rows(x_ND: Tensor, bounds_B1: Tensor) -> Tensor:
    """The last token of each sequence, the only one that has read all of it where states are causal."""
    return rows_at(x_ND, bounds_B1[1:] - 1, bounds_B1)


def concat_rows(x_ND: Tensor, bounds_B1: Tensor) -> Tensor:
    """The last token, the maximum and the mean of each sequence, concatenated (Howard & Ruder 2018, section 3.3)."""
    last_BD = last_rows(x_ND, bounds_B1)
    max_BD = max_rows(x_ND, bounds_B1)
    mean_BD = mean_rows(x_ND, bounds_B1)
    return torch.cat([last_BD, max_BD, mean_BD], 1)


def _reduce(x_ND: Tensor, bounds_B1: Tensor, kind: str) -> Tensor:
    """A reduction over the tokens of each sequence, by its name in torch."""
    lengths_B = bounds_B1.long().diff()
    # With a known size the GPU need not be asked for the sum of the lengths.
    numbers_B = torch.arange(len(lengths_B), device=x_ND.device)
    owners_N = torch.repeat_interleave(numbers_B, lengths_B, output_size=x_ND.shape[0])
    empty_BD = x_ND.new_zeros(len(lengths_B), x_ND.shape[1])
    index_ND = owners_N[:, None].expand_as(x_ND)
    return empty_BD.scatter_reduce(0, index_ND, x_ND, kind, include_self=False)


POOLINGS = {
    "mean": mean_rows,
    "cls": first_rows,
    "last": last_rows,
    "max": max_rows,
    "mean-sqrt": mean_sqrt_rows,
    "weighted-mean": weighted_mean_rows,
}
"""The poolings of text vectors, by name."""
