"""TSDAE (Wang et al. 2021): a decoder writes a sentence from one vector, which comes from a part of its words.

Cut: documents into sentences. Corruption: most words of a sentence are deleted. The encoder reads what is left, and the
mean of its states is all that the decoder sees of it. Loss: cross-entropy of the whole sentence and its end. So the
vector must hold what the sentence is about. Afterwards the encoder half alone gives vectors (`firth embed`).
"""

from dataclasses import dataclass, replace

import numpy as np

from firth import rng
from firth.data.packing import Pack, PairLengths, Plan
from firth.data.sources import PackedIds, Tokens, in_every_sequence, lay_end_to_end, lay_framed
from firth.data.stream import CorpusView
from firth.errors import BadConfig
from firth.objectives.contrastive import sentence_plan
from firth.objectives.reconstruction import Pair, ReconstructionConfig, ReconstructionObjective
from firth.objectives.word_spans import PackText, text_of
from firth.tensors import Batch, Loss


class Tsdae(ReconstructionObjective):
    word_losses = {"tsdae": "token of the sentence"}

    @dataclass(frozen=True)
    class Config(ReconstructionConfig):
        delete: float = 0.6
        """Share of the words that the encoder does not read."""
        min_tokens: int = 8
        """Shorter sentences are left out."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if not 0 <= self.delete < 1:
                raise BadConfig("objectives.tsdae.delete must be at least 0 and below 1.")

    config: Config

    def pair_lengths(self, sizes_S: np.ndarray) -> PairLengths:
        kept_S = (1 - self.config.delete) * sizes_S
        source_S = np.minimum(kept_S + self.vocab.frame.size(), self.max_length)
        spread = 0.03 if self.config.delete else 0.0
        return PairLengths(source_S, sizes_S + 1, self.max_length, source_spread=spread)

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        frame = self.vocab.frame
        # A target has an end also where texts have no special tokens around them.
        longest_sentence = self.max_length if frame.size() else self.max_length - 1
        plan = sentence_plan(stream, longest_sentence, frame=frame, min_tokens=self.config.min_tokens)
        return replace(plan, pair_lengths=self.pair_lengths(plan.lengths_S - frame.size()))

    def pair(self, pack: Pack, key: np.uint64) -> Pair:
        text = text_of(pack)
        num_sequences = len(text.rows_B)
        behind_all = int(text.sizes_B.max(initial=0))
        ends = in_every_sequence((self.vocab.sep,), num_sequences, place=behind_all)
        whole = Tokens(text.sequence_T, text.offsets_T, text.ids_T)
        written = lay_end_to_end([whole, ends], num_sequences)
        return Pair(self._source(text, key), written, self.start)

    def _source(self, text: PackText, key: np.uint64) -> PackedIds:
        """What is left of the sentences."""
        words = text.words
        rows_W = text.rows_B[words.sequence_W]
        draws_W = rng.uniform(key, rows_W, text.offsets_T[words.first_W])
        kept_T = np.repeat(draws_W >= self.config.delete, words.ends_W - words.first_W)
        left = Tokens(text.sequence_T[kept_T], text.offsets_T[kept_T], text.ids_T[kept_T])
        return lay_framed([left], len(text.rows_B), frame=self.vocab.frame)

    def rewrite(self, batch: Batch) -> tuple[Batch, Loss]:
        return replace(batch, reads_mean=True), Loss({})
