"""Sequences walked together: what chains of labels and recurrent networks share.

In: bounds of sequences that lie end to end. Out: the order of all first tokens, then all second ones, longest sequence
first. The sequences alive at a step are always the first ones of that order, so every step is a slice, and there are as
few steps as the longest sequence has tokens; nothing is padded.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor


class Walk:
    def __init__(self, bounds_B1: Tensor, device: torch.device) -> None:
        bounds = bounds_B1.cpu().numpy().astype(np.int64)
        lengths = np.diff(bounds)
        order = np.argsort(-lengths, kind="stable")
        longest = int(lengths.max(initial=0))
        sizes = len(lengths) - np.searchsorted(np.sort(lengths), np.arange(longest), side="right")
        starts = np.concatenate([[0], np.cumsum(sizes)])
        rank = np.argsort(order, kind="stable")
        position = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)
        place = starts[position] + np.repeat(rank, lengths)
        self.sizes: list[int] = sizes.tolist() or [0]
        """How many sequences are alive at each step."""
        self.starts: list[int] = starts.tolist()

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        self.place_N = tensor(place)
        """Token -> row of the walk."""
        self.rows_N = tensor(np.argsort(place, kind="stable"))
        """Row of the walk -> token."""
        self.mirror_N = tensor(np.repeat(bounds[:-1] + bounds[1:] - 1, lengths) - np.arange(bounds[-1]))
        """Token -> the token at the same distance from the other end of its sequence."""
        self.order_B, self.lengths_B = tensor(order), tensor(lengths)
        self.sequence_N = tensor(np.repeat(np.arange(len(lengths)), lengths))
        self.first_N = tensor(position == 0)
        self.last_B = tensor(place[np.maximum(bounds[1:] - 1, 0)[order]] if len(place) else order)
        """Rows of last tokens, in walking order."""

    def slices(self) -> list[slice]:
        return [slice(start, start + size) for start, size in zip(self.starts, self.sizes, strict=False)]

    def steps(self) -> Iterator[tuple[slice, slice]]:
        """Each step's rows, and those of the same sequences one step before."""
        slices = self.slices()
        for before, now in pairwise(slices):
            yield slice(before.start, before.start + now.stop - now.start), now
