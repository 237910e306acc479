"""A view of some of a corpus's documents: what objectives cut into sequences. No text and no network here."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from firth import chance
from firth.data.shards import Shards
from firth.errors import BadInput

HELD_OUT_LIMIT = 2_000
"""Documents held out at most: enough for a steady figure, few enough to evaluate often."""


@dataclass(frozen=True)
class Stream:
    """The sentences of `documents_D`, in order. Sentence s is tokens starts_S[s] to ends_S[s] of the shards."""

    shards: Shards
    documents_D: np.ndarray

    @cached_property
    def _sentence_ids(self) -> np.ndarray:
        return ranges(self.shards.documents[self.documents_D], self.shards.documents[self.documents_D + 1])

    @cached_property
    def starts_S(self) -> np.ndarray:
        return np.asarray(self.shards.sentences[self._sentence_ids])

    @cached_property
    def ends_S(self) -> np.ndarray:
        return np.asarray(self.shards.sentences[self._sentence_ids + 1])

    @cached_property
    def bounds_D1(self) -> np.ndarray:
        """First sentence of every document of the view, and the end."""
        sizes = self.shards.documents[self.documents_D + 1] - self.shards.documents[self.documents_D]
        return np.concatenate([[0], np.cumsum(sizes)])

    @property
    def num_tokens(self) -> int:
        return int((self.ends_S - self.starts_S).sum())


def split(shards: Shards, *, held_out_rate: float, seed: int) -> tuple[Stream, Stream]:
    """Training and held-out documents, drawn by a key: the same for every run with this seed."""
    draws = chance.uniform(chance.key(seed, "held out"), np.arange(shards.num_documents))
    wanted = min(round(shards.num_documents * held_out_rate), HELD_OUT_LIMIT)
    # Two documents at least, because a next-sentence negative needs another document.
    count = max(wanted, 2) if held_out_rate > 0 else 0
    if shards.num_documents - count < 2:
        raise BadInput(
            f"The corpus has {shards.num_documents} document(s), too few to train on and hold some out; "
            "add text, or cut it finer with `firth prepare --documents line`."
        )
    order = np.argsort(draws, kind="stable")
    return Stream(shards, np.sort(order[count:])), Stream(shards, np.sort(order[:count]))


def ranges(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The integers of many ranges, end to end."""
    sizes = ends - starts
    first = np.cumsum(sizes) - sizes
    return np.asarray(np.arange(int(sizes.sum())) + np.repeat(starts - first, sizes))
