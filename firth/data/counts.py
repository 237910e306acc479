"""How often words stand near each other: GloVe's counts (Pennington et al. 2014, section 3), bounded in memory.

In: a stream of words. Out: sorted entries (word, neighbour, weight), where a neighbour d words away weighs 1/d. They
are added up in a table of a fixed size; when it is full its entries go to disk, sorted; at the end all are merged.
"""

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firth.errors import Unsupported

SLOTS = 1 << 24
"""Entries of the table, a power of two (12 bytes each); it is written out when three quarters of it are used."""
_MERGE = 1 << 20
"""Entries read from each part at once while parts are merged."""


@dataclass(frozen=True)
class Entries:
    """Words next to each other: key = word * V + neighbour, ascending, each once."""

    keys_E: np.ndarray
    weights_E: np.ndarray

    def __len__(self) -> int:
        return len(self.keys_E)


def count_pairs(
    rows: Iterable[np.ndarray], vocab_size: int, *, window: int, folder: Path, slots: int = SLOTS
) -> Entries:
    """The entries of all rows of words; both directions are counted."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        parts = [
            _write(Path(place) / str(i), part)
            for i, part in enumerate(_blocks(rows, vocab_size, window=window, slots=slots))
        ]
        if not parts:
            return Entries(np.empty(0, np.int64), np.empty(0, np.float32))
        while len(parts) > 1:  # two at a time: what is read and written stays small
            merged = [
                _write(Path(place) / f"{len(parts)}-{i}", _merge(*pair)) if len(pair) == 2 else pair[0]
                for i, pair in enumerate(parts[i : i + 2] for i in range(0, len(parts), 2))
            ]
            parts = merged
        keys, weights = parts[0]
        return Entries(np.array(keys), np.array(weights))


Arrays = tuple[np.ndarray, np.ndarray]


def _blocks(rows: Iterable[np.ndarray], vocab_size: int, *, window: int, slots: int) -> Iterator[Iterator[Arrays]]:
    """What the table holds each time it is full, and at the end."""
    try:
        from firth.data.count_kernels import tally
    except ImportError:
        raise Unsupported("Counting neighbours needs numba: pip install 'firth[vectors]'.") from None
    keys, weights, used = np.full(slots, -1, np.int64), np.zeros(slots, np.float32), 0
    limit = slots * 3 // 4 - 2 * window
    for row in rows:
        at = 0
        while at < len(row):
            at, used = tally(row.astype(np.int32), at, window, vocab_size, keys, weights, used, limit)
            if used > limit:
                yield iter([_taken(keys, weights)])
                used = 0
    if used:
        yield iter([_taken(keys, weights)])


def _taken(keys: np.ndarray, weights: np.ndarray) -> Arrays:
    """The table's entries in order; the table is empty afterwards."""
    places = np.flatnonzero(keys >= 0)
    places = places[np.argsort(keys[places])]
    found = keys[places], weights[places]
    keys[:], weights[:] = -1, 0
    return found


def _summed(keys: np.ndarray, weights: np.ndarray) -> Arrays:
    order = np.argsort(keys, kind="stable")
    keys, weights = keys[order], weights[order].astype(np.float64)
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else np.empty(0, np.int64)
    return keys[first], np.add.reduceat(weights, first).astype(np.float32) if len(keys) else weights.astype(np.float32)


def _write(path: Path, pieces: Iterator[Arrays]) -> Arrays:
    """Puts sorted entries on disk and maps them."""
    names = path.with_suffix(".keys"), path.with_suffix(".weights")
    with names[0].open("wb") as keys, names[1].open("wb") as weights:
        for key, weight in pieces:
            keys.write(key.astype("<i8").tobytes())
            weights.write(weight.astype("<f4").tobytes())
    if not names[0].stat().st_size:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    return np.memmap(names[0], "<i8", "r"), np.memmap(names[1], "<f4", "r")


def _merge(one: Arrays, other: Arrays) -> Iterator[Arrays]:
    """Two sorted lists as one, in pieces; equal keys are added."""
    at, to = 0, 0
    while at < len(one[0]) or to < len(other[0]):
        limit = min(
            one[0][min(at + _MERGE, len(one[0])) - 1] if at < len(one[0]) else np.iinfo(np.int64).max,
            other[0][min(to + _MERGE, len(other[0])) - 1] if to < len(other[0]) else np.iinfo(np.int64).max,
        )
        up, on = np.searchsorted(one[0], limit, "right"), np.searchsorted(other[0], limit, "right")
        keys = np.concatenate([one[0][at:up], other[0][to:on]])
        yield _summed(keys, np.concatenate([one[1][at:up], other[1][to:on]]))
        at, to = int(up), int(on)
