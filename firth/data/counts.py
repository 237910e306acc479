"""How often words stand near each other: GloVe's counts (Pennington et al. 2014, section 3), bounded in memory.

In: a stream of words. Out: sorted entries (word, neighbour, weight), where a neighbour d words away weighs 1/d. Entries
are gathered in blocks of a fixed size, each block sorted and summed; when several are there they are merged on disk.
"""

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

BLOCK = 1 << 24
"""Pairs held in memory at once (12 bytes each, several times that while they are sorted)."""
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
    rows: Iterable[np.ndarray], vocab_size: int, *, window: int, folder: Path, block: int = BLOCK
) -> Entries:
    """The entries of all rows of words (-1 parts words and counts as a place); both directions are counted."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        parts = [
            _write(Path(place) / str(i), part)
            for i, part in enumerate(_blocks(rows, vocab_size, window=window, size=block))
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


def _blocks(rows: Iterable[np.ndarray], vocab_size: int, *, window: int, size: int) -> Iterator[Iterator[Arrays]]:
    held, keys, weights = 0, list[np.ndarray](), list[np.ndarray]()
    for row in rows:
        for distance in range(1, min(window, len(row) - 1) + 1):
            left, right = row[:-distance].astype(np.int64), row[distance:].astype(np.int64)
            both = (left >= 0) & (right >= 0)
            left, right = left[both], right[both]
            keys += [left * vocab_size + right, right * vocab_size + left]
            weights.append(np.full(2 * len(left), 1 / distance, np.float32))
            held += 2 * len(left)
        if held >= size:
            yield iter([_summed(np.concatenate(keys), np.concatenate(weights))])
            held, keys, weights = 0, [], []
    if held:
        yield iter([_summed(np.concatenate(keys), np.concatenate(weights))])


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
