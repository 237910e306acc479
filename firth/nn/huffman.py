"""Huffman's tree (1952) over names by their counts: frequent names are near the root, the mean path is the shortest.

In: counts. Out: for each name the inner nodes from the root down and the turn taken at each. Does not need torch.
"""

from dataclasses import dataclass

import numpy as np

from firth.ragged import bounds_of


@dataclass(frozen=True)
class Paths:
    """The path from a tree's root to each name: inner nodes, and at each the turn (1 is right)."""

    bounds_V1: np.ndarray
    nodes_P: np.ndarray
    turns_P: np.ndarray

    @classmethod
    def none(cls) -> "Paths":
        """No paths, for loops without a tree."""
        bounds_V1 = np.zeros(1, np.int64)
        nodes_P = np.zeros(0, np.int32)
        turns_P = np.zeros(0, np.int8)
        return cls(bounds_V1, nodes_P, turns_P)


def huffman(counts_V: np.ndarray) -> Paths:
    """The tree of all names that occur (others have an empty path); ties are broken as in the fasttext program."""
    order = np.argsort(-counts_V, kind="stable")
    words = order[counts_V[order] > 0]
    parent, turn = _merge(counts_V[words].tolist())
    size = len(words)

    depth = np.zeros(2 * size, np.int64)
    # From the root down: parents have higher numbers than their children.
    for node in range(2 * size - 3, -1, -1):
        depth[node] = depth[parent[node]] + 1
    lengths_V = np.zeros(len(counts_V), np.int64)
    lengths_V[words] = depth[:size]
    bounds_V1 = bounds_of(lengths_V)

    nodes_P = np.zeros(bounds_V1[-1], np.int32)
    turns_P = np.zeros(bounds_V1[-1], np.int8)
    # All leaves climb together, each writing its path from the end.
    nodes = np.arange(size)
    place = bounds_V1[words + 1] - 1
    while len(nodes):
        climbing = depth[nodes] > 0
        nodes = nodes[climbing]
        place = place[climbing]
        turns_P[place] = turn[nodes]
        nodes_P[place] = parent[nodes] - size
        nodes = parent[nodes]
        place = place - 1
    return Paths(bounds_V1, nodes_P, turns_P)


def _merge(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Joins the two rarest nodes again and again; returns each node's parent and its turn there.

    Nodes are the leaves (rarest last), then the inner nodes in the order they are made.
    """
    size = len(counts)
    parent = np.zeros(2 * size, np.int64)
    turn = np.zeros(2 * size, np.int8)
    # Leaves and inner nodes both come in ascending order of their counts, so the rarest is at the head of one queue.
    inner_counts = list[int]()
    next_leaf = size - 1
    next_inner = 0
    for node in range(size, 2 * size - 1):
        total = 0
        for side in (0, 1):
            no_inner = next_inner >= len(inner_counts)
            if next_leaf >= 0 and (no_inner or counts[next_leaf] < inner_counts[next_inner]):
                child = next_leaf
                total += counts[next_leaf]
                next_leaf -= 1
            else:
                child = size + next_inner
                total += inner_counts[next_inner]
                next_inner += 1
            parent[child] = node
            turn[child] = side
        inner_counts.append(total)
    return parent, turn
