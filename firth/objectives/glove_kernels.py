"""GloVe's inner loop, compiled with numba: AdaGrad over the entries of the co-occurrence matrix.

In: entries (i, j) with their weights X_ij. Out: the tables of vectors and squared gradients, updated in place.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from functools import cache
from typing import Any

import numba as nb
import numpy as np

from firth.compiling import cached_on_disk
from firth.objectives.word_kernels import prefetch_row

_AHEAD = 4
"""How many entries ahead rows are prefetched."""
_REPORT_EVERY = 1 << 16
"""Entries between two updates of a thread's progress: updating it after each would make the other threads wait."""


@nb.njit(inline="always", fastmath=True)
def adagrad_step(width, row, squares, gradients, rate):
    """One AdaGrad step of a row (a vector and its bias) and of its sums of squared gradients."""
    for d in range(width + 1):
        gradient = gradients[d]
        square = squares[d]
        row[d] -= rate * gradient / np.sqrt(square)
        squares[d] = square + gradient * gradient


@nb.njit(inline="always")
def prefetch_entry(key, vocab_size, rows, others, row_sums, other_sums):
    """Prefetches all rows that an entry of the matrix updates."""
    i = np.int32(key // vocab_size)
    j = np.int32(key % vocab_size)
    prefetch_row(rows, i)
    prefetch_row(row_sums, i)
    prefetch_row(others, j)
    prefetch_row(other_sums, j)


@cache
def glove_kernel(width: int) -> Any:
    """The loop for one width; a row is a vector and its bias."""

    @cached_on_disk
    @nb.njit(fastmath=True, nogil=True, error_model="numpy")
    def run(first, last, keys, weights, most, power, vocab_size, tables, rate, done, losses, thread):
        """Trains on the entries from first to last; counts them in done[thread], puts their loss in losses[thread].

        Names follow the paper's equation 8: a row w_i with bias b_i, another row v_j with bias c_j, a weight X_ij.
        """
        rows, others, row_sums, other_sums = tables
        before = done[thread]
        loss = 0.0
        row_gradients = np.empty(width + 1, np.float32)
        other_gradients = np.empty(width + 1, np.float32)
        for entry in range(first, last):
            if entry + _AHEAD < last:
                prefetch_entry(keys[entry + _AHEAD], vocab_size, rows, others, row_sums, other_sums)
            i = keys[entry] // vocab_size
            j = keys[entry] % vocab_size
            x = rows[i]
            y = others[j]
            log = np.log(weights[entry])
            # f(X_ij) = (X_ij / most)^power, at most 1 (equation 9).
            importance = np.exp(power * min(np.float32(0), log - np.log(most)))
            # error = w_i . v_j + b_i + c_j - log X_ij
            error = x[width] + y[width] - log
            for d in range(width):
                error += x[d] * y[d]
            gradient = importance * error
            loss += 0.5 * gradient * error
            for d in range(width):
                row_gradients[d] = gradient * y[d]
                other_gradients[d] = gradient * x[d]
            row_gradients[width] = other_gradients[width] = gradient
            adagrad_step(width, x, row_sums[i], row_gradients, rate)
            adagrad_step(width, y, other_sums[j], other_gradients, rate)
            if entry % _REPORT_EVERY == 0:
                done[thread] = before + entry - first
        done[thread] = before + last - first
        losses[thread] = loss

    return run
