"""Training on a CPU keeps the memory it frees, instead of asking the system for it again in every step.

glibc gives every large block back to the system as soon as it is freed. The next step asks for the same blocks again,
and the system fills each page with zeros before it hands it out: up to a fifth of the time of a step. Inside
`keep_memory` freed blocks stay with the process, where the next step finds them. The most memory at one time stays
about the same, because the same blocks exist at once. At the end everything free goes back. On GPUs torch has a cache
of its own. Without glibc (not Linux, or Alpine) nothing is done.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock

TRIM_THRESHOLD = -1
"""The number of glibc's option M_TRIM_THRESHOLD: how much free memory at the end of the heap stays with the process."""
MMAP_THRESHOLD = -3
"""That of M_MMAP_THRESHOLD: from which size on a block is a mapping of its own, which is given back when freed."""
MMAP_MAX = -4
"""That of M_MMAP_MAX: how many blocks may be such mappings."""
KEPT_BYTES = 2**31 - 1
DEFAULT_MMAP_MAX = 65_536
LARGE_BLOCK = 32 * 2**20
"""The highest M_MMAP_THRESHOLD. glibc raises it to this by itself as blocks are freed, but only while nobody sets one
of these options; the other threshold is then twice as high."""

_lock = Lock()
_num_inside = 0
"""How many runs of this process are inside `keep_memory`, in several threads or in each other."""


@contextmanager
def keep_memory() -> Iterator[None]:
    """Inside it, freed memory stays with the process."""
    allocator = _glibc()
    if allocator is None:
        yield
        return
    _enter(allocator)
    try:
        yield
    finally:
        _leave(allocator)


def _enter(allocator: ctypes.CDLL) -> None:
    global _num_inside
    with _lock:
        _num_inside += 1
        if _num_inside == 1:
            allocator.mallopt(MMAP_MAX, 0)
            allocator.mallopt(TRIM_THRESHOLD, KEPT_BYTES)


def _leave(allocator: ctypes.CDLL) -> None:
    global _num_inside
    with _lock:
        _num_inside -= 1
        if _num_inside == 0:
            allocator.mallopt(MMAP_MAX, DEFAULT_MMAP_MAX)
            allocator.mallopt(MMAP_THRESHOLD, LARGE_BLOCK)
            allocator.mallopt(TRIM_THRESHOLD, 2 * LARGE_BLOCK)
            allocator.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    """glibc's allocator; None on other systems."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    is_glibc = hasattr(library, "gnu_get_libc_version")
    has_all = hasattr(library, "mallopt") and hasattr(library, "malloc_trim")
    return library if is_glibc and has_all else None
