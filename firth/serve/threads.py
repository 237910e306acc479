"""Batches side by side, one thread each, where there are many: threads that share a batch wait for each other at every
step of it."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
ENOUGH = 4
"""Batches for each thread at least: with fewer, threads would have nothing to do while the last ones end."""


def side_by_side(compute: Callable[[T], None], batches: Sequence[T]) -> None:
    """Computes every batch, in threads that each have one core; or one after another, each on all cores."""
    threads = torch.get_num_threads()
    if threads == 1 or len(batches) < ENOUGH * threads:
        for batch in batches:
            compute(batch)
        return
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            # Long sequences come last and take longest, so they begin first.
            list(pool.map(compute, reversed(batches)))
        finally:
            torch.set_num_threads(threads)  # the number is that of each thread, but new threads take the last one set
