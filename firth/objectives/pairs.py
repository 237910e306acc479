"""Pairs of text pieces, and goals that ask something of each pair.

Cut: runs of whole sentences that fill a sequence (some, by `short_rate`, are drawn shorter), split in two at a sentence
border; with `random_rate` some second parts come from another document, and what was replaced is used again. The walk
is that of BERT's released program; here every possible start is worked out at once and the walk only follows jumps.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from firth import chance
from firth.data.packing import Pack, Plan
from firth.data.stream import Stream
from firth.errors import Unsupported
from firth.nn.blocks import initialise
from firth.tensors import Batch, Encoder, Loss, Objective, States
from firth.tokenizers.vocab import Vocab

IGNORE = -100
LEARNED = 0.98
"""A loss below this share of a coin's shows that something was learned."""


class PairGoal(Objective):
    """Chooses between two things to say of a pair, from its pooled first token."""

    name: ClassVar[str]
    """What its labels, loss and figures are called."""

    def __init__(self, config: Any, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config, self.max_length, self.seed = config, max_length, seed
        self.frame = vocab.frame
        self.head = nn.Linear(encoder.width, 2)
        initialise(self.head, std=encoder.config.init_std)

    def key(self, epoch: int) -> np.uint64:
        return chance.key(self.seed, "pairs", epoch if self.config.fresh else 0)

    def plan(self, pieces_S22: np.ndarray, labels_S: np.ndarray) -> Plan:
        """The pairs that have two parts left."""
        kept = (pieces_S22[:, :, 1] > pieces_S22[:, :, 0]).all(1)
        return Plan(pieces_S22[kept], {self.name: labels_S[kept]}, num_specials=self.frame.size(2))

    def corrupt(self, pack: Pack, epoch: int) -> None:
        labels = np.full(pack.max_sequences + pack.num_tokens // pack.max_length + 1, IGNORE, np.int64)
        labels[: len(pack.rows_B)] = pack.labels[self.name]
        pack.targets[f"{self.name}_labels"] = labels

    def loss(self, states: States, batch: Batch) -> Loss:
        labels_B = batch.targets[f"{self.name}_labels"]
        scores_B2 = self.scores(states)
        total = cross_entropy(scores_B2.float(), labels_B, ignore_index=IGNORE, reduction="sum")
        return Loss({self.name: total}, {f"{self.name}_correct": (scores_B2.argmax(-1) == labels_B).sum()})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {self.name: int((batch.targets[f"{self.name}_labels"] != IGNORE).sum())}

    def nothing_learned(self, figures: Mapping[str, float]) -> str:
        loss = figures.get(self.name, 0.0)
        if loss < LEARNED * math.log(2):
            return ""
        name = self.name.replace("_", " ")
        return f"the loss {loss:.3f} of {name} is that of a coin: nothing was learned of pairs yet."

    def scores(self, states: States) -> Tensor:
        if states.pooled_BD is None:
            raise Unsupported(f"{self.name.replace('_', ' ').capitalize()} needs an encoder with a pooler.")
        scores_B2: Tensor = self.head(states.pooled_BD)
        return scores_B2


class Walk:
    """What would happen at every sentence of the stream if a sequence began there, and the walk through it."""

    def __init__(
        self, stream: Stream, *, key: np.uint64, room: int, short_rate: float, random_rate: float = 0.0
    ) -> None:
        self.stream, self.key = stream, key
        sentence = np.arange(len(stream.starts_S))
        sizes_D = np.diff(stream.bounds_D1)
        self.document_S = np.repeat(np.arange(len(sizes_D)), sizes_D)
        last_S = stream.bounds_D1[1:][self.document_S]
        short = chance.uniform(key, sentence, 0) < short_rate
        self.target_S = np.where(short, 2 + chance.below(key, room - 1, sentence, 1), room)
        # The chunk: whole sentences from here until the target is reached or the document ends.
        reach = np.searchsorted(stream.starts_S, stream.starts_S + self.target_S)
        self.end_S = np.clip(reach, sentence + 1, last_S)
        self.random_S = chance.uniform(key, sentence, 2) < random_rate
        inner = self.end_S - sentence
        self.cut_S = sentence + 1 + chance.below(key, np.maximum(inner - 1, 1), sentence, 3)
        self.lone_S = inner == 1

    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Token ranges of first and second parts, and which seconds are random."""
        jumps = np.where(self.random_S & ~self.lone_S, self.cut_S, self.end_S).tolist()
        visited, place = [], 0
        while place < len(jumps):
            visited.append(place)
            place = jumps[place]
        at = np.array(visited, np.int64)
        stream = self.stream
        cut = np.where(
            self.lone_S[at], self._inner_cut(at), stream.starts_S[np.minimum(self.cut_S, len(jumps) - 1)[at]]
        )
        first = np.stack([stream.starts_S[at], cut], 1)
        second = np.stack([cut, stream.ends_S[self.end_S[at] - 1]], 1)
        random = self.random_S[at]
        second[random] = self._elsewhere(at[random], first[random])
        return first, second, random

    def _inner_cut(self, at: np.ndarray) -> np.ndarray:
        """A lone sentence is cut at a word's start near a random token."""
        starts, ends = self.stream.starts_S[at], self.stream.ends_S[at]
        token = starts + 1 + chance.below(self.key, np.maximum(ends - starts - 1, 1), at, 4)
        last = np.maximum(ends - 1, starts)
        for _ in range(8):
            token = np.minimum(token, last)
            token = token + ~self.stream.shards.word_starts(token)
        return np.asarray(np.minimum(token, last))

    def _elsewhere(self, at: np.ndarray, first: np.ndarray) -> np.ndarray:
        """For each first part, sentences of another document from a random one on, as long as the target asks."""
        stream, own = self.stream, self.document_S[at]
        other = chance.below(self.key, len(stream.documents_D) - 1, at, 5)
        other = other + (other >= own)
        begin, end = stream.bounds_D1[other], stream.bounds_D1[other + 1]
        sentence = begin + chance.below(self.key, end - begin, at, 6)
        wanted = np.maximum(self.target_S[at] - (first[:, 1] - first[:, 0]), 1)
        reach = np.searchsorted(stream.starts_S, stream.starts_S[sentence] + wanted)
        return np.stack([stream.starts_S[sentence], stream.ends_S[np.clip(reach, sentence + 1, end) - 1]], 1)


def truncate(pieces_S22: np.ndarray, room: int, draws_S: np.ndarray) -> np.ndarray:
    """Cuts the longer piece first until both fit; what goes is taken from its front and back by chance."""
    sizes = pieces_S22[:, :, 1] - pieces_S22[:, :, 0]
    half = room // 2
    first = np.minimum(sizes[:, 0], np.maximum(room - sizes[:, 1], room - half))
    second = np.minimum(sizes[:, 1], room - first)
    surplus = sizes - np.stack([first, second], 1)
    front = np.floor(draws_S[:, None] * (surplus + 1)).astype(np.int64)
    return np.stack([pieces_S22[:, :, 0] + front, pieces_S22[:, :, 1] - (surplus - front)], -1)
