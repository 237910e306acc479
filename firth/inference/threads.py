"""Batches side by side where there are many: threads that share a batch wait for each other at every step of it."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from typing import TypeVar

import torch

T = TypeVar("T")
ENOUGH = 4
"""Batches for each of those side by side at least: with fewer, cores would be idle while the last ones end."""
_STARTING = Lock()


def side_by_side(compute: Callable[[T], None], batches: Sequence[T]) -> None:
    """Computes every batch: several at a time that share the cores out, or one after another, each on all cores."""
    pool = _pool(len(batches) // ENOUGH)
    if pool is None:
        for batch in batches:
            compute(batch)
        return
    with pool:
        list(pool.map(compute, reversed(batches)))  # long sequences come last and take longest, so they begin first


def _pool(most: int) -> ThreadPoolExecutor | None:
    """Threads that have their share of the caller's cores each; None where one thread would be left.

    A thread keeps torch's number of cores from its first use on, but setting it in one thread is also setting it for
    those to come: hence all threads begin together, and the number is put back before anything else goes on.
    """
    with _STARTING:
        cores = torch.get_num_threads()
        lanes = min(cores, most)
        if lanes < 2:
            return None
        pool, all_there = ThreadPoolExecutor(lanes), Barrier(lanes, timeout=60)

        def begin(_: int) -> None:
            torch.get_num_threads()  # a first use, which would take the number for those to come
            torch.set_num_threads(cores // lanes)
            all_there.wait()  # so that no thread begins twice

        try:
            list(pool.map(begin, range(lanes)))
        finally:
            torch.set_num_threads(cores)
        return pool
