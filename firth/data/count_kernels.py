"""Counting pairs of neighbours in a hash table of fixed size, compiled."""

# mypy: allow-untyped-defs, allow-untyped-calls

import numba as nb
import numpy as np

from firth.compiling import cached_on_disk


@cached_on_disk
@nb.njit(nogil=True)
def tally(row, start, window, vocab_size, keys, weights, used, limit):
    """Adds the pairs of a row from `start` on, until the table is full; returns where it stopped and the slots used.

    A pair d words apart weighs 1/d, in both directions. Free slots have the key -1. The length of the table is a power
    of two; a key that finds its slot taken goes to the next free one (linear probing).
    """
    mask = np.uint64(len(keys) - 1)
    for i in range(start, len(row)):
        if used > limit:
            return i, used
        for j in range(i + 1, min(len(row), i + window + 1)):
            weight = np.float32(1.0 / (j - i))
            forward = np.int64(row[i]) * vocab_size + row[j]
            backward = np.int64(row[j]) * vocab_size + row[i]
            for key in (forward, backward):
                # Fibonacci hashing: 2^64 divided by the golden ratio.
                slot = (np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20) & mask
                while keys[slot] != key and keys[slot] >= 0:
                    slot = (slot + np.uint64(1)) & mask
                if keys[slot] < 0:
                    keys[slot] = key
                    used += 1
                weights[slot] += weight
    return len(row), used
