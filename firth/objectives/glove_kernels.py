"""GloVe's inner loops, compiled: AdaGrad over entries of co-occurrence."""

# mypy: allow-untyped-defs, allow-untyped-calls

from functools import cache
from typing import Any

import numba as nb
import numpy as np

from firth.compiling import kept_on_disk
from firth.objectives.word_kernels import fetch

_AHEAD = 4
"""Entries whose rows are asked for before their turn."""
_TELL = 1 << 16
"""Entries after which a thread says how far it is: saying so after each would make the others wait."""


@nb.njit(inline="always", fastmath=True)
def descend(width, row, squares, slopes, rate):
    for d in range(width + 1):
        slope, square = slopes[d], squares[d]
        row[d] -= rate * slope / np.sqrt(square)
        squares[d] = square + slope * slope


@cache
def glove_kernel(width: int) -> Any:
    """The loop for one width; a row is a vector and its bias."""

    @kept_on_disk
    @nb.njit(fastmath=True, nogil=True, error_model="numpy")
    def run(first, last, keys, weights, most, power, vocab_size, tables, rate, done, losses, me):
        """The entries from first to last; how many are done goes to done[me], their loss to losses[me]."""
        rows, others, row_sums, other_sums = tables
        before, loss = done[me], 0.0
        row_slopes, other_slopes = np.empty(width + 1, np.float32), np.empty(width + 1, np.float32)
        for entry in range(first, last):
            if entry + _AHEAD < last:
                i, j = np.int32(keys[entry + _AHEAD] // vocab_size), np.int32(keys[entry + _AHEAD] % vocab_size)
                fetch(rows, i)
                fetch(row_sums, i)
                fetch(others, j)
                fetch(other_sums, j)
            i, j = keys[entry] // vocab_size, keys[entry] % vocab_size
            x, y = rows[i], others[j]
            log = np.log(weights[entry])
            pull = np.exp(power * min(np.float32(0), log - np.log(most)))  # (x / most)^power, at most 1
            miss = x[width] + y[width] - log
            for d in range(width):
                miss += x[d] * y[d]
            slope = pull * miss
            loss += 0.5 * slope * miss
            for d in range(width):
                row_slopes[d] = slope * y[d]
                other_slopes[d] = slope * x[d]
            row_slopes[width] = other_slopes[width] = slope
            descend(width, x, row_sums[i], row_slopes, rate)
            descend(width, y, other_sums[j], other_slopes, rate)
            if entry % _TELL == 0:
                done[me] = before + entry - first
        done[me], losses[me] = before + last - first, loss

    return run
