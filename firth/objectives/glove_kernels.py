"""GloVe's inner loops, compiled: AdaGrad over co-occurrence entries in an order drawn anew for every pass."""

# mypy: allow-untyped-defs, allow-untyped-calls

from functools import cache
from typing import Any

import numba as nb
import numpy as np


@cache
def glove_kernel(width: int) -> Any:
    """The loop for one width; row = vector, then bias."""

    @nb.njit(fastmath=True, nogil=True)
    def run(order, keys, logs, pulls, vocab_size, rows, others, row_sums, other_sums, rate, total, me):
        loss = 0.0
        for n in range(len(order)):
            entry = order[n]
            i, j = keys[entry] // vocab_size, keys[entry] % vocab_size
            x, y = rows[i], others[j]
            sx, sy = row_sums[i], other_sums[j]
            miss = x[width] + y[width] - logs[entry]
            for d in range(width):
                miss += x[d] * y[d]
            slope = pulls[entry] * miss
            loss += 0.5 * slope * miss
            for d in range(width):
                gx, gy = slope * y[d], slope * x[d]
                x[d] -= rate * gx / np.sqrt(sx[d])
                y[d] -= rate * gy / np.sqrt(sy[d])
                sx[d] += gx * gx
                sy[d] += gy * gy
            x[width] -= rate * slope / np.sqrt(sx[width])
            y[width] -= rate * slope / np.sqrt(sy[width])
            sx[width] += slope * slope
            sy[width] += slope * slope
        total[me] = loss

    return run
