"""Pairs of text pieces, and objectives that classify each pair.

Cut: runs of whole sentences that fill a sequence (a `short_rate` of them get a random shorter length), split in two at
a sentence border. With `random_rate` some second parts come from another document, and the replaced text is used again
for the next pair. The algorithm is that of BERT's released program. Here the outcome at every possible start is
computed at once, and the walk through the text only follows jumps.
"""

import math
from collections.abc import Mapping
from typing import ClassVar, Protocol

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from firth import rng
from firth.data.packing import Pack, Plan
from firth.data.stream import CorpusView
from firth.errors import Unsupported
from firth.nn.blocks import initialise
from firth.nn.likelihood import IGNORE
from firth.objectives.objective import Objective
from firth.ragged import owners_of
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers.vocab import Vocab

BARELY_BETTER_THAN_GUESSING = 0.55
"""Accuracy below which a report says that it is hardly more than guessing."""
LEARNED = 0.98
"""A loss below this share of a coin toss's shows that something was learned."""


class PairConfig(Protocol):
    """What all objectives over pairs can configure."""

    @property
    def fresh(self) -> bool: ...


class PairObjective(Objective):
    """Classifies a pair into one of two classes, from its pooled first token."""

    makes_pairs = True
    per_token = ()
    config: PairConfig
    name: ClassVar[str]
    """The name of its labels, loss and figures."""

    def __init__(self, config: PairConfig, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config = config
        self.max_length = max_length
        self.seed = seed
        self.frame = vocab.frame
        self.head = nn.Linear(encoder.width, 2)
        initialise(self.head, std=encoder.config.init_std)

    def plan(self, pieces_S22: np.ndarray, labels_S: np.ndarray) -> Plan:
        """The pairs with their labels, without those of which one part is empty."""
        starts_S2 = pieces_S22[:, :, 0]
        ends_S2 = pieces_S22[:, :, 1]
        kept = (ends_S2 > starts_S2).all(1)
        return Plan(pieces_S22[kept], {self.name: labels_S[kept]}, num_specials=self.frame.size(2))

    def corrupt(self, pack: Pack, epoch: int) -> None:
        # The number of labels is fixed: the most sequences a pack can hold, those of its filler included.
        size = pack.batch_sequences
        labels = np.full(size, IGNORE, np.int64)
        labels[: len(pack.rows_B)] = pack.labels[self.name]
        pack.targets[f"{self.name}_labels"] = labels

    def loss(self, states: States, batch: Batch) -> Loss:
        labels_B = batch.targets[f"{self.name}_labels"]
        scores_B2 = self.scores(states)
        total = cross_entropy(scores_B2.float(), labels_B, ignore_index=IGNORE, reduction="sum")
        correct = (scores_B2.argmax(-1) == labels_B).sum()
        return Loss({self.name: total}, {f"{self.name}_correct": correct})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        is_label_B = batch.targets[f"{self.name}_labels"] != IGNORE
        return {self.name: int(is_label_B.sum())}

    @classmethod
    def finding(cls, figures: Mapping[str, float]) -> str:
        accuracy = figures.get(f"{cls.name}_accuracy")
        if accuracy is None:
            return ""
        statement = f"tells {accuracy:.0%} of sentence pairs right"
        if accuracy < BARELY_BETTER_THAN_GUESSING:
            return f"{statement}, hardly more than the 50% of chance"
        return f"{statement} (chance: 50%)"

    def nothing_learned(self, figures: Mapping[str, float]) -> str:
        loss = figures.get(self.name, 0.0)
        if loss < LEARNED * math.log(2):
            return ""
        name = self.name.replace("_", " ")
        return f"the loss {loss:.3f} of {name} is that of a coin: nothing was learned of pairs yet."

    def scores(self, states: States) -> Tensor:
        """The scores of both classes for every sequence."""
        if states.pooled_BD is None:
            name = self.name.replace("_", " ").capitalize()
            raise Unsupported(f"{name} needs an encoder with a pooler.")
        scores_B2: Tensor = self.head(states.pooled_BD)
        return scores_B2


class PairCutter:
    """The pair that would be made at every sentence of the stream, and the walk through those that are made.

    All arrays with suffix S have one entry for each sentence of the stream, as the start of a chunk.
    """

    def __init__(
        self,
        stream: CorpusView,
        *,
        key: np.uint64,
        room: int,
        short_rate: float,
        random_rate: float = 0.0,
    ) -> None:
        """`room` is the number of tokens that both parts may have together."""
        self.stream = stream
        self.key = key
        sentence = np.arange(len(stream.starts_S))
        num_sentences_D = np.diff(stream.bounds_D1)
        self.document_S = owners_of(num_sentences_D)
        document_end_S = stream.bounds_D1[1:][self.document_S]

        # The target length in tokens: the whole room, or a random shorter length.
        is_short = rng.uniform(key, sentence, 0) < short_rate
        short_length = 2 + rng.below(key, room - 1, sentence, 1)
        self.target_S = np.where(is_short, short_length, room)

        # The chunk: whole sentences from here until the target is reached or the document ends.
        wanted_end_S = stream.starts_S + self.target_S
        reach = np.searchsorted(stream.starts_S, wanted_end_S)
        self.end_S = np.clip(reach, sentence + 1, document_end_S)

        # The chunk is split at a random sentence border; the second part may come from another document.
        self.random_S = rng.uniform(key, sentence, 2) < random_rate
        chunk_size = self.end_S - sentence
        num_borders = np.maximum(chunk_size - 1, 1)
        self.cut_S = sentence + 1 + rng.below(key, num_borders, sentence, 3)
        self.lone_S = chunk_size == 1

    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Token ranges of the first parts, of the second parts, and which second parts are random."""
        stream = self.stream
        at = self._visited()
        last_sentence = len(stream.starts_S) - 1
        cut_sentence = np.minimum(self.cut_S[at], last_sentence)
        cut_before_sentence = stream.starts_S[cut_sentence]
        cut = np.where(self.lone_S[at], self._cut_in_sentence(at), cut_before_sentence)
        end = stream.ends_S[self.end_S[at] - 1]
        first = np.stack([stream.starts_S[at], cut], 1)
        second = np.stack([cut, end], 1)
        random = self.random_S[at]
        second[random] = self._from_other_documents(at[random], first[random])
        return first, second, random

    def _visited(self) -> np.ndarray:
        """The sentences at which a pair begins, in order."""
        # After a random second part the walk goes on with the replaced text, not behind it.
        goes_back_S = self.random_S & ~self.lone_S
        jumps = np.where(goes_back_S, self.cut_S, self.end_S).tolist()
        visited = []
        sentence = 0
        while sentence < len(jumps):
            visited.append(sentence)
            sentence = jumps[sentence]
        return np.array(visited, np.int64)

    def _cut_in_sentence(self, at: np.ndarray) -> np.ndarray:
        """For chunks of a single sentence: the token near a random one at which a word starts."""
        starts = self.stream.starts_S[at]
        ends = self.stream.ends_S[at]
        num_choices = np.maximum(ends - starts - 1, 1)
        token = starts + 1 + rng.below(self.key, num_choices, at, 4)
        last = np.maximum(ends - 1, starts)
        # Words of more than 8 tokens are rare; these are cut in the middle.
        for _ in range(8):
            token = np.minimum(token, last)
            token = token + ~self.stream.shards.word_starts(token)
        return np.asarray(np.minimum(token, last))

    def _from_other_documents(self, at: np.ndarray, first: np.ndarray) -> np.ndarray:
        """For each first part, token ranges of another document: from a random sentence on, up to the target length."""
        stream = self.stream
        own_document = self.document_S[at]
        # Drawn from all documents but the own one.
        document = rng.below(self.key, len(stream.documents_D) - 1, at, 5)
        document = document + (document >= own_document)
        begin = stream.bounds_D1[document]
        end = stream.bounds_D1[document + 1]
        sentence = begin + rng.below(self.key, end - begin, at, 6)
        first_length = first[:, 1] - first[:, 0]
        wanted = np.maximum(self.target_S[at] - first_length, 1)
        starts = stream.starts_S[sentence]
        reach = np.searchsorted(stream.starts_S, starts + wanted)
        last_sentence = np.clip(reach, sentence + 1, end) - 1
        return np.stack([starts, stream.ends_S[last_sentence]], 1)


def truncate(pieces_S22: np.ndarray, room: int, draws_S: np.ndarray) -> np.ndarray:
    """Shortens pairs to `room` tokens, the longer piece first; cuts at the front and the back in a random proportion.

    `draws_S` are uniform numbers in [0, 1), one for each pair.
    """
    starts_S2 = pieces_S22[:, :, 0]
    ends_S2 = pieces_S22[:, :, 1]
    sizes_S2 = ends_S2 - starts_S2
    first_size_S = sizes_S2[:, 0]
    second_size_S = sizes_S2[:, 1]
    # A piece shorter than half the room is kept whole, and the other one gets the rest.
    half = room // 2
    first_room_S = np.maximum(room - second_size_S, room - half)
    first_kept_S = np.minimum(first_size_S, first_room_S)
    second_kept_S = np.minimum(second_size_S, room - first_kept_S)
    surplus_S2 = sizes_S2 - np.stack([first_kept_S, second_kept_S], 1)
    front_S2 = np.floor(draws_S[:, None] * (surplus_S2 + 1)).astype(np.int64)
    back_S2 = surplus_S2 - front_S2
    return np.stack([starts_S2 + front_S2, ends_S2 - back_S2], -1)
