"""A head over a Huffman tree of names (Morin & Bengio 2005; Mikolov et al. 2013).

In: states. Out: the log-probabilities of all names.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth.nn.huffman import Paths, huffman


class TreeHead(nn.Module):
    """Scores that are log-probabilities: at every inner node of the tree a logistic choice of right or left.

    The tree is stored as the parent of each of its M = 2T - 1 nodes (names, then inner nodes, the root last) and the
    turn from the parent to the node, so its size is linear in the number of names.
    """

    above_M: Tensor
    turns_M: Tensor

    def __init__(self, width: int, num_labels: int) -> None:
        super().__init__()
        num_nodes = 2 * num_labels - 1
        self.weight = nn.Parameter(torch.zeros(num_labels - 1, width))
        self.register_buffer("above_M", torch.zeros(num_nodes, dtype=torch.int64))
        self.register_buffer("turns_M", torch.zeros(num_nodes, dtype=torch.int8))
        self.plant(np.ones(num_labels, np.int64))

    def plant(self, counts_T: np.ndarray) -> Paths:
        """Sets the tree from how often labels occur; returns its paths."""
        paths = huffman(np.maximum(counts_T, 1))
        num_labels = len(counts_T)
        num_nodes = 2 * num_labels - 1

        # The child of each entry of a path: the next inner node or, at the end of the path, the name.
        later_nodes_P = paths.nodes_P[1:].astype(np.int64)
        next_node_P = np.append(num_labels + later_nodes_P, 0)
        child_P = next_node_P[: len(paths.nodes_P)]
        names = np.flatnonzero(np.diff(paths.bounds_V1))  # all, unless there is only one
        last_entries = paths.bounds_V1[names + 1] - 1
        child_P[last_entries] = names

        root = num_nodes - 1
        above_M = np.full(num_nodes, root)
        turns_M = np.zeros(num_nodes, np.int8)
        above_M[child_P] = num_labels + paths.nodes_P
        turns_M[child_P] = paths.turns_P
        self.above_M.copy_(torch.from_numpy(above_M))
        self.turns_M.copy_(torch.from_numpy(turns_M))
        return paths

    def forward(self, x_BD: Tensor) -> Tensor:
        num_labels = len(self.weight) + 1
        choice_BN = F.linear(x_BD, self.weight)
        # Log-probability of the turn from its parent to each node but the root, which adds 0.
        signs = 2 * self.turns_M[:-1].to(choice_BN.dtype) - 1
        inner_nodes = self.above_M[:-1] - num_labels
        logits_BM = choice_BN.index_select(1, inner_nodes) * signs
        steps_BM = F.pad(F.logsigmoid(logits_BM), (0, 1))
        above_M = self.above_M
        # Pointer jumping: every round sums over twice as many ancestors as the one before.
        for _ in range((num_labels - 1).bit_length()):
            steps_BM = steps_BM + steps_BM.index_select(1, above_M)
            above_M = above_M[above_M]
        return steps_BM[:, :num_labels]
