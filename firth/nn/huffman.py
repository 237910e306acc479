"""Huffman's tree (1952) over names by how often they occur: frequent ones near the root, the mean path the shortest.

In: counts. Out: for each name the inner nodes from the root down and the turn taken at each. Without torch.
"""

from dataclasses import dataclass

import numpy as np


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
