"""What MASS, T5's and BART's objectives share: an encoder reads a corrupted text, and a decoder writes what is missing.

Cut: every document into runs of at most `max_length`, at other places each epoch. Corruption: each objective says what
is read and what is written (`Pair`). Loss: cross-entropy of every token that the decoder writes, through the output
layer of the encoder-decoder itself, so that these objectives have no weights of their own.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from firth import rng
from firth.data.packing import Pack, PairLengths, Plan, runs
from firth.data.sources import PackedIds, set_pair
from firth.data.stream import CorpusView
from firth.errors import BadConfig
from firth.nn.encoder_decoder import EncoderDecoder, output_loss
from firth.nn.likelihood import IGNORE
from firth.objectives.objective import Objective
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers.vocab import Vocab


@dataclass(frozen=True)
class ReconstructionConfig:
    smoothing: float = 0.0
    """Label smoothing, in training only: the share of a label's probability that is spread over the vocabulary."""
    fresh: bool = True
    """Draw new cuts and corruptions every epoch; otherwise an epoch repeats those of the first."""

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise BadConfig("Label smoothing must be at least 0 and below 1.")


@dataclass(frozen=True)
class Pair:
    """What is read and what is written for every sequence of a pack."""

    source: PackedIds
    written: PackedIds
    start: int
    """The decoder's first input."""
    first_positions_B: np.ndarray | None = None
    """The position of that input; None for 0."""


class ReconstructionObjective(Objective):
    """The base of objectives over an encoder-decoder."""

    config: ReconstructionConfig
    per_token: ClassVar[tuple[str, ...]] = ()
    has_weights = False

    def __init__(
        self,
        config: ReconstructionConfig,
        encoder: Encoder,
        *,
        vocab: Vocab,
        max_length: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.config = config
        self.vocab = vocab
        self.max_length = max_length
        self.seed = seed
        self.start = self.start_token(encoder)

    @property
    def name(self) -> str:
        """The name of the objective and of its loss."""
        return next(iter(self.word_losses))

    def start_token(self, encoder: Encoder) -> int:
        """The decoder's first input; raises if this encoder cannot be trained so."""
        if not isinstance(encoder, EncoderDecoder):
            raise BadConfig(
                f"The objective {self.name} needs an encoder-decoder, such as the encoder of the recipe 'transformer'."
            )
        return encoder.start_token(self.vocab.cls)

    @abstractmethod
    def pair_lengths(self, sizes_S: np.ndarray) -> PairLengths:
        """How long sources and targets of texts with these numbers of tokens become."""

    @abstractmethod
    def pair(self, pack: Pack, key: np.uint64) -> Pair:
        """The source and the target of every sequence."""

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        frame = self.vocab.frame
        # A target has an end also where texts have no special tokens around them.
        longest_run = self.max_length if frame.size() else self.max_length - 1
        key = rng.epoch_key(self.seed, "runs", epoch, fresh=self.config.fresh)
        plan = runs(stream, longest_run, frame=frame, key=key)
        sizes_S = plan.lengths_S - frame.size()
        return replace(plan, pair_lengths=self.pair_lengths(sizes_S))

    def corrupt(self, pack: Pack, epoch: int) -> None:
        key = rng.epoch_key(self.seed, self.name, epoch, fresh=self.config.fresh)
        pair = self.pair(pack, key)
        labels = set_pair(
            pack,
            source=pair.source,
            written=pair.written,
            start=pair.start,
            first_positions_B=pair.first_positions_B,
        )
        padded = np.full(pack.num_tokens, IGNORE, np.int64)
        padded[: len(labels)] = labels
        pack.targets[f"{self.name}_labels"] = padded

    def loss(self, states: States, batch: Batch) -> Loss:
        labels_N = batch.targets[f"{self.name}_labels"]
        # Held-out figures are those of the text itself, as for all other objectives.
        smoothing = self.config.smoothing if self.training else 0.0
        total, correct = output_loss(states, labels_N, smoothing=smoothing)
        return Loss({self.name: total}, {f"{self.name}_correct": correct})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        is_label_N = batch.targets[f"{self.name}_labels"] != IGNORE
        return {self.name: int(is_label_N.sum())}


def longest(expected: float, *, at_most: int) -> int:
    """The longest target of a pack, given the longest one on average: a multiple of 8 with much room above it."""
    with_room = int(np.ceil((1.5 * expected + 8) / 8)) * 8
    return min(with_room, at_most)
