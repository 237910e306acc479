"""Several batches at a time, each on its share of the cores: threads that share a batch wait for each other at every
operation, threads with a batch each do not."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from typing import TypeVar

import torch

BatchT = TypeVar("BatchT")
MIN_BATCHES_PER_THREAD = 4
"""With fewer batches for each thread, cores would be idle while the last batches end."""
_STARTING = Lock()


def compute_in_parallel(compute: Callable[[BatchT], None], batches: Sequence[BatchT]) -> None:
    """Calls `compute` for every batch, given in order of length.

    Many batches are computed several at a time, each on a part of the cores. Few are computed one after another, each
    on all cores.
    """
    pool = _start_pool(len(batches) // MIN_BATCHES_PER_THREAD)
    if pool is None:
        for batch in batches:
            compute(batch)
        return
    with pool:
        # The longest sequences come last and take longest, so they are started first.
        results = pool.map(compute, reversed(batches))
        # Reading the results raises the error of a batch that failed.
        list(results)


def _start_pool(max_threads: int) -> ThreadPoolExecutor | None:
    """Threads that divide the caller's cores among them; None if there would be only one thread.

    A thread keeps torch's number of cores from its first use of torch. But setting that number in one thread also sets
    it for threads that start later. Hence all threads start together, and the number is restored before anything else.
    """
    with _STARTING:
        num_cores = torch.get_num_threads()
        num_threads = min(num_cores, max_threads)
        if num_threads < 2:
            return None
        pool = ThreadPoolExecutor(num_threads)
        all_started = Barrier(num_threads, timeout=60)

        def start(_: int) -> None:
            # The first use of torch in a thread takes the number set by others, so it comes before `set_num_threads`.
            torch.get_num_threads()
            torch.set_num_threads(num_cores // num_threads)
            # Waiting keeps a fast thread from taking two of these calls.
            all_started.wait()

        try:
            list(pool.map(start, range(num_threads)))
        except BaseException:
            pool.shutdown(wait=False)
            raise
        finally:
            torch.set_num_threads(num_cores)
        return pool
