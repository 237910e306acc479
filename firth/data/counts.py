"""How often words stand near each other: GloVe's counts (Pennington et al. 2014, section 3), bounded in memory.

In: a stream of words. Out: entries (word, neighbour, weight), where a neighbour d words away weighs 1/d, in files that
are mapped. They are added up in a table of a fixed size; when it is full its entries go to disk, sorted; at the end all
are merged. Shuffling them needs no more room than the table.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firth import chance
from firth.errors import Unsupported
from firth.files import forget_pages

SLOTS = 1 << 24
"""Entries of the table, a power of two (12 bytes each); it is written out when three quarters of it are used."""
_WORDS = 1 << 24
"""Words after which the table is written out even if it is not full: it adds up in float32, which is right to 0.2 % for
weights of up to a million, and no pair of words in a text gets there so soon. Merging adds in float64."""
_MERGE = 1 << 20
"""Entries of each part that are read or written at once."""
BUCKET = 1 << 22
"""Entries that are put in order at once, about, while all are shuffled; more where that would be too many files."""
_FILES = 256
_TURN = np.dtype([("turn", "<u8"), ("key", "<i8"), ("weight", "<f4")])


@dataclass(frozen=True)
class Entries:
    """Words next to each other: key = word * V + neighbour, each once."""

    keys_E: np.ndarray
    weights_E: np.ndarray
    files: tuple[Path, ...] = ()

    def __len__(self) -> int:
        return len(self.keys_E)

    def forget(self) -> None:
        """Lets go of the pages that were read."""
        forget_pages(self.keys_E)
        forget_pages(self.weights_E)

    def remove(self) -> None:
        """Deletes the files."""
        for file in self.files:
            file.unlink()


Arrays = tuple[np.ndarray, np.ndarray]
_NONE = Entries(np.empty(0, np.int64), np.empty(0, np.float32))


def count_pairs(
    rows: Iterable[np.ndarray], vocab_size: int, *, window: int, folder: Path, slots: int = SLOTS
) -> Entries:
    """The entries of all rows of words, by ascending keys, in files of the folder; both directions are counted."""
    parts = [
        _write(folder / str(i), part) for i, part in enumerate(_blocks(rows, vocab_size, window=window, slots=slots))
    ]
    while len(parts) > 1:  # two at a time: what is read and written stays small
        parts = [
            _write(folder / f"{len(parts)}-{i}", _merge(*parts[i : i + 2])) if i + 1 < len(parts) else parts[i]
            for i in range(0, len(parts), 2)
        ]
    return parts[0] if parts else _NONE


def shuffled(entries: Entries, key: np.uint64, *, folder: Path, bucket: int = BUCKET) -> Entries:
    """The entries in the order of `chance.permutation`, in files of the folder."""
    return _write(folder / "shuffled", _shuffle(entries, key, folder, min(_FILES, -(-len(entries) // bucket))))


def _shuffle(entries: Entries, key: np.uint64, folder: Path, count: int) -> Iterator[Arrays]:
    """Everyone's turn is a number drawn by chance: entries go to buckets by it, and stand in its order in each."""
    limits = np.array([(i << 64) // count for i in range(1, count)], np.uint64)
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"bucket-{i}").open("w+b")) for i in range(count)]
        for at in range(0, len(entries), _MERGE):
            rows = np.empty(len(entries.keys_E[at : at + _MERGE]), _TURN)
            rows["turn"] = chance.bits(key, np.arange(at, at + len(rows)))
            rows["key"], rows["weight"] = entries.keys_E[at : at + _MERGE], entries.weights_E[at : at + _MERGE]
            rows = rows[np.argsort(rows["turn"], kind="stable")]
            for file, some in zip(files, np.split(rows, np.searchsorted(rows["turn"], limits)), strict=True):
                some.tofile(file)
            entries.forget()
        for file in files:
            file.seek(0)
            rows = np.fromfile(file, _TURN)
            rows = rows[np.argsort(rows["turn"], kind="stable")]
            yield rows["key"], rows["weight"]
            Path(file.name).unlink()


def _blocks(rows: Iterable[np.ndarray], vocab_size: int, *, window: int, slots: int) -> Iterator[Iterator[Arrays]]:
    """What the table holds each time it is full, and at the end."""
    try:
        from firth.data.count_kernels import tally
    except ImportError:
        raise Unsupported("Counting neighbours needs numba: pip install 'firth[vectors]'.") from None
    keys, weights, used = np.full(slots, -1, np.int64), np.zeros(slots, np.float32), 0
    limit, words = slots * 3 // 4 - 2 * window, 0
    for row in rows:
        at, words = 0, words + len(row)
        while at < len(row):
            at, used = tally(row.astype(np.int32), at, window, vocab_size, keys, weights, used, limit)
            if used > limit or words > _WORDS:
                yield _taken(keys, weights)
                used = words = 0
    if used:
        yield _taken(keys, weights)


def _taken(keys: np.ndarray, weights: np.ndarray) -> Iterator[Arrays]:
    """The table's entries in order, in pieces; the table is empty afterwards."""
    used = keys >= 0
    count = int(used.sum())
    keys[:count], weights[:count] = keys[used], weights[used]  # in place: the table is what takes most memory
    order = np.argsort(keys[:count])
    for at in range(0, count, _MERGE):
        some = order[at : at + _MERGE]
        yield keys[some], weights[some]
    keys[:], weights[:] = -1, 0


def _summed(keys: np.ndarray, weights: np.ndarray) -> Arrays:
    order = np.argsort(keys, kind="stable")
    keys, weights = keys[order], weights[order].astype(np.float64)
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else np.empty(0, np.int64)
    return keys[first], np.add.reduceat(weights, first).astype(np.float32) if len(keys) else weights.astype(np.float32)


def _write(path: Path, pieces: Iterable[Arrays]) -> Entries:
    """Puts entries on disk and maps them."""
    names = path.with_suffix(".keys"), path.with_suffix(".weights")
    with names[0].open("wb") as keys, names[1].open("wb") as weights:
        for key, weight in pieces:
            key.astype("<i8").tofile(keys)
            weight.astype("<f4").tofile(weights)
    keys_E, weights_E = np.memmap(names[0], "<i8", "r"), np.memmap(names[1], "<f4", "r")
    return Entries(keys_E.view(np.ndarray), weights_E.view(np.ndarray), names)


def _merge(one: Entries, other: Entries) -> Iterator[Arrays]:
    """Two sorted lists as one, in pieces; equal keys are added."""
    at, to = 0, 0
    while at < len(one) or to < len(other):
        limit = min(_last_key(one, at), _last_key(other, to))
        up, on = np.searchsorted(one.keys_E, limit, "right"), np.searchsorted(other.keys_E, limit, "right")
        yield _summed(
            np.concatenate([one.keys_E[at:up], other.keys_E[to:on]]),
            np.concatenate([one.weights_E[at:up], other.weights_E[to:on]]),
        )
        at, to = int(up), int(on)
        one.forget()
        other.forget()
    one.remove()
    other.remove()


def _last_key(entries: Entries, at: int) -> int:
    """Of the piece that begins at a place; beyond all keys where none is left."""
    return int(entries.keys_E[min(at + _MERGE, len(entries)) - 1]) if at < len(entries) else np.iinfo(np.int64).max
