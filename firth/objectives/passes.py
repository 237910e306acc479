"""The last whole pass of a solved run, kept on disk: a killed run goes on after it.

In: the arrays that a solver changes in place. Out: one `.npz` file, replaced now and then. With one thread the vectors
of such a run are those of one that was never stopped, bit by bit.
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
"""The name of a folder in which a solver keeps what does not fit into memory; a killed one leaves it behind."""
SECONDS = 60.0
"""Nothing is kept before so much time has gone by: writing a large table may take longer than a pass."""


@dataclass
class Passes:
    path: Path
    """Where to keep them."""
    _last: float = field(default_factory=time.monotonic)

    @property
    def folder(self) -> Path:
        """Where that room is to be."""
        return self.path.parent

    def restore(self, arrays: Mapping[str, np.ndarray]) -> int:
        """Fills the arrays as they were after the last kept pass; gives the number of passes behind it."""
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
        if time.monotonic() - self._last < SECONDS:
            return
        with atomic_file(self.path) as file:
            np.savez(file, allow_pickle=False, passes=np.array(passes), **arrays)
        self._last = time.monotonic()
