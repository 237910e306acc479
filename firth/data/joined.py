"""Documents end to end as one line of tokens, an end-of-text token behind each: what full windows are cut from.

In: a view of documents. Out: the ids at any places of the line; nothing is copied, a place is worked out when read.
"""

from dataclasses import dataclass

import numpy as np

from firth.data.shards import Shards
from firth.data.stream import Stream


@dataclass(frozen=True, eq=False)
class Joined:
    starts_D: np.ndarray
    """The shards' token that each document begins with."""
    bounds_D1: np.ndarray
    """Where each document begins in the line, and the line's end."""
    end: int
    """The id of the end-of-text token."""

    def __len__(self) -> int:
        return int(self.bounds_D1[-1])

    def read(self, shards: Shards, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ids at these places, which of them are the text's own, and which begin a word."""
        document = np.searchsorted(self.bounds_D1, places, side="right") - 1
        ends = places + 1 == self.bounds_D1[document + 1]
        tokens = self.starts_D[document] + places - self.bounds_D1[document] - ends
        return np.where(ends, self.end, shards.ids[tokens]), ~ends, shards.word_starts(tokens) | ends


def join(stream: Stream, *, end: int) -> Joined:
    starts_D = stream.starts_S[stream.bounds_D1[:-1]]
    sizes_D = stream.ends_S[stream.bounds_D1[1:] - 1] - starts_D
    return Joined(starts_D, np.concatenate([[0], np.cumsum(sizes_D + 1)]), end)


def full_windows(joined: Joined, size: int, *, shift: int = 0) -> np.ndarray:
    """The line cut every `size` places, S x 1 x 2; with a shift the first window is that much shorter."""
    starts = np.arange(-shift, len(joined), size)
    return np.stack([starts.clip(min=0), (starts + size).clip(max=len(joined))], -1)[:, None, :]
