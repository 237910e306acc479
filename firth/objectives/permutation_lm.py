"""Permutation language model (Yang et al. 2019, equation 3): some tokens, one after the other in a random order.

Cut: every document into runs of at most `max_length`, most of them in two segments (`data/packing.py`). In a share of
these the first segment is memory: the second one reads its states, nothing of it is predicted, and no gradient goes
into it (`encoders/xlnet.py`). Corruption: no token is replaced. In each sequence 1/6 of the tokens, in runs of whole
words and never special ones, are the end of the order of prediction; all others come before them and see each other,
as in the authors' program. Loss: cross-entropy at the predicted tokens, from the query stream, which has read all that
comes before in the order but not the token itself.

The number of predictions is fixed, for static shapes: what is missing is filled with queries that have no label.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from firth import rng
from firth.data.packing import Pack, Plan, runs
from firth.data.stream import CorpusView
from firth.errors import BadConfig
from firth.nn.likelihood import IGNORE, summed_cross_entropy
from firth.objectives.mask_units import Unit
from firth.objectives.objective import Objective
from firth.objectives.token_choice import choose_tokens, max_predictions
from firth.ragged import bounds_of, starts_of
from firth.tensors import CONTEXT_RANK, MEMORY_RANK, Batch, Encoder, Loss, PredictionOrder, States
from firth.tokenizers.vocab import Vocab

NAME = "permutation_lm"
QUERY_SLACK = 8
"""How many predictions a sequence may have above its share: units are taken whole."""


class PermutationLM(Objective):
    word_losses = {NAME: "token in random order"}
    per_token = ("bias",)

    @dataclass(frozen=True)
    class Config:
        rate: float = 1 / 6
        """Share of a sequence's tokens that are predicted: the end of its order (1 / K in the paper, K = 6)."""
        unit: Unit = "ngram"
        """What is predicted as a whole: tokens, words, spans of 1 to 10 words, n-grams of 1 to 3 words."""
        pair_rate: float = 0.9
        """Share of sequences split into two segments at a sentence border."""
        sentence_rate: float = 0.0
        """Share of the sequences that are cut into single sentences; held-out text is cut the same way."""
        memory_rate: float = 0.5
        """Of the sequences in two segments, the share whose first segment is memory."""
        fresh: bool = True
        """Draw new cuts and orders every epoch; otherwise an epoch repeats those of the first."""

        def __post_init__(self) -> None:
            if not 0 < self.rate < 1:
                raise BadConfig(f"objectives.{NAME}.rate must be between 0 and 1.")
            if not all(0 <= share <= 1 for share in (self.pair_rate, self.sentence_rate, self.memory_rate)):
                raise BadConfig(f"objectives.{NAME}.pair_rate, sentence_rate and memory_rate must be between 0 and 1.")
            if self.unit == "entity":
                raise BadConfig(f"objectives.{NAME}.unit is token, word, span or ngram.")

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        if not encoder.has_two_streams:
            raise BadConfig(f"The objective {NAME} needs an encoder with two streams, such as xlnet.")
        self.config = config
        self.vocab = vocab
        self.max_length = max_length
        self.seed = seed
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        """Runs of text, with the number of memory tokens of each as a label."""
        key = rng.epoch_key(self.seed, "runs", epoch, fresh=self.config.fresh)
        frame = self.vocab.frame
        plan = runs(
            stream,
            self.max_length,
            frame=frame,
            key=key,
            pair_rate=self.config.pair_rate,
            sentence_rate=self.config.sentence_rate,
        )
        memory_S = np.zeros(len(plan), np.int64)
        if self.config.pair_rate:
            sizes_SP = plan.pieces_SP2[:, :, 1] - plan.pieces_SP2[:, :, 0]
            # The memory ends where the second segment begins.
            first_segment_S = len(frame.opening) + sizes_SP[:, 0] + len(frame.between)
            memory_key = rng.epoch_key(self.seed, "memory", epoch, fresh=self.config.fresh)
            draws_S = rng.uniform(memory_key, np.arange(len(plan)))
            is_drawn_S = draws_S < self.config.memory_rate
            has_second_S = sizes_SP[:, 1] > 0
            memory_S = np.where(is_drawn_S & has_second_S, first_segment_S, 0)
        return replace(plan, labels={**plan.labels, NAME: memory_S})

    def corrupt(self, pack: Pack, epoch: int) -> None:
        key = rng.epoch_key(self.seed, "order", epoch, fresh=self.config.fresh)
        ranks_N = np.full(pack.num_tokens, CONTEXT_RANK, np.int64)
        is_memory_N = self._is_memory(pack)
        ranks_N[: len(is_memory_N)][is_memory_N] = MEMORY_RANK
        choices = np.flatnonzero(pack.ordinary_N & ~is_memory_N)
        chosen = self._choose(pack, choices, key)
        ranks_N[chosen] = _random_ranks(pack, chosen, key)
        queries_P, labels_P, bounds_B1 = self._queries(pack, chosen)
        pack.targets[f"{NAME}_ranks"] = ranks_N
        pack.targets[f"{NAME}_queries"] = queries_P
        pack.targets[f"{NAME}_bounds"] = bounds_B1
        pack.targets[f"{NAME}_labels"] = labels_P

    def rewrite(self, batch: Batch) -> tuple[Batch, Loss]:
        """The batch with the order of prediction, which is all that the encoder must know."""
        order = PredictionOrder(
            batch.targets[f"{NAME}_ranks"],
            batch.targets[f"{NAME}_queries"],
            batch.targets[f"{NAME}_bounds"],
            self._max_queries(batch.max_length),
        )
        return replace(batch, order=order), Loss({})

    def loss(self, states: States, batch: Batch) -> Loss:
        assert states.queries_PD is not None
        labels_P = batch.targets[f"{NAME}_labels"]
        total, correct = summed_cross_entropy(states.queries_PD, states.table_VD, self.bias, labels_P=labels_P)
        return Loss({NAME: total}, {f"{NAME}_correct": correct})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        is_label_P = batch.targets[f"{NAME}_labels"] != IGNORE
        return {NAME: int(is_label_P.sum())}

    def scores(self, x_PD: Tensor, table_VD: Tensor) -> Tensor:
        """Scores over the vocabulary from states of the query stream."""
        return linear(x_PD, table_VD, self.bias)

    def _max_queries(self, max_length: int) -> int:
        """The most predictions of a sequence, in batches of sequences up to this length."""
        return int(self.config.rate * max_length) + QUERY_SLACK

    def _is_memory(self, pack: Pack) -> np.ndarray:
        """For each token of a pack whether it is memory; none is where another objective cut the text."""
        if NAME not in pack.labels:
            return np.zeros(len(pack.ids_N), bool)
        memory_B = pack.labels[NAME]
        return np.asarray(pack.positions_N < memory_B[pack.sequence_N])

    def _choose(self, pack: Pack, tokens: np.ndarray, key: np.uint64) -> np.ndarray:
        """The tokens to predict, in the order of the pack: a limited number of each sequence."""
        config = self.config
        chosen, _ = choose_tokens(pack, tokens, unit=config.unit, rate=config.rate, key=key)
        number = _numbers_in_sequence(pack.sequence_N[chosen])
        return np.asarray(chosen[number < self._max_queries(pack.max_length)])

    def _queries(self, pack: Pack, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The queries of all sequences with their labels, and where each sequence's begin.

        Sequences are those of the finished batch, filler included. Queries without a label fill up the last sequences.
        """
        sequence = pack.sequence_N[chosen]
        num_chosen_B = np.bincount(sequence, minlength=pack.batch_sequences)
        num_queries = max_predictions(pack.num_tokens, self.config.rate)
        free_B = self._max_queries(pack.max_length) - num_chosen_B
        free_behind_B = free_B[::-1].cumsum()[::-1] - free_B
        filler_B = np.clip(num_queries - len(chosen) - free_behind_B, 0, free_B)
        bounds_B1 = bounds_of(num_chosen_B + filler_B)

        # A sequence's own queries come first, so the chosen tokens are shifted by the filler before their sequence.
        shift_B = starts_of(filler_B)
        places = np.arange(len(chosen)) + shift_B[sequence]
        queries_P = np.zeros(num_queries, np.int64)
        labels_P = np.full(num_queries, IGNORE, np.int64)
        queries_P[places] = chosen
        labels_P[places] = pack.ids_N[chosen]
        return queries_P, labels_P, bounds_B1.astype(np.int32)


def _random_ranks(pack: Pack, chosen: np.ndarray, key: np.uint64) -> np.ndarray:
    """The place of each chosen token in the order of its sequence: 0, 1, 2 ... in random order."""
    sequence = pack.sequence_N[chosen]
    draws = rng.uniform(key, pack.rows_B[sequence], pack.positions_N[chosen], 5)
    # Draws are below 1, so this sorts by sequence, and at random within each sequence.
    order = np.argsort(sequence + draws, kind="stable")
    ranks = np.empty(len(chosen), np.int64)
    ranks[order] = _numbers_in_sequence(sequence)
    return ranks


def _numbers_in_sequence(sequence: np.ndarray) -> np.ndarray:
    """The number of each chosen token among those of its sequence; sequences ascend."""
    first = np.searchsorted(sequence, sequence)
    return np.asarray(np.arange(len(sequence)) - first)
