"""A head over a Huffman tree of names (Morin & Bengio 2005; Mikolov et al. 2013).

In: states. Out: the logarithms of all names' probabilities.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth.nn.huffman import Paths, huffman


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
