"""Masked language model (Devlin et al. 2018, section 3.1, task 1).

Cut: every document into runs of at most `max_length`. Corruption: 15 % of a sequence's tokens, never special ones, are
chosen; of those 80 % become `[MASK]`, 10 % a random token, 10 % stay. Loss: cross-entropy at the chosen tokens only.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.nn.functional import cross_entropy

from firth import chance
from firth.data.packing import Pack, Plan
from firth.data.stream import Stream, ranges
from firth.errors import BadConfig
from firth.nn.blocks import initialise
from firth.nn.heads import VocabularyHead
from firth.tensors import Batch, Encoder, Loss, Objective, States
from firth.tokenizers.vocab import Vocab

IGNORE = -100


class MaskedLM(Objective):
    @dataclass(frozen=True)
    class Config:
        rate: float = 0.15
        """Share of a sequence's tokens that are chosen for prediction."""
        mask_share: float = 0.8
        """Of the chosen tokens, the share replaced by the mask token."""
        random_share: float = 0.1
        """Of the chosen tokens, the share replaced by a random token; the rest stay as they are."""
        whole_words: bool = False
        """Choose all pieces of a word or none (Chinese words as the segmenter cut them)."""
        fresh: bool = True
        """Draw new masks every epoch; otherwise an epoch repeats the masks of the first."""

        def __post_init__(self) -> None:
            shares = self.mask_share, self.random_share, self.mask_share + self.random_share
            if not 0 < self.rate < 1 or not all(0 <= share <= 1 for share in shares):
                raise BadConfig("Masking needs a rate between 0 and 1, and shares that add up to at most 1.")

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config, self.vocab, self.max_length, self.seed = config, vocab, max_length, seed
        shape = encoder.config
        self.head = VocabularyHead(
            encoder.width, encoder.vocab_size, activation_name=shape.activation, norm_eps=shape.norm_eps
        )
        initialise(self.head, std=shape.init_std)
        self._ordinary_ids = np.setdiff1d(np.arange(len(vocab)), sorted(vocab.specials))

    def sequences(self, stream: Stream, epoch: int) -> Plan:
        starts = stream.starts_S[stream.bounds_D1[:-1]]
        sizes = stream.ends_S[stream.bounds_D1[1:] - 1] - starts
        step = self.max_length - 2
        counts = -(-sizes // step)
        offsets = ranges(np.zeros_like(counts), counts) * step
        first = np.repeat(starts, counts) + offsets
        last = np.minimum(first + step, np.repeat(starts + sizes, counts))
        return Plan(np.stack([first, last], -1)[:, None, :])

    def corrupt(self, pack: Pack, epoch: int) -> None:
        key = chance.key(self.seed, "mask", epoch if self.config.fresh else 0)
        chosen = self._choose(pack, key)
        size = max_predictions(pack.num_tokens, self.config.rate)
        labels = np.full(size, IGNORE, np.int64)
        positions = np.zeros(size, np.int64)
        labels[: len(chosen)] = pack.ids_N[chosen]
        positions[: len(chosen)] = chosen
        pack.targets |= {"masked_lm_positions": positions, "masked_lm_labels": labels}
        self._replace(pack, chosen, key)

    def loss(self, states: States, batch: Batch) -> Loss:
        labels_P = batch.targets["masked_lm_labels"]
        scores_PV = self.scores(states, batch.targets["masked_lm_positions"])
        total = cross_entropy(scores_PV.float(), labels_P, ignore_index=IGNORE, reduction="sum")
        correct = (scores_PV.argmax(-1) == labels_P).sum()
        return Loss({"masked_lm": total}, {"masked_lm_correct": correct})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {"masked_lm": int((batch.targets["masked_lm_labels"] != IGNORE).sum())}

    def scores(self, states: States, positions_P: Tensor) -> Tensor:
        """Scores over the vocabulary at these tokens of the pack."""
        scores_PV: Tensor = self.head(states.last_ND.index_select(0, positions_P), states.table_VD)
        return scores_PV

    def _choose(self, pack: Pack, key: np.uint64) -> np.ndarray:
        """The tokens to predict: units (tokens or whole words) in random order until a sequence's share is reached.

        The unit that straddles the share is taken with the probability that makes the expected share exact.
        """
        tokens = np.flatnonzero(pack.ordinary_N)
        sequence = pack.sequence_N[tokens]
        counters = pack.rows_B[sequence], pack.positions_N[tokens]
        starts = self._unit_starts(pack, tokens)
        unit = np.cumsum(starts) - 1
        lengths = np.bincount(unit)
        of_sequence = sequence[starts]
        draws = chance.uniform(key, *(c[starts] for c in counters), 0)
        order = np.argsort(of_sequence + draws)
        ends = np.cumsum(lengths[order])
        before = ends - lengths[order]
        sizes = np.bincount(sequence, minlength=len(pack.rows_B))
        spent = before - (np.cumsum(sizes) - sizes)[of_sequence[order]]
        room = self.config.rate * sizes[of_sequence[order]] - spent
        toss = chance.uniform(key, *(c[starts][order] for c in counters), 1)
        taken = np.zeros(len(lengths), bool)
        taken[order] = toss * lengths[order] < room
        return self._within(tokens, taken, unit, max_predictions(pack.num_tokens, self.config.rate))

    def _unit_starts(self, pack: Pack, tokens: np.ndarray) -> np.ndarray:
        if not self.config.whole_words:
            return np.ones(len(tokens), bool)
        # A piece that begins in mid-word still begins a unit: a unit never reaches over a special token.
        return np.asarray(pack.word_starts_N[tokens] | (np.diff(tokens, prepend=-2) > 1))

    @staticmethod
    def _within(tokens: np.ndarray, taken: np.ndarray, unit: np.ndarray, limit: int) -> np.ndarray:
        """Drops the last units, whole, should there be more tokens than the fixed number of predictions."""
        chosen = taken[unit]
        while chosen.sum() > limit:
            taken[np.flatnonzero(taken)[-1]] = False
            chosen = taken[unit]
        return np.asarray(tokens[chosen])

    def _replace(self, pack: Pack, chosen: np.ndarray, key: np.uint64) -> None:
        counters = pack.rows_B[pack.sequence_N[chosen]], pack.positions_N[chosen]
        draw = chance.uniform(key, *counters, 2)
        pick = chance.below(key, len(self._ordinary_ids), *counters, 3)
        config = self.config
        masked = draw < config.mask_share
        random = ~masked & (draw < config.mask_share + config.random_share)
        pack.ids_N[chosen[masked]] = self.vocab.mask
        pack.ids_N[chosen[random]] = self._ordinary_ids[pick[random]]


def max_predictions(num_tokens: int, rate: float) -> int:
    """A fixed number of predictions for a pack: the expected one and some slack, a multiple of 64."""
    return -(-int(num_tokens * rate * 1.05 + 32) // 64) * 64
