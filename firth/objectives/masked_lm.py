"""Masked language model (Devlin et al. 2018, section 3.1, task 1).

Cut: every document into runs of at most `max_length`, at other places each epoch. Corruption: 15 % of a sequence's
tokens, never special ones, are chosen, by units (`mask_units.py`). Of those 80 % become `[MASK]`, 10 % a random token,
and 10 % stay. Loss: cross-entropy at the chosen tokens only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor
from torch.nn.functional import cross_entropy

from firth import rng
from firth.data.packing import Pack, Plan, runs
from firth.data.stream import CorpusView
from firth.errors import BadConfig
from firth.nn.blocks import initialise
from firth.nn.heads import VocabularyHead
from firth.nn.likelihood import IGNORE, summed_cross_entropy
from firth.objectives.entities import Names, read_names
from firth.objectives.mask_units import Unit
from firth.objectives.objective import Objective
from firth.objectives.token_choice import choose_tokens, max_predictions
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers import Tokenizer
from firth.tokenizers.vocab import Vocab

FREQUENT = 1e-3
"""Tokens with a larger share of the text are mostly function words, which a sentence may well repeat."""


class MaskedLM(Objective):
    word_losses = {"masked_lm": "masked token"}
    per_token = ("head.bias",)

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
        """Activation of the head; empty for the encoder's."""
        fresh: bool = True
        """Draw new cuts and masks every epoch; otherwise an epoch repeats those of the first."""
        sentence_rate: float = 0.0
        """Share of the sequences that are cut into single sentences, for objectives that cut the text; held-out text is
        cut the same way. A model that only reads long runs takes the words of a lone sentence for its answers."""
        hide_repeats: float = 0.0
        """Share of the sequences in which the other occurrences of a chosen token are masked, too, without being
        predicted. A model that often finds the answer nearby copies words of the sentence. Tokens that make up more
        than a thousandth of the text stay readable."""
        pair_rate: float = 0.0
        """Share of sequences split into two segments at a sentence border, so that both segments are trained; for
        objectives that cut the text. Sequences without a border inside stay whole."""

        def __post_init__(self) -> None:
            shares = (self.mask_share, self.random_share, self.mask_share + self.random_share)
            are_shares = all(0 <= share <= 1 for share in shares)
            if not 0 < self.rate < 1 or not are_shares:
                raise BadConfig("Masking needs a rate between 0 and 1, and shares that add up to at most 1.")
            for name in ("sentence_rate", "hide_repeats", "pair_rate"):
                if not 0 <= getattr(self, name) <= 1:
                    raise BadConfig(f"objectives.masked_lm.{name} must be between 0 and 1.")
            if self.entities and self.unit != "entity":
                raise BadConfig("A list of entities goes with objectives.masked_lm.unit=entity.")

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config = config
        self.vocab = vocab
        self.max_length = max_length
        self.seed = seed
        shape = encoder.config
        self.head = VocabularyHead(
            encoder.width,
            encoder.vocab_size,
            table_width=encoder.table_width,
            activation_name=config.activation or shape.activation,
            norm_eps=shape.norm_eps,
            # Only ModernBERT's heads can be without biases.
            dense_bias=getattr(shape, "head_bias", True),
            norm_bias=getattr(shape, "norm_bias", True),
        )
        initialise(self.head, std=shape.init_std)
        self._entities = Names()
        self._is_frequent_V = np.zeros(len(vocab), bool)
        self._ordinary_ids = np.setdiff1d(np.arange(len(vocab)), sorted(vocab.specials))

    def warning(self) -> str:
        if self.config.unit != "entity" or self.config.entities:
            return ""
        return (
            "without a list of names and phrases whole words are masked, as in bert-wwm; "
            "give one with objectives.masked_lm.entities=FILE."
        )

    def set_tokenizer(self, tokenizer: Tokenizer) -> None:
        if self.config.entities:
            self._entities = read_names(Path(self.config.entities), tokenizer)

    def set_text(self, stream: CorpusView) -> None:
        shards = stream.shards
        self._is_frequent_V = shards.counts > FREQUENT * shards.num_tokens

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        key = rng.epoch_key(self.seed, "runs", epoch, fresh=self.config.fresh)
        config = self.config
        return runs(
            stream,
            self.max_length,
            frame=self.vocab.frame,
            key=key,
            pair_rate=config.pair_rate,
            sentence_rate=config.sentence_rate,
        )

    def corrupt(self, pack: Pack, epoch: int) -> None:
        key = rng.epoch_key(self.seed, "mask", epoch, fresh=self.config.fresh)
        chosen, leaders = self._choose(pack, key)
        # The number of predictions is fixed, so that the compiled graph sees static shapes.
        size = max_predictions(pack.num_tokens, self.config.rate)
        labels = np.full(size, IGNORE, np.int64)
        positions = np.zeros(size, np.int64)
        labels[: len(chosen)] = pack.ids_N[chosen]
        positions[: len(chosen)] = chosen
        pack.targets["masked_lm_positions"] = positions
        pack.targets["masked_lm_labels"] = labels
        repeats = self._repeats(pack, chosen, key=key)
        self._replace(pack, chosen, leaders, key=key)
        pack.ids_N[repeats] = self.vocab.mask

    def loss(self, states: States, batch: Batch) -> Loss:
        positions_P = batch.targets["masked_lm_positions"]
        if states.last_ND.is_cuda:
            # torch.compile makes one kernel of scores and loss.
            return self.loss_from_scores(self.scores(states, positions_P), batch)
        hidden_PE = self.head.hidden(states.last_ND.index_select(0, positions_P))
        labels_P = batch.targets["masked_lm_labels"]
        total, correct = summed_cross_entropy(hidden_PE, states.table_VD, self.head.bias, labels_P=labels_P)
        return Loss({"masked_lm": total}, {"masked_lm_correct": correct})

    def loss_from_scores(self, scores_PV: Tensor, batch: Batch) -> Loss:
        labels_P = batch.targets["masked_lm_labels"]
        total = cross_entropy(scores_PV.float(), labels_P, ignore_index=IGNORE, reduction="sum")
        correct = (scores_PV.argmax(-1) == labels_P).sum()
        return Loss({"masked_lm": total}, {"masked_lm_correct": correct})

    def hidden_tallies(self, scores_PV: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Loss and accuracy at the tokens that were replaced by `[MASK]`: chosen tokens left in place can be copied."""
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
        is_label_P = batch.targets["masked_lm_labels"] != IGNORE
        return {"masked_lm": int(is_label_P.sum())}

    def scores(self, states: States, positions_P: Tensor) -> Tensor:
        """Scores over the vocabulary at these tokens of the pack."""
        x_PD = states.last_ND.index_select(0, positions_P)
        scores_PV: Tensor = self.head(x_PD, states.table_VD)
        return scores_PV

    def _choose(self, pack: Pack, key: np.uint64) -> tuple[np.ndarray, np.ndarray]:
        """The tokens to predict, and for each of them the first token of its unit."""
        config = self.config
        tokens = np.flatnonzero(pack.ordinary_N)
        return choose_tokens(pack, tokens, unit=config.unit, rate=config.rate, key=key, entities=self._entities)

    def _repeats(self, pack: Pack, chosen: np.ndarray, *, key: np.uint64) -> np.ndarray:
        """Other occurrences of the chosen tokens in their sequences, in the share of the sequences that hides them."""
        if not self.config.hide_repeats:
            return np.zeros(0, np.int64)
        hides_B = rng.uniform(key, pack.rows_B, 5) < self.config.hide_repeats
        may_hide_N = pack.ordinary_N & hides_B[pack.sequence_N] & ~self._is_frequent_V[pack.ids_N]
        # The same token in the same sequence has the same number.
        number_N = pack.sequence_N * len(self.vocab) + pack.ids_N
        is_repeat_N = np.isin(number_N, number_N[chosen]) & may_hide_N
        is_repeat_N[chosen] = False
        return np.flatnonzero(is_repeat_N)

    def _replace(self, pack: Pack, chosen: np.ndarray, leaders: np.ndarray, *, key: np.uint64) -> None:
        """Replaces the chosen tokens by the mask token, by a random token, or not at all."""
        config = self.config
        rows = pack.rows_B[pack.sequence_N[chosen]]
        positions = pack.positions_N[chosen]
        # All tokens of a span share one draw, as in SpanBERT; otherwise each token has its own, as in BERT.
        draw_positions = pack.positions_N[leaders] if config.unit == "span" else positions
        draws = rng.uniform(key, rows, draw_positions, 2)
        picks = rng.below(key, len(self._ordinary_ids), rows, positions, 3)
        is_masked = draws < config.mask_share
        is_random = ~is_masked & (draws < config.mask_share + config.random_share)
        pack.ids_N[chosen[is_masked]] = self.vocab.mask
        pack.ids_N[chosen[is_random]] = self._ordinary_ids[picks[is_random]]
