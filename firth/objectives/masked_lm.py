"""Masked language model (Devlin et al. 2018, section 3.1, task 1).

Cut: every document into runs of at most `max_length`, at other places each epoch. Corruption: 15 % of a sequence's
tokens, never special ones, are chosen, by units (`units.py`); of those 80 % become `[MASK]`, 10 % a random token, 10 %
stay. Loss: cross-entropy at the chosen tokens only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor
from torch.nn.functional import cross_entropy

from firth import chance
from firth.data.packing import Pack, Plan, runs
from firth.data.stream import Stream
from firth.errors import BadConfig
from firth.nn.blocks import initialise
from firth.nn.heads import VocabularyHead
from firth.objectives.units import Entities, Unit, unit_starts
from firth.tensors import Batch, Encoder, Loss, Objective, States
from firth.tokenizers import Tokenizer
from firth.tokenizers.vocab import Vocab

IGNORE = -100


class MaskedLM(Objective):
    word_losses = {"masked_lm": "masked token"}

    @dataclass(frozen=True)
    class Config:
        rate: float = 0.15
        """Share of a sequence's tokens that are chosen for prediction."""
        mask_share: float = 0.8
        """Of the chosen tokens, the share replaced by the mask token."""
        random_share: float = 0.1
        """Of the chosen tokens, the share replaced by a random token; the rest stay as they are."""
        unit: Unit = "token"
        """What is chosen as a whole: a token, a word (in Chinese as the segmenter cut it), a span of 1 to 10 words, an
        n-gram of 1 to 3 words, or an entity (a name or phrase of the list, otherwise a word)."""
        entities: str = ""
        """With unit=entity, a file: a name or phrase on each line, or rows of `firth predict --json` by a tagger."""
        activation: str = ""
        """Activation of the head where it is not the encoder's."""
        fresh: bool = True
        """Draw new cuts and masks every epoch; otherwise an epoch repeats those of the first."""
        pair_rate: float = 0.0
        """Share of sequences split into two segments at a sentence border, so that both segments are trained; for
        objectives that cut the text. Sequences without a border inside stay whole."""

        def __post_init__(self) -> None:
            shares = self.mask_share, self.random_share, self.mask_share + self.random_share
            if not 0 < self.rate < 1 or not all(0 <= share <= 1 for share in shares):
                raise BadConfig("Masking needs a rate between 0 and 1, and shares that add up to at most 1.")
            if not 0 <= self.pair_rate <= 1:
                raise BadConfig("objectives.masked_lm.pair_rate must be between 0 and 1.")
            if self.entities and self.unit != "entity":
                raise BadConfig("A list of entities goes with objectives.masked_lm.unit=entity.")

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config, self.vocab, self.max_length, self.seed = config, vocab, max_length, seed
        shape = encoder.config
        self.head = VocabularyHead(
            encoder.width,
            encoder.vocab_size,
            table_width=encoder.table_width,
            activation_name=config.activation or shape.activation,
            norm_eps=shape.norm_eps,
        )
        initialise(self.head, std=shape.init_std)
        self._entities = Entities()
        self._ordinary_ids = np.setdiff1d(np.arange(len(vocab)), sorted(vocab.specials))

    def warning(self) -> str:
        if self.config.unit != "entity" or self.config.entities:
            return ""
        return (
            "without a list of names and phrases whole words are masked, as in bert-wwm; "
            "give one with objectives.masked_lm.entities=FILE."
        )

    def meet(self, tokenizer: Tokenizer) -> None:
        if self.config.entities:
            self._entities = Entities.read(Path(self.config.entities), tokenizer)

    def sequences(self, stream: Stream, epoch: int) -> Plan:
        key = chance.key(self.seed, "runs", epoch if self.config.fresh else 0)
        return runs(stream, self.max_length, frame=self.vocab.frame, key=key, pair_rate=self.config.pair_rate)

    def corrupt(self, pack: Pack, epoch: int) -> None:
        key = chance.key(self.seed, "mask", epoch if self.config.fresh else 0)
        chosen, leaders = self._choose(pack, key)
        size = max_predictions(pack.num_tokens, self.config.rate)
        labels = np.full(size, IGNORE, np.int64)
        positions = np.zeros(size, np.int64)
        labels[: len(chosen)] = pack.ids_N[chosen]
        positions[: len(chosen)] = chosen
        pack.targets |= {"masked_lm_positions": positions, "masked_lm_labels": labels}
        self._replace(pack, chosen, leaders, key=key)

    def loss(self, states: States, batch: Batch) -> Loss:
        return self.loss_of(self.scores(states, batch.targets["masked_lm_positions"]), batch)

    def loss_of(self, scores_PV: Tensor, batch: Batch) -> Loss:
        labels_P = batch.targets["masked_lm_labels"]
        total = cross_entropy(scores_PV.float(), labels_P, ignore_index=IGNORE, reduction="sum")
        correct = (scores_PV.argmax(-1) == labels_P).sum()
        return Loss({"masked_lm": total}, {"masked_lm_correct": correct})

    def hidden_tallies(self, scores_PV: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Loss and accuracy on tokens that were really hidden: chosen ones that were left in place can be copied."""
        labels_P = batch.targets["masked_lm_labels"]
        ids_P = batch.ids_N[batch.targets["masked_lm_positions"]]
        is_hidden_P = (ids_P == self.vocab.mask) & (labels_P != IGNORE)
        losses_P = cross_entropy(scores_PV.float(), labels_P, ignore_index=IGNORE, reduction="none")
        correct_P = scores_PV.argmax(-1) == labels_P
        count = is_hidden_P.sum()
        return {
            "masked_lm_hidden_loss": (losses_P * is_hidden_P).sum(),
            "masked_lm_hidden_loss_of": count,
            "masked_lm_hidden_accuracy": (correct_P & is_hidden_P).sum(),
            "masked_lm_hidden_accuracy_of": count,
        }

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {"masked_lm": int((batch.targets["masked_lm_labels"] != IGNORE).sum())}

    def scores(self, states: States, positions_P: Tensor) -> Tensor:
        """Scores over the vocabulary at these tokens of the pack."""
        scores_PV: Tensor = self.head(states.last_ND.index_select(0, positions_P), states.table_VD)
        return scores_PV

    def _choose(self, pack: Pack, key: np.uint64) -> tuple[np.ndarray, np.ndarray]:
        """The tokens to predict, and each one's unit's first: units in random order until a sequence's share is full.

        The unit that straddles the share is taken with the probability that makes the expected share exact.
        """
        tokens = np.flatnonzero(pack.ordinary_N)
        sequence = pack.sequence_N[tokens]
        counters = pack.rows_B[sequence], pack.positions_N[tokens]
        starts = unit_starts(self.config.unit, pack, tokens, key=key, entities=self._entities)
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
        chosen = self._within(taken, unit, max_predictions(pack.num_tokens, self.config.rate))
        return tokens[chosen], tokens[starts][unit[chosen]]

    @staticmethod
    def _within(taken: np.ndarray, unit: np.ndarray, limit: int) -> np.ndarray:
        """Which tokens are chosen; drops the last units, whole, should there be more than the fixed number."""
        chosen = taken[unit]
        while chosen.sum() > limit:
            taken[np.flatnonzero(taken)[-1]] = False
            chosen = taken[unit]
        return np.asarray(chosen)

    def _replace(self, pack: Pack, chosen: np.ndarray, leaders: np.ndarray, *, key: np.uint64) -> None:
        counters = pack.rows_B[pack.sequence_N[chosen]], pack.positions_N[chosen]
        # A span shares one fate, as in SpanBERT; elsewhere each token has its own, as in BERT.
        fates = (counters[0], pack.positions_N[leaders]) if self.config.unit == "span" else counters
        draw = chance.uniform(key, *fates, 2)
        pick = chance.below(key, len(self._ordinary_ids), *counters, 3)
        config = self.config
        masked = draw < config.mask_share
        random = ~masked & (draw < config.mask_share + config.random_share)
        pack.ids_N[chosen[masked]] = self.vocab.mask
        pack.ids_N[chosen[random]] = self._ordinary_ids[pick[random]]


def max_predictions(num_tokens: int, rate: float) -> int:
    """A fixed number of predictions for a pack: the expected one and some slack, a multiple of 64."""
    return -(-int(num_tokens * rate * 1.05 + 32) // 64) * 64
