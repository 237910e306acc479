"""Entity replacement (WKLM, Xiong et al. 2020): is a name in the text the original one, or another of its type?

Cut: every document into runs, as for masked LM, which usually follows and masks only other words. Corruption: some of
the names become another name of the same type with as many tokens, never two in a row. Loss: binary cross-entropy for
every name, from the states just before and just after it. Names come from a list or a tagger (`entities.py`); without
either, phrases of the text itself are used, all of one type.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from firth import rng
from firth.config import check_rates
from firth.data.packing import Pack, Plan, runs
from firth.data.stream import CorpusView
from firth.errors import BadConfig, BadInput
from firth.nn.blocks import initialise
from firth.nn.likelihood import IGNORE, scale_gradient
from firth.objectives.entities import Mentions, Names, phrases_of, read_names
from firth.objectives.objective import Objective
from firth.objectives.word_spans import PackText, text_of
from firth.ragged import ranges
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers import Tokenizer
from firth.tokenizers.vocab import Vocab
from firth.types import ShareFigure

TOKENS_PER_NAME = 8
"""A pack has room for one name in so many tokens; more are left as they are."""


class EntityReplacement(Objective):
    makes_pairs = True
    per_token = ()
    other_losses = ("entity_replacement",)
    shares = {
        "entity_replacement_accuracy": ShareFigure("Names rightly called original or replaced"),
        "entity_replacement_recall": ShareFigure("Replaced names found (recall)"),
    }

    @dataclass(frozen=True)
    class Config:
        entities: str = ""
        """A file: a name on each line, its type behind a tab, or rows of `firth predict --json` by a tagger."""
        rate: float = 0.5
        """Share of the names drawn for replacement; of two drawn in a row only the first is replaced."""
        weight: float = 1.0
        """How much this loss counts, compared with those of other objectives."""
        fresh: bool = True
        """Draw new cuts and replacements every epoch; otherwise an epoch repeats those of the first."""

        def __post_init__(self) -> None:
            check_rates(rate=self.rate)
            if self.weight <= 0:
                raise BadConfig("objectives.entity_replacement.weight must be above 0.")

    config: Config

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config = config
        self.vocab = vocab
        self.max_length = max_length
        self.seed = seed
        self.judge = nn.Linear(2 * encoder.width, 1)
        initialise(self.judge, std=encoder.init_std)
        self._names = Names()
        self._names_of: Path | None = None

    def warning(self) -> str:
        if self.config.entities:
            return ""
        return (
            "without a list of names frequent phrases of the text are replaced, all of one type; "
            "give one with objectives.entity_replacement.entities=FILE."
        )

    def set_tokenizer(self, tokenizer: Tokenizer) -> None:
        if self.config.entities:
            self._names = read_names(Path(self.config.entities), tokenizer)

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        if not self.config.entities and self._names_of != stream.shards.folder:
            self._names = phrases_of(stream.shards)
            self._names_of = stream.shards.folder
            if not len(self._names):
                raise BadInput(
                    f"{stream.shards.folder} repeats no phrases that could be replaced; give a list of names with "
                    "`objectives.entity_replacement.entities=FILE`."
                )
        key = rng.epoch_key(self.seed, "runs", epoch, fresh=self.config.fresh)
        return runs(stream, self.max_length, frame=self.vocab.frame, key=key)

    def corrupt(self, pack: Pack, epoch: int) -> None:
        text = text_of(pack)
        size = -(-pack.num_tokens // TOKENS_PER_NAME // 64) * 64  # fixed, so that shapes are static
        mentions = self._names.find(text).head(size)
        key = rng.epoch_key(self.seed, "names", epoch, fresh=self.config.fresh)
        is_replaced_J, other_J = self._replacements(text, mentions, key)
        places_T = np.flatnonzero(pack.ordinary_N)
        for mention in np.flatnonzero(is_replaced_J):
            within = slice(mentions.first_J[mention], mentions.ends_J[mention])
            others = self._names.rows[mentions.group_J[mention]]
            pack.ids_N[places_T[within]] = others[other_J[mention]]
        # No other objective chooses the tokens of names.
        pack.ordinary_N[places_T[ranges(mentions.first_J, mentions.ends_J)]] = False
        # Where no special token is before or after a text (XLNet's has none before it), the nearest token of the same
        # sequence is read instead.
        sequence_J = text.sequence_T[mentions.first_J]
        first_of_sequence_J = pack.bounds_B1[sequence_J]
        last_of_sequence_J = pack.bounds_B1[sequence_J + 1] - 1
        values = {
            "left": np.maximum(places_T[mentions.first_J] - 1, first_of_sequence_J),
            "right": np.minimum(places_T[mentions.ends_J - 1] + 1, last_of_sequence_J),
            "labels": is_replaced_J.astype(np.int64),
        }
        for name, array in values.items():
            filler = IGNORE if name == "labels" else 0
            padded = np.full(size, filler, np.int64)
            padded[: len(array)] = array
            pack.targets[f"entity_replacement_{name}"] = padded

    def _replacements(self, text: PackText, mentions: Mentions, key: np.uint64) -> tuple[np.ndarray, np.ndarray]:
        """Which names are replaced, and by which member of their group."""
        sequence_J = text.sequence_T[mentions.first_J]
        rows_J = text.rows_B[sequence_J]
        offsets_J = text.offsets_T[mentions.first_J]
        group_sizes = np.array([len(rows) for rows in self._names.rows], np.int64)
        num_others_J = group_sizes[mentions.group_J] - 1
        draws_J = rng.uniform(key, rows_J, offsets_J, 0)
        is_drawn_J = (draws_J < self.config.rate) & (num_others_J > 0)
        # Never two in a row: the discriminator needs names it can trust.
        is_same_sequence = sequence_J[1:] == sequence_J[:-1]
        follows_drawn_J = np.zeros(len(is_drawn_J), bool)
        follows_drawn_J[1:] = is_drawn_J[:-1] & is_same_sequence
        # A member that is not before the name's own number moves one up, so that it is another one.
        picks_J = rng.below(key, num_others_J.clip(min=1), rows_J, offsets_J, 1)
        other_J = picks_J + (picks_J >= mentions.member_J)
        return is_drawn_J & ~follows_drawn_J, other_J

    def loss(self, states: States, batch: Batch) -> Loss:
        labels_P = batch.targets["entity_replacement_labels"]
        logits_P = self.logits(states, batch)
        is_name_P = labels_P != IGNORE
        is_replaced_P = labels_P == 1
        losses_P = binary_cross_entropy_with_logits(logits_P, is_replaced_P.float(), reduction="none")
        total = (losses_P * is_name_P).sum()
        is_right_P = ((logits_P > 0) == is_replaced_P) & is_name_P
        tallies = {
            "entity_replacement_correct": is_right_P.sum(),
            "entity_replacement_recall": (is_right_P & is_replaced_P).sum(),
            "entity_replacement_recall_of": is_replaced_P.sum(),
        }
        return Loss({"entity_replacement": scale_gradient(total, self.config.weight)}, tallies)

    def logits(self, states: States, batch: Batch) -> Tensor:
        """For every name: above 0 if it looks replaced."""
        left_PD = states.last_ND.index_select(0, batch.targets["entity_replacement_left"])
        right_PD = states.last_ND.index_select(0, batch.targets["entity_replacement_right"])
        logits_P1: Tensor = self.judge(torch.cat([left_PD, right_PD], -1))
        return logits_P1[:, 0].float()

    def counts(self, batch: Batch) -> Mapping[str, int]:
        is_name_P = batch.targets["entity_replacement_labels"] != IGNORE
        return {"entity_replacement": int(is_name_P.sum())}
