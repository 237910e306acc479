"""How often words occur near each other: GloVe's counts (Pennington et al. 2014, section 3), bounded in memory.

In: a stream of words. Out: entries (word, neighbour, weight), where a neighbour d words away weighs 1/d, in
memory-mapped files. They are added up in a hash table of a fixed size. When it is full its entries go to disk, sorted;
at the end all sorted lists are merged. Shuffling the entries needs no more memory than the table.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firth import rng
from firth.errors import absent
from firth.files import forget_pages

SLOTS = 1 << 24
"""Entries of the table, a power of two (12 bytes each); it is written out when three quarters of it are used."""
_WORDS = 1 << 24
"""Words after which the table is written out even if it is not full: it adds up in float32, which is right to 0.2 % for
weights of up to a million, and no pair of words in a text gets there so soon. Merging adds in float64."""
_MERGE = 1 << 20
"""Entries of each list that are read or written at once."""
BUCKET = 1 << 22
"""About the number of entries that are sorted at once while all are shuffled; more if there were too many files."""
_FILES = 256
"""Buckets at most, because each is an open file."""
_RANDOM_ENTRY = np.dtype([("random", "<u8"), ("key", "<i8"), ("weight", "<f4")])
"""An entry on its way through a bucket file."""


@dataclass(frozen=True)
class Entries:
    """Pairs of words near each other: key = word * V + neighbour, each once."""

    keys_E: np.ndarray
    weights_E: np.ndarray
    files: tuple[Path, ...] = ()

    def __len__(self) -> int:
        return len(self.keys_E)

    def forget(self) -> None:
        """Releases the memory pages that were read."""
        forget_pages(self.keys_E)
        forget_pages(self.weights_E)

    def remove(self) -> None:
        """Deletes the files."""
        for file in self.files:
            file.unlink()


Arrays = tuple[np.ndarray, np.ndarray]
"""Keys and weights of some entries."""
_NONE = Entries(np.empty(0, np.int64), np.empty(0, np.float32))


def count_pairs(
    rows: Iterable[np.ndarray],
    vocab_size: int,
    *,
    window: int,
    folder: Path,
    slots: int = SLOTS,
) -> Entries:
    """The entries of all rows of words, by ascending keys, in files of the folder; both directions are counted."""
    sorted_lists = []
    for i, block in enumerate(_blocks(rows, vocab_size, window=window, slots=slots)):
        sorted_lists.append(_write(folder / str(i), block))
    # Merge two at a time: little is in memory at once.
    while len(sorted_lists) > 1:
        merged = []
        for i in range(0, len(sorted_lists), 2):
            pair = sorted_lists[i : i + 2]
            if len(pair) == 1:
                merged.append(pair[0])
            else:
                path = folder / f"{len(sorted_lists)}-{i}"
                merged.append(_write(path, _merge(pair[0], pair[1])))
        sorted_lists = merged
    if not sorted_lists:
        return _NONE
    return sorted_lists[0]


def shuffled(entries: Entries, key: np.uint64, *, folder: Path, bucket: int = BUCKET) -> Entries:
    """The entries in the order of `rng.permutation`, in files of the folder."""
    num_buckets = min(_FILES, -(-len(entries) // bucket))
    return _write(folder / "shuffled", _shuffle(entries, key, folder, num_buckets))


def _shuffle(entries: Entries, key: np.uint64, folder: Path, num_buckets: int) -> Iterator[Arrays]:
    """The entries sorted by a random number each: first distributed to buckets by it, then sorted in each bucket."""
    # The random numbers at which buckets 1, 2, ... begin: 64 bits in equal shares.
    begins = [(i << 64) // num_buckets for i in range(1, num_buckets)]
    limits = np.array(begins, np.uint64)
    with ExitStack() as stack:
        files = []
        for i in range(num_buckets):
            path = folder / f"bucket-{i}"
            files.append(stack.enter_context(path.open("w+b")))
        for start in range(0, len(entries), _MERGE):
            rows = _with_random_numbers(entries, key, start)
            rows = rows[np.argsort(rows["random"], kind="stable")]
            cuts = np.searchsorted(rows["random"], limits)
            for file, bucket_rows in zip(files, np.split(rows, cuts), strict=True):
                bucket_rows.tofile(file)
            entries.forget()
        for file in files:
            file.seek(0)
            rows = np.fromfile(file, _RANDOM_ENTRY)
            rows = rows[np.argsort(rows["random"], kind="stable")]
            yield rows["key"], rows["weight"]
            Path(file.name).unlink()


def _with_random_numbers(entries: Entries, key: np.uint64, start: int) -> np.ndarray:
    """Some entries from `start` on; the random number of entry i depends on the key and i only."""
    keys = entries.keys_E[start : start + _MERGE]
    weights = entries.weights_E[start : start + _MERGE]
    rows = np.empty(len(keys), _RANDOM_ENTRY)
    rows["random"] = rng.bits(key, np.arange(start, start + len(keys)))
    rows["key"] = keys
    rows["weight"] = weights
    return rows


def _blocks(rows: Iterable[np.ndarray], vocab_size: int, *, window: int, slots: int) -> Iterator[Iterator[Arrays]]:
    """The entries of the table each time it is full, and at the end."""
    try:
        from firth.data.count_kernels import tally
    except ImportError:
        raise absent("numba", extra="vectors", user="Counting neighbours") from None
    keys = np.full(slots, -1, np.int64)
    weights = np.zeros(slots, np.float32)
    # A single word adds at most 2 * window entries before the kernel looks at the limit again.
    limit = slots * 3 // 4 - 2 * window
    num_used = 0
    num_words = 0
    for row in rows:
        position = 0
        num_words += len(row)
        while position < len(row):
            position, num_used = tally(
                row.astype(np.int32), position, window, vocab_size, keys, weights, num_used, limit
            )
            if num_used > limit or num_words > _WORDS:
                yield _empty_table(keys, weights)
                num_used = 0
                num_words = 0
    if num_used:
        yield _empty_table(keys, weights)


def _empty_table(keys: np.ndarray, weights: np.ndarray) -> Iterator[Arrays]:
    """The table's entries by ascending keys, in pieces; the table is empty afterwards."""
    is_used = keys >= 0
    count = int(is_used.sum())
    # In place, because the table is what takes most memory.
    keys[:count] = keys[is_used]
    weights[:count] = weights[is_used]
    order = np.argsort(keys[:count])
    for start in range(0, count, _MERGE):
        piece = order[start : start + _MERGE]
        yield keys[piece], weights[piece]
    keys[:] = -1
    weights[:] = 0


def _summed(keys: np.ndarray, weights: np.ndarray) -> Arrays:
    """The entries by ascending keys; the weights of equal keys are added in float64."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    weights = weights[order].astype(np.float64)
    if not len(keys):
        return keys, weights.astype(np.float32)
    is_first = np.concatenate([[True], keys[1:] != keys[:-1]])
    first = np.flatnonzero(is_first)
    sums = np.add.reduceat(weights, first)
    return keys[first], sums.astype(np.float32)


def _write(path: Path, pieces: Iterable[Arrays]) -> Entries:
    """Writes entries to disk and maps them."""
    keys_path = path.with_suffix(".keys")
    weights_path = path.with_suffix(".weights")
    with keys_path.open("wb") as keys_file, weights_path.open("wb") as weights_file:
        for keys, weights in pieces:
            keys.astype("<i8").tofile(keys_file)
            weights.astype("<f4").tofile(weights_file)
    keys_E = np.memmap(keys_path, "<i8", "r").view(np.ndarray)
    weights_E = np.memmap(weights_path, "<f4", "r").view(np.ndarray)
    return Entries(keys_E, weights_E, (keys_path, weights_path))


def _merge(one: Entries, other: Entries) -> Iterator[Arrays]:
    """Two sorted lists as one, in pieces; weights of equal keys are added. Removes the files of both."""
    one_start = 0
    other_start = 0
    while one_start < len(one) or other_start < len(other):
        # Up to this key both lists have been read: no smaller key can follow.
        limit = min(_last_key(one, one_start), _last_key(other, other_start))
        one_end = int(np.searchsorted(one.keys_E, limit, "right"))
        other_end = int(np.searchsorted(other.keys_E, limit, "right"))
        one_rows = slice(one_start, one_end)
        other_rows = slice(other_start, other_end)
        keys = np.concatenate([one.keys_E[one_rows], other.keys_E[other_rows]])
        weights = np.concatenate([one.weights_E[one_rows], other.weights_E[other_rows]])
        yield _summed(keys, weights)
        one_start = one_end
        other_start = other_end
        one.forget()
        other.forget()
    one.remove()
    other.remove()


def _last_key(entries: Entries, start: int) -> int:
    """The last key of the piece that begins at `start`; above all keys where none is left."""
    if start >= len(entries):
        return np.iinfo(np.int64).max
    end = min(start + _MERGE, len(entries))
    return int(entries.keys_E[end - 1])
