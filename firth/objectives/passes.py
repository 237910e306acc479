"""Checkpoints of a solved run after whole passes over the text: a killed run resumes from the last one.

In: the arrays that a solver changes in place. Out: one `.npz` file, replaced from time to time. With one thread a
resumed run gives the same vectors as an uninterrupted one, bit by bit.
"""

import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from firth.errors import Damaged
from firth.files import atomic_file

ROOM = "room"
"""Name of the folder in which a solver puts data that does not fit into memory; a killed run leaves it behind."""
SECONDS = 60.0
"""Least time between two checkpoints: writing a large table may take longer than a pass."""


@dataclass
class Passes:
    path: Path
    """The checkpoint file."""
    _last: float = field(default_factory=time.monotonic)

    @property
    def folder(self) -> Path:
        """The folder that holds the checkpoint and a solver's temporary data."""
        return self.path.parent

    def restore(self, arrays: Mapping[str, np.ndarray]) -> int:
        """Fills the arrays from the last checkpoint; returns the number of passes it has seen, 0 without one."""
        if not self.path.exists():
            return 0
        try:
            with np.load(self.path) as kept:
                for name, array in arrays.items():
                    array[...] = kept[name]
                return int(kept["passes"])
        except (zipfile.BadZipFile, ValueError, KeyError, EOFError) as error:
            raise Damaged(f"{self.path} cannot be read ({error}); remove it, and the run begins again.") from None

    def keep(self, passes: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes a checkpoint after this many passes, unless the last one was written a short time ago."""
        if time.monotonic() - self._last < SECONDS:
            return
        with atomic_file(self.path) as file:
            np.savez(file, allow_pickle=False, passes=np.array(passes), **arrays)
        self._last = time.monotonic()
