"""A large array in an object store, read in blocks: at most so many bytes of it are on this machine at a time.

In: a URL, the array's type and length, and a limit. Out: an object that is indexed like a numpy array of one dimension.
Blocks lie in the slots of one local file, which is memory-mapped and has no name, so that it goes with the process. The
block that was used least recently makes room for the next. Blocks that will be needed soon are fetched by other threads
(`prefetch`). Every process has a cache of its own: one that was forked begins with an empty one.
"""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from firth import remote
from firth.errors import BadConfig, BadInput, Unsupported

BLOCK_BYTES = 1 << 18
"""Bytes of one request, unless an array has its own."""
THREADS = 8
"""Requests at a time."""
_MIN_SLOTS = 8
_ABSENT = -1


@dataclass
class CacheCounts:
    """What a cache has done."""

    fetched: int = 0
    """Blocks that were read from the store."""
    waited: int = 0
    """Blocks that were not there when they were needed."""


class BlockArray:
    """An array of one dimension in an object store. Indices are slices and arrays of non-negative integers."""

    ndim = 1

    def __init__(
        self,
        url: str,
        dtype: np.dtype[np.generic],
        size: int,
        *,
        folder: Path,
        limit_bytes: int,
        block_bytes: int | None = None,
    ) -> None:
        block_bytes = block_bytes or BLOCK_BYTES
        self.url = url
        self.dtype = dtype
        self.size = size
        self.folder = folder
        self.block_size = block_bytes // dtype.itemsize
        self.num_blocks = -(-size // self.block_size)  # rounded up
        self.num_slots = min(limit_bytes // block_bytes, self.num_blocks)
        if self.num_slots < min(_MIN_SLOTS, self.num_blocks):
            raise BadConfig(f"A cache of {limit_bytes:,} bytes is too small for {url}; FIRTH_CACHE_GB=0.01 is enough.")
        self.counts = CacheCounts()
        self._slots: _Slots | None = None

    @property
    def shape(self) -> tuple[int]:
        return (self.size,)

    def __len__(self) -> int:
        return self.size

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        raise Unsupported(
            f"{self.url} would have to fit into memory for this; copy the prepared text to this machine first."
        )

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        if isinstance(index, slice):
            index = np.arange(*index.indices(self.size))
        places = np.asarray(index)
        if places.size and (places.min() < 0 or places.max() >= self.size):
            raise IndexError(f"{self.url} has {self.size} values")
        blocks = places // self.block_size
        offsets = places - blocks * self.block_size
        needed = _different(blocks)
        # More blocks than half of the cache are read in several rounds, so that none of a round makes room for another.
        round_size = max(1, self.num_slots // 2)
        if len(needed) <= round_size:
            return self._cache().read(blocks, offsets, needed)
        found = np.empty(places.shape, self.dtype)
        for start in range(0, len(needed), round_size):
            round_blocks = needed[start : start + round_size]
            first = round_blocks[0]
            last = round_blocks[-1]
            is_here = (blocks >= first) & (blocks <= last)
            found[is_here] = self._cache().read(blocks[is_here], offsets[is_here], round_blocks)
        return found

    def prefetch(self, starts: np.ndarray, ends: np.ndarray) -> None:
        """Fetches the blocks of these ranges in the background, as many as fit into half of the cache."""
        first = starts // self.block_size
        last = np.maximum(ends - 1, starts) // self.block_size
        # A range is shorter than a block as a rule; a longer one is fetched by its two ends.
        wanted = np.unique(np.concatenate([first, last]))
        wanted = wanted[wanted < self.num_blocks]
        self._cache().request(wanted[: self.num_slots // 2].tolist())

    def _cache(self) -> "_Slots":
        """The cache of this process. A forked one would share its file, but not what it knows of it."""
        if self._slots is None or self._slots.process != os.getpid():
            self._slots = _Slots(self)
        return self._slots


def _different(blocks: np.ndarray) -> np.ndarray:
    """The different blocks, sorted. Most tokens are in the block of the token before them, so little is sorted."""
    flat = blocks.ravel()
    is_other = np.ones(len(flat), bool)
    is_other[1:] = flat[1:] != flat[:-1]
    return np.unique(flat[is_other])


class _Slots:
    """The blocks that are on this machine."""

    def __init__(self, array: BlockArray) -> None:
        self.process = os.getpid()
        self.array = array
        num_bytes = array.num_slots * array.block_size * array.dtype.itemsize
        array.folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=array.folder) as file:
            file.truncate(num_bytes)
            # The memory map keeps the file.
            shape = (array.num_slots * array.block_size,)
            self.values = np.asarray(np.memmap(file, array.dtype, "r+", shape=shape))
        self.slot_of_block = np.full(array.num_blocks, _ABSENT, np.int64)
        self.block_of_slot = np.full(array.num_slots, _ABSENT, np.int64)
        self.last_use = np.zeros(array.num_slots, np.int64)
        self.clock = 0
        self.lock = threading.Lock()
        self.under_way: dict[int, Future[None]] = {}
        self.pool = ThreadPoolExecutor(THREADS, thread_name_prefix="firth-blocks")

    def read(self, blocks: np.ndarray, offsets: np.ndarray, needed: np.ndarray) -> np.ndarray:
        """The values at these offsets of these blocks; `needed` are the different blocks."""
        is_first_look = True
        while True:
            with self.lock:
                slots = self.slot_of_block[needed]
                if (slots != _ABSENT).all():
                    self.clock += 1
                    self.last_use[slots] = self.clock
                    first_values = self.slot_of_block[blocks] * self.array.block_size
                    return np.asarray(self.values[first_values + offsets])
            missing = needed[slots == _ABSENT].tolist()
            if is_first_look:
                self.array.counts.waited += len(missing)
                is_first_look = False
            futures = self.request(missing)
            wait(futures)
            for future in futures:
                future.result()  # raises what the store raised

    def request(self, blocks: Sequence[int]) -> list[Future[None]]:
        """Begins to fetch the blocks that are not here; returns what to wait for."""
        futures = []
        with self.lock:
            for block in blocks:
                if self.slot_of_block[block] != _ABSENT:
                    continue
                if block not in self.under_way:
                    self.under_way[block] = self.pool.submit(self._fetch, block)
                futures.append(self.under_way[block])
        return futures

    def _fetch(self, block: int) -> None:
        array = self.array
        try:
            first = block * array.block_size
            end = min(first + array.block_size, array.size)
            itemsize = array.dtype.itemsize
            data = remote.read_range(array.url, first * itemsize, end * itemsize)
            values = np.frombuffer(data, array.dtype)
            if len(values) != end - first:
                raise BadInput(f"{array.url} ends before its {array.size:,} values; prepare the text again.")
            with self.lock:
                self._store(block, values)
        finally:
            with self.lock:
                self.under_way.pop(block, None)

    def _store(self, block: int, values: np.ndarray) -> None:
        """Puts a block into the slot that was used least recently."""
        slot = int(self.last_use.argmin())
        old = self.block_of_slot[slot]
        if old != _ABSENT:
            self.slot_of_block[old] = _ABSENT
        first = slot * self.array.block_size
        self.values[first : first + len(values)] = values
        self.block_of_slot[slot] = block
        self.slot_of_block[block] = slot
        self.clock += 1
        self.last_use[slot] = self.clock
        self.array.counts.fetched += 1
