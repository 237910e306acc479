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
    """Scores that are log-probabilities: at every inner node of the tree a logistic choice of right or left."""

    right_NT: Tensor
    left_NT: Tensor

    def __init__(self, width: int, num_labels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_labels - 1, width))
        self.register_buffer("right_NT", torch.zeros(num_labels - 1, num_labels))
        self.register_buffer("left_NT", torch.zeros(num_labels - 1, num_labels))
        self.plant(np.ones(num_labels, np.int64))

    def plant(self, counts_T: np.ndarray) -> Paths:
        """Sets the tree from how often labels occur."""
        paths = huffman(np.maximum(counts_T, 1))
        owners = np.repeat(np.arange(len(counts_T)), np.diff(paths.bounds_V1))
        for side, matrix_NT in ((1, self.right_NT), (0, self.left_NT)):
            taken = paths.turns_P == side
            matrix_NT.zero_()
            matrix_NT[paths.nodes_P[taken].astype(np.int64), owners[taken]] = 1
        return paths

    def forward(self, x_BD: Tensor) -> Tensor:
        choice_BN = F.linear(x_BD, self.weight)
        return F.logsigmoid(choice_BN) @ self.right_NT + F.logsigmoid(-choice_BN) @ self.left_NT
