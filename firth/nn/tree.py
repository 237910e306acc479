"""Huffman's tree (1952) over names by how often they occur: frequent ones near the root, the mean path the shortest.

In: counts. Out: for each name the inner nodes from the root down and the turn taken at each; a head that gives the
logarithms of all names' probabilities (Morin & Bengio 2005; Mikolov et al. 2013).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Paths:
    """The way from a tree's root to each name: inner nodes, and at each the turn (1 is right)."""

    bounds_V1: np.ndarray
    nodes_P: np.ndarray
    turns_P: np.ndarray

    @classmethod
    def none(cls) -> "Paths":
        return cls(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int8))


def huffman(counts_V: np.ndarray) -> Paths:
    """The tree of all names that occur (others have an empty path); ties fall as in the fasttext program."""
    order = np.argsort(-counts_V, kind="stable")
    words = order[counts_V[order] > 0]
    above, turn = _merge(counts_V[words].tolist())
    size = len(words)
    depth = np.zeros(2 * size, np.int64)
    for node in range(2 * size - 3, -1, -1):  # parents have higher numbers than their children
        depth[node] = depth[above[node]] + 1
    lengths_V = np.zeros(len(counts_V), np.int64)
    lengths_V[words] = depth[:size]
    bounds_V1 = np.concatenate([[0], np.cumsum(lengths_V)])
    nodes_P, turns_P = np.zeros(bounds_V1[-1], np.int32), np.zeros(bounds_V1[-1], np.int8)
    at, place = np.arange(size), bounds_V1[words + 1] - 1
    while len(at):  # all leaves climb together, each writing its path from its end
        climbing = depth[at] > 0
        at, place = at[climbing], place[climbing]
        turns_P[place], nodes_P[place] = turn[at], above[at] - size
        at, place = above[at], place - 1
    return Paths(bounds_V1, nodes_P, turns_P)


def _merge(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Joins the two rarest again and again: parents of leaves (rarest last) and inner nodes, and which hang right."""
    size = len(counts)
    above, turn = np.zeros(2 * size, np.int64), np.zeros(2 * size, np.int8)
    inner, leaf, first = list[int](), size - 1, 0
    for node in range(size, 2 * size - 1):
        total = 0
        for side in (0, 1):  # leaves and inner nodes both come in order of their counts
            if leaf >= 0 and (first >= len(inner) or counts[leaf] < inner[first]):
                child, total, leaf = leaf, total + counts[leaf], leaf - 1
            else:
                child, total, first = size + first, total + inner[first], first + 1
            above[child], turn[child] = node, side
        inner.append(total)
    return above, turn


class TreeHead(nn.Module):
    """Scores that are log-probabilities: at every inner node of the tree a logistic choice of right or left.

    The tree is kept as the node above each of its M = 2T - 1 nodes (names, then inner nodes, the root last) and the
    turn by which it hangs there, so it takes as much room as it has names.
    """

    above_M: Tensor
    turns_M: Tensor

    def __init__(self, width: int, num_labels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_labels - 1, width))
        self.register_buffer("above_M", torch.zeros(2 * num_labels - 1, dtype=torch.int64))
        self.register_buffer("turns_M", torch.zeros(2 * num_labels - 1, dtype=torch.int8))
        self.plant(np.ones(num_labels, np.int64))

    def plant(self, counts_T: np.ndarray) -> Paths:
        """Sets the tree from how often labels occur."""
        paths, size = huffman(np.maximum(counts_T, 1)), len(counts_T)
        below_P = np.append(size + paths.nodes_P[1:].astype(np.int64), 0)[: len(paths.nodes_P)]
        names = np.flatnonzero(np.diff(paths.bounds_V1))  # all, unless there is only one
        below_P[paths.bounds_V1[names + 1] - 1] = names  # a path ends at its name
        above_M, turns_M = np.full(2 * size - 1, 2 * size - 2), np.zeros(2 * size - 1, np.int8)
        above_M[below_P], turns_M[below_P] = size + paths.nodes_P, paths.turns_P
        self.above_M.copy_(torch.from_numpy(above_M))
        self.turns_M.copy_(torch.from_numpy(turns_M))
        return paths

    def forward(self, x_BD: Tensor) -> Tensor:
        size, choice_BN = len(self.weight) + 1, F.linear(x_BD, self.weight)
        signs = 2 * self.turns_M[:-1].to(choice_BN.dtype) - 1
        steps_BM = F.pad(F.logsigmoid(choice_BN.index_select(1, self.above_M[:-1] - size) * signs), (0, 1))
        above_M = self.above_M
        for _ in range((size - 1).bit_length()):  # every step leads twice as far up as the one before; the root adds 0
            steps_BM, above_M = steps_BM + steps_BM.index_select(1, above_M), above_M[above_M]
        return steps_BM[:, :size]
