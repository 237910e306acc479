"""Documents joined end to end as one line of tokens, each followed by an end-of-text token, to cut full windows from.

In: a view of documents. Out: the ids at any positions of the line. Nothing is copied: a position is translated when it
is read.
"""

from dataclasses import dataclass

import numpy as np

from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.ragged import bounds_of


@dataclass(frozen=True, eq=False)
class Joined:
    """The line of joined documents."""

    starts_D: np.ndarray
    """The number of each document's first token in the shards."""
    bounds_D1: np.ndarray
    """The position of each document's first token in the line, and the line's end."""
    end: int
    """The id of the end-of-text token."""

    def __len__(self) -> int:
        return int(self.bounds_D1[-1])

    def read(self, shards: Shards, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ids at these positions, which of them are tokens of the text, and which start a word."""
        document, is_end = self._documents(places)
        tokens = self._tokens(places, document, is_end)
        text_ids = shards.ids[tokens]
        ids = np.where(is_end, self.end, text_ids)
        # An end-of-text token counts as a word.
        is_word_start = shards.word_starts(tokens) | is_end
        return ids, ~is_end, is_word_start

    def tokens(self, places: np.ndarray) -> np.ndarray:
        """The tokens of the shards at these positions; at an end-of-text token the one before it."""
        document, is_end = self._documents(places)
        return self._tokens(places, document, is_end)

    def _documents(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The document at each position, and whether its end-of-text token is there."""
        document = np.searchsorted(self.bounds_D1, places, side="right") - 1
        next_start = self.bounds_D1[document + 1]
        return document, places + 1 == next_start

    def _tokens(self, places: np.ndarray, document: np.ndarray, is_end: np.ndarray) -> np.ndarray:
        offset = places - self.bounds_D1[document]
        # At an end-of-text token one less: the last token of the document.
        offset = offset - is_end
        return np.asarray(self.starts_D[document] + offset)


def join(stream: CorpusView, *, end: int) -> Joined:
    """The documents of a view, joined by the token `end`."""
    first_sentence_D = stream.bounds_D1[:-1]
    last_sentence_D = stream.bounds_D1[1:] - 1
    starts_D = stream.starts_S[first_sentence_D]
    ends_D = stream.ends_S[last_sentence_D]
    sizes_D = ends_D - starts_D
    # One more for the end-of-text token.
    bounds_D1 = bounds_of(sizes_D + 1)
    return Joined(starts_D, bounds_D1, end)


def full_windows(joined: Joined, size: int, *, shift: int = 0) -> np.ndarray:
    """The line cut every `size` positions, S x 1 x 2; with a shift the first window is that much shorter."""
    starts = np.arange(-shift, len(joined), size)
    first = starts.clip(min=0)
    last = (starts + size).clip(max=len(joined))
    return np.stack([first, last], -1)[:, None, :]
