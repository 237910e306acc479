"""UniLM's objective (Dong et al. 2019): one masked language model, whose sequences are read in three ways.

Cut: every document into runs of at most `max_length`, most of them in two segments at a sentence border. Corruption:
as the masked LM's; and for each sequence is drawn what its tokens may see: all tokens (as BERT), those up to their own
(left to right), or the whole first segment and in the second one those up to their own (source to target). A sequence
in one segment is not read from source to target, but from left to right. Loss: cross-entropy at the chosen tokens.

A masked token that sees only what is before it learns to be the next token, which is how such a model writes
(`nn/prefix_writing.py`). The paper also reads from right to left, gives each of these ways its own segment embeddings,
and predicts the next sentence; this does not, so that the folder is a BERT's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from firth import rng
from firth.data.packing import Pack, Plan
from firth.data.stream import CorpusView
from firth.errors import BadConfig
from firth.objectives.masked_lm import MaskedLM
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers.vocab import Vocab

NAME = "unilm"
MASKED = "masked_lm"


class UniLM(MaskedLM):
    word_losses = {NAME: "masked token"}

    @dataclass(frozen=True)
    class Config(MaskedLM.Config):
        pair_rate: float = 0.9
        """Share of sequences split into two segments at a sentence border; the others have no target."""
        bidirectional: float = 1 / 3
        """Share of sequences in which every token sees all."""
        left_to_right: float = 1 / 3
        """Share of sequences in which a token sees those up to its own; the rest is read from source to target."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if min(self.bidirectional, self.left_to_right) < 0 or self.bidirectional + self.left_to_right > 1:
                raise BadConfig(f"objectives.{NAME}.bidirectional and left_to_right are shares of at most 1 together.")

    config: Config

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        if not encoder.reads_prefix:
            raise BadConfig(f"The objective {NAME} needs an encoder that can be read in several ways, such as bert.")
        super().__init__(config, encoder, vocab=vocab, max_length=max_length, seed=seed)

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        """Runs of text, with the size of each one's source as a label; 0 for a run in one segment."""
        plan = super().sequences(stream, epoch)
        source_S = np.zeros(len(plan), np.int64)
        if self.config.pair_rate:
            frame = self.vocab.frame
            sizes_SP = plan.pieces_SP2[:, :, 1] - plan.pieces_SP2[:, :, 0]
            first_segment_S = len(frame.opening) + sizes_SP[:, 0] + len(frame.between)
            source_S = np.where(sizes_SP[:, 1] > 0, first_segment_S, 0)
        return replace(plan, labels={**plan.labels, NAME: source_S})

    def corrupt(self, pack: Pack, epoch: int) -> None:
        super().corrupt(pack, epoch)
        # One prefix for each sequence of the finished batch; filler sees all.
        prefix_B = np.full(pack.batch_sequences, pack.max_length, np.int64)
        prefix_B[: len(pack.rows_B)] = self._prefixes(pack, epoch)
        pack.targets[f"{NAME}_prefix"] = prefix_B

    def _prefixes(self, pack: Pack, epoch: int) -> np.ndarray:
        """How many tokens of each sequence are seen by all of its tokens."""
        config = self.config
        key = rng.epoch_key(self.seed, "directions", epoch, fresh=config.fresh)
        draws_B = rng.uniform(key, pack.rows_B)
        lengths_B = np.diff(pack.bounds_B1)
        no_source_B = np.zeros_like(lengths_B)
        source_B = pack.labels.get(NAME, no_source_B)
        is_bidirectional_B = draws_B < config.bidirectional
        is_left_to_right_B = draws_B < config.bidirectional + config.left_to_right
        return np.where(is_bidirectional_B, lengths_B, np.where(is_left_to_right_B, no_source_B, source_B))

    def rewrite(self, batch: Batch) -> tuple[Batch, Loss]:
        """The batch with its prefixes, which is all that the encoder must know."""
        return replace(batch, prefix_B=batch.targets[f"{NAME}_prefix"]), Loss({})

    def loss(self, states: States, batch: Batch) -> Loss:
        masked = super().loss(states, batch)
        total = masked.sums[MASKED]
        correct = masked.tallies[f"{MASKED}_correct"]
        return Loss({NAME: total}, {f"{NAME}_correct": correct})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {NAME: super().counts(batch)[MASKED]}
