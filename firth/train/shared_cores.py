"""Training next to other busy processes: threads that wait for each other spin only while the cores are free.

OpenMP's threads wait for each other after every operation. libgomp lets them spin for milliseconds, which is the
fastest way while no other process needs the cores. Next to a busy process, a thread that spins uses up its share of a
core. When there is work again, it waits for the other process, and all threads wait for it.

libgomp stops spinning by itself once it manages more threads than there are cores. So a watcher looks at the load twice
a second. If other processes need the cores, it adds threads to libgomp that only sleep; later it takes them away.
The number of threads that compute stays the same, and so does every bit of the result. `python -m bench.neighbour_cpu`
shows the speed. Without libgomp or Linux nothing is done.
"""

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import torch

INTERVAL = 0.5
"""Seconds between two looks at the load."""
CROWDED = 0.3
"""How many cores too few there must be before spinning stops."""


@contextmanager
def share_cores() -> Iterator[None]:
    """Inside it, torch's threads spin only while no other process needs the cores."""
    libgomp = find_libgomp()
    threads = torch.get_num_threads()
    if libgomp is None or threads < 2:
        yield
        return
    ended = Event()
    watcher = Thread(target=_watch, args=(libgomp, threads, ended), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def find_libgomp() -> ctypes.CDLL | None:
    """The libgomp that torch uses; None if there is no such library."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
        paths = {line.split()[-1] for line in lines if "libgomp" in line}
        own_first = sorted(paths, key=lambda path: "torch" not in path)
        library = ctypes.CDLL(own_first[0])
    except (OSError, IndexError):
        return None
    has_all = hasattr(library, "GOMP_parallel") and hasattr(library, "omp_get_num_threads")
    if not has_all:
        return None
    return library


class Sleepers:
    """Threads of libgomp that sleep. They belong to a Python thread and end with it."""

    def __init__(self, libgomp: ctypes.CDLL, count: int) -> None:
        self.ended = Event()
        self.owner = Thread(target=self._hold, args=(libgomp, count), daemon=True)
        self.owner.start()

    def _hold(self, libgomp: ctypes.CDLL, count: int) -> None:
        # Each of them runs this once. It is a function of libgomp, so no Python runs in those threads.
        nothing = ctypes.cast(libgomp.omp_get_num_threads, ctypes.c_void_p)
        libgomp.GOMP_parallel(nothing, None, ctypes.c_uint(count), ctypes.c_uint(0))
        self.ended.wait()

    def end(self) -> None:
        self.ended.set()
        self.owner.join()


def _watch(libgomp: ctypes.CDLL, threads: int, ended: Event) -> None:
    """Adds and removes sleeping threads as the load changes, until `ended` is set."""
    cores = os.sched_getaffinity(0)
    free = len(cores) - threads
    sleepers: Sleepers | None = None
    others_use = _load_of_others(cores)
    while not ended.wait(INTERVAL):
        crowded = others_use() > free + CROWDED
        if crowded and sleepers is None:
            # With the threads that compute, this is one more than there are cores.
            sleepers = Sleepers(libgomp, max(free, 0) + 2)
        elif not crowded and sleepers is not None:
            sleepers.end()
            sleepers = None
    if sleepers is not None:
        sleepers.end()


def _load_of_others(cores: set[int]) -> Callable[[], float]:
    """A function that says how many of these cores other processes have used since its last call."""

    def seconds_of_others() -> float:
        return _busy_seconds(cores) - time.process_time()

    busy_before = seconds_of_others()
    time_before = time.monotonic()

    def used() -> float:
        nonlocal busy_before, time_before
        busy = seconds_of_others()
        now = time.monotonic()
        cores_used = (busy - busy_before) / max(now - time_before, 1e-3)
        busy_before = busy
        time_before = now
        return cores_used

    return used


def _busy_seconds(cores: set[int]) -> float:
    """How many seconds these cores have been busy since the machine was started."""
    names = {f"cpu{core}" for core in cores}
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name in names:
            # The columns of proc(5); idle time and waiting for disks are not busy.
            user, nice, system, _idle, _waiting, interrupts, soft_interrupts, *_ = map(int, fields)
            ticks += user + nice + system + interrupts + soft_interrupts
    return ticks / os.sysconf("SC_CLK_TCK")
