"""Sequences walked together, one token of each a step: what chains of labels and recurrent networks share.

In: bounds of sequences that lie end to end. Out: the order of all first tokens, then all second ones, longest sequence
first. The sequences alive at a step are always the first ones of that order, so every step is a slice. There are as
many steps as the longest sequence has tokens, and nothing is padded. It is the order of torch's `PackedSequence`.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from firth.ragged import bounds_of, owners_of


class Walk:
    """The order of the steps, and the ways from tokens to rows in it and back."""

    def __init__(self, bounds_B1: Tensor, device: torch.device) -> None:
        bounds = bounds_B1.cpu().numpy().astype(np.int64)
        first_tokens = bounds[:-1]
        last_tokens = bounds[1:] - 1
        lengths = np.diff(bounds)
        tokens = np.arange(bounds[-1])
        order = np.argsort(-lengths, kind="stable")
        sizes = _alive(lengths)
        starts = bounds_of(sizes)

        # Of each token: its step, and the rank of its sequence in the order.
        position = tokens - np.repeat(first_tokens, lengths)
        rank = np.argsort(order, kind="stable")
        place = starts[position] + np.repeat(rank, lengths)
        mirror = np.repeat(first_tokens + last_tokens, lengths) - tokens
        last = order
        if len(place):
            # An empty sequence at the beginning has no token before it, either.
            last = place[np.maximum(last_tokens, 0)[order]]

        self.sizes: list[int] = sizes.tolist() or [0]
        """How many sequences are alive at each step."""
        self.starts: list[int] = starts.tolist()
        """The first row of each step."""

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        self.place_N = tensor(place)
        """Token -> row of the walk."""
        self.rows_N = tensor(np.argsort(place, kind="stable"))
        """Row of the walk -> token."""
        self.mirror_N = tensor(mirror)
        """Token -> the token at the same distance from the other end of its sequence."""
        self.order_B = tensor(order)
        """The sequences in walking order, longest first."""
        self.lengths_B = tensor(lengths)
        self.sequence_N = tensor(owners_of(lengths))
        """Token -> its sequence."""
        self.first_N = tensor(position == 0)
        """Whether a token is the first of its sequence."""
        self.last_B = tensor(last)
        """Rows of last tokens, in walking order."""

    def slices(self) -> list[slice]:
        """The rows of each step."""
        # The last of the starts is the end of all rows.
        steps = zip(self.starts, self.sizes, strict=False)
        return [slice(start, start + size) for start, size in steps]

    def steps(self) -> Iterator[tuple[slice, slice]]:
        """For each step from the second on: the rows of its sequences one step before, and its rows."""
        for before, now in pairwise(self.slices()):
            size = now.stop - now.start
            yield slice(before.start, before.start + size), now


def _alive(lengths: np.ndarray) -> np.ndarray:
    """For each step the number of sequences that are longer than the steps before it."""
    longest = int(lengths.max(initial=0))
    steps = np.arange(longest)
    num_ended = np.searchsorted(np.sort(lengths), steps, side="right")
    return np.asarray(len(lengths) - num_ended)
