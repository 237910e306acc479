"""Numbers of many rows on disk: computed block after block, memory-mapped, and continued where a process stopped.

FOLDER/rows.bin holds single-precision numbers, row after row; FOLDER/rows.json says what they are and how many blocks
are done. A file that is of other rows or of another model is begun anew.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from firth.console import bar
from firth.files import read_json, write_json
from firth.train.parallel import current_world

BLOCK = 512
"""Rows that are computed together; part of what the numbers are, since a batch's sizes change the last bits."""
ROWS = "rows.bin"
FACTS = "rows.json"


class RowCache:
    """An array whose first dimension is rows."""

    def __init__(self, folder: Path, *, fingerprint: str, shape: tuple[int, ...]) -> None:
        """`fingerprint` is a hash of everything that the numbers depend on."""
        self.folder = folder
        self.shape = shape
        self._facts: Mapping[str, object] = {"fingerprint": fingerprint, "shape": list(shape), "block": BLOCK}

    @property
    def num_blocks(self) -> int:
        return math.ceil(self.shape[0] / BLOCK)

    def filled(self, compute: Callable[[range], np.ndarray]) -> np.ndarray:
        """All rows, read-only; `compute` gives those of a block that is not there yet."""
        with current_world().main_first():
            self._fill(compute)
        return np.memmap(self.folder / ROWS, np.float32, "r", shape=self.shape)

    def _fill(self, compute: Callable[[range], np.ndarray]) -> None:
        """Computes the blocks that are not there yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        first = self._blocks_done()
        if first == 0:
            self._begin()
        with bar("teacher", self.num_blocks, unit="blocks") as advance:
            for block in range(first, self.num_blocks):
                self._write(block, compute)
                advance(block + 1, "", self.num_blocks)

    def _blocks_done(self) -> int:
        """How many blocks an earlier process wrote; 0 if it wrote other ones."""
        path = self.folder / FACTS
        rows = self.folder / ROWS
        num_bytes = 4 * math.prod(self.shape)
        if not path.exists() or not rows.exists() or rows.stat().st_size != num_bytes:
            return 0
        facts = dict(read_json(path))
        done = int(facts.pop("done", 0))
        return done if facts == self._facts else 0

    def _begin(self) -> None:
        """An empty file of the full size."""
        (self.folder / FACTS).unlink(missing_ok=True)
        with (self.folder / ROWS).open("wb") as file:
            file.truncate(4 * math.prod(self.shape))

    def _write(self, block: int, compute: Callable[[range], np.ndarray]) -> None:
        first = block * BLOCK
        end = min(first + BLOCK, self.shape[0])
        rows = range(first, end)
        array = np.memmap(self.folder / ROWS, np.float32, "r+", shape=self.shape)
        array[rows.start : rows.stop] = compute(rows)
        array.flush()
        # Counted only after its numbers are on disk.
        write_json(self.folder / FACTS, {**self._facts, "done": block + 1})
