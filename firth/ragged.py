"""Rows of different sizes that lie end to end in one array: sizes in; bounds, starts, owners and places out.

Sequences of a batch, sentences of a document and parts of a token are all stored this way, without padding.
"""

from collections.abc import Sequence

import numpy as np

Sizes = np.ndarray | Sequence[int]
"""The number of items of each row."""


def bounds_of(sizes: Sizes) -> np.ndarray:
    """Where each row begins, and the end of the last one."""
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, dtype=np.int64, out=bounds[1:])
    return bounds


def starts_of(sizes: np.ndarray) -> np.ndarray:
    """Where each row begins."""
    ends = np.cumsum(sizes)
    return np.asarray(ends - sizes)


def owners_of(sizes: Sizes) -> np.ndarray:
    """For each item the number of its row."""
    numbers = np.arange(len(sizes))
    return np.repeat(numbers, sizes)


def places_of(sizes: np.ndarray) -> np.ndarray:
    """For each item its place in its row."""
    return ranges(np.zeros_like(sizes), sizes)


def ranges(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The integers of many ranges, end to end."""
    sizes = ends - starts
    # Where each range begins in the result; a number of the result minus this, plus the start, is the integer.
    first = starts_of(sizes)
    shifts = np.repeat(starts - first, sizes)
    numbers = np.arange(len(shifts))
    return np.asarray(numbers + shifts)
