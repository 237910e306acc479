"""A view of some of a corpus's documents, which objectives cut into sequences. No text and no network here.

Suffixes: D documents of the view, S sentences of the view.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from firth import rng
from firth.data.shards import Shards
from firth.errors import BadInput
from firth.ragged import bounds_of, ranges

HELD_OUT_LIMIT = 2_000
"""Documents held out at most: enough for a stable figure, few enough to evaluate often."""


@dataclass(frozen=True)
class CorpusView:
    """The sentences of `documents_D`, in order. Sentence s is tokens starts_S[s] to ends_S[s] of the shards."""

    shards: Shards
    documents_D: np.ndarray

    @cached_property
    def _sentence_numbers_S(self) -> np.ndarray:
        """The number of each sentence in the shards."""
        first_D = self.shards.documents[self.documents_D]
        end_D = self.shards.documents[self.documents_D + 1]
        return ranges(first_D, end_D)

    @cached_property
    def starts_S(self) -> np.ndarray:
        return np.asarray(self.shards.sentences[self._sentence_numbers_S])

    @cached_property
    def ends_S(self) -> np.ndarray:
        return np.asarray(self.shards.sentences[self._sentence_numbers_S + 1])

    @cached_property
    def bounds_D1(self) -> np.ndarray:
        """First sentence of every document of the view, and the end."""
        first_D = self.shards.documents[self.documents_D]
        end_D = self.shards.documents[self.documents_D + 1]
        return bounds_of(end_D - first_D)

    @property
    def num_tokens(self) -> int:
        return int((self.ends_S - self.starts_S).sum())

    @property
    def sentence_languages_S(self) -> np.ndarray:
        """The number of each sentence's language; 0 if the texts had none."""
        if self.shards.languages is None:
            return np.zeros(len(self._sentence_numbers_S), np.int64)
        return np.asarray(self.shards.languages[self._sentence_numbers_S], np.int64)

    @cached_property
    def languages_D2(self) -> np.ndarray:
        """The languages of every document's first and last sentence: two different ones for a pair."""
        if self.shards.languages is None:
            return np.zeros((len(self.documents_D), 2), np.int64)
        first_D = self.shards.documents[self.documents_D]
        last_D = self.shards.documents[self.documents_D + 1] - 1
        edges_D2 = np.stack([first_D, last_D], 1)
        return np.asarray(self.shards.languages[edges_D2], np.int64)

    @property
    def is_pair_D(self) -> np.ndarray:
        """Which documents are a text and its translation."""
        return np.asarray(self.languages_D2[:, 0] != self.languages_D2[:, 1])

    def part(self, is_chosen_D: np.ndarray) -> "CorpusView":
        """A view of some of its documents."""
        return CorpusView(self.shards, self.documents_D[is_chosen_D])


def split(shards: Shards, *, held_out_rate: float, seed: int) -> tuple[CorpusView, CorpusView]:
    """Training and held-out documents, drawn at random: the same for every run with this seed."""
    num_held_out = 0
    if held_out_rate > 0:
        wanted = min(round(shards.num_documents * held_out_rate), HELD_OUT_LIMIT)
        # Two documents at least, because a next-sentence negative needs another document.
        num_held_out = max(wanted, 2)
    if shards.num_documents - num_held_out < 2:
        raise BadInput(
            f"The corpus has {shards.num_documents} document(s), too few to train on and hold some out; "
            "add text, or prepare it with `documents='line'`, which cuts it finer."
        )
    key = rng.key(seed, "held out")
    draws = rng.uniform(key, np.arange(shards.num_documents))
    order = np.argsort(draws, kind="stable")
    held_out = CorpusView(shards, np.sort(order[:num_held_out]))
    training = CorpusView(shards, np.sort(order[num_held_out:]))
    return training, held_out
