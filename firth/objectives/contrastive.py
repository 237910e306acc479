"""Contrastive learning of text vectors: neighbouring pieces of a document are nearer than pieces of other documents.

Cut: documents into runs that fill a sequence, or into sentences; two in a row make a pair, and both go into the same
pack. Loss: for every sequence, the cross-entropy of finding its partner among all sequences of the pack by cosine
(InfoNCE, van den Oord et al. 2018; neighbouring text as positives: Giorgi et al. 2021, DeCLUTR; the same sentence
twice: Gao et al. 2021, SimCSE). The vector is that of the first token or the mean over the tokens, so a model trained
this way gives vectors without a head.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from firth import rng
from firth.data.packing import Pack, Plan, runs
from firth.data.stream import CorpusView
from firth.errors import BadConfig
from firth.nn.blocks import first_rows
from firth.nn.likelihood import IGNORE, scale_gradient
from firth.nn.pooling import mean_rows
from firth.objectives.objective import Objective
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers.vocab import Frame, Vocab
from firth.types import ShareFigure

EXCLUDED = -1e4
"""The score of what a sequence is not compared with. Not minus infinity: a row of those has no gradient."""


class Contrastive(Objective):
    makes_pairs = True
    per_token = ()
    other_losses = ("contrastive",)
    shares = {"contrastive_accuracy": ShareFigure("Neighbouring texts found")}

    @dataclass(frozen=True)
    class Config:
        unit: Literal["run", "sentence"] = "run"
        """What a sequence is: a run of text that fills it, or one sentence."""
        positives: Literal["neighbour", "same"] = "neighbour"
        """What a pair is: two sequences in a row, or the same one twice. The two copies differ only by dropout or by
        what another objective masks or replaces, so one of these is needed."""
        pooling: Literal["cls", "mean"] = "cls"
        """The vector of a sequence: its first token, or the mean over its tokens."""
        temperature: float = 0.05
        """Divides the cosines; the smaller, the more the nearest wrong pieces count."""
        weight: float = 1.0
        """How much this loss counts, compared with those of other objectives."""
        pair_rate: float = 0.0
        """With unit=run, the share of sequences that are split into two segments at a sentence border."""
        sentence_rate: float = 0.0
        """With unit=run, the share of sequences that are cut into single sentences, in held-out text too."""
        min_tokens: int = 8
        """With unit=sentence, shorter sentences are left out."""

        def __post_init__(self) -> None:
            if self.temperature <= 0 or self.weight <= 0:
                raise BadConfig("objectives.contrastive needs a temperature and a weight above 0.")
            if not (0 <= self.pair_rate <= 1 and 0 <= self.sentence_rate <= 1):
                raise BadConfig("objectives.contrastive.pair_rate and sentence_rate must be between 0 and 1.")
            if self.sentence_rate and self.unit == "sentence":
                raise BadConfig(
                    "objectives.contrastive.sentence_rate goes with unit=run; every sequence is a sentence."
                )

    config: Config

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config = config
        self.frame = vocab.frame
        self.max_length = max_length
        self.seed = seed

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        key = rng.key(self.seed, "runs", epoch)
        if self.config.unit == "sentence":
            plan = sentence_plan(stream, self.max_length, frame=self.frame, min_tokens=self.config.min_tokens)
        else:
            plan = runs(
                stream,
                self.max_length,
                frame=self.frame,
                key=key,
                pair_rate=self.config.pair_rate,
                sentence_rate=self.config.sentence_rate,
            )
        if self.config.positives == "same":
            pieces_SP2 = np.repeat(plan.pieces_SP2, 2, axis=0)
            return Plan(pieces_SP2, frame=self.frame, groups_S=np.arange(len(pieces_SP2)) // 2)
        # The document of each sequence, by its first token.
        starts_D = stream.starts_S[stream.bounds_D1[:-1]]
        first_tokens_S = plan.pieces_SP2[:, 0, 0]
        document_S = np.searchsorted(starts_D, first_tokens_S, side="right") - 1
        return Plan(plan.pieces_SP2, frame=self.frame, groups_S=pair_up(document_S, key=key))

    def corrupt(self, pack: Pack, epoch: int) -> None:
        if pack.groups_B is None:
            raise BadConfig("The contrastive objective cuts the text into pairs, so it must be the first objective.")
        # The number of rows is fixed: the most sequences a pack can hold, those of its filler included.
        size = pack.batch_sequences
        partners = np.full(size, IGNORE, np.int64)
        real = np.zeros(size, bool)
        real[: len(pack.rows_B)] = True
        partners[: len(pack.rows_B)] = partners_of(pack.groups_B)
        pack.targets["contrastive_partners"] = partners
        pack.targets["contrastive_real"] = real

    def loss(self, states: States, batch: Batch) -> Loss:
        partners_B = batch.targets["contrastive_partners"]
        cosines_BB = self._cosines(states, batch.bounds_B1)
        # A sequence is not compared with itself, and not with filler.
        is_self_BB = torch.eye(len(cosines_BB), dtype=torch.bool, device=cosines_BB.device)
        is_out_BB = is_self_BB | ~batch.targets["contrastive_real"]
        scores_BB = (cosines_BB / self.config.temperature).masked_fill(is_out_BB, EXCLUDED)
        total = cross_entropy(scores_BB, partners_B, ignore_index=IGNORE, reduction="sum")
        correct = (scores_BB.argmax(-1) == partners_B).sum()
        return Loss({"contrastive": scale_gradient(total, self.config.weight)}, {"contrastive_correct": correct})

    def _cosines(self, states: States, bounds_B1: Tensor) -> Tensor:
        pool = first_rows if self.config.pooling == "cls" else mean_rows
        vectors_BD = normalize(pool(states.last_ND, bounds_B1).float(), dim=-1)
        return vectors_BD @ vectors_BD.T

    def counts(self, batch: Batch) -> Mapping[str, int]:
        has_partner_B = batch.targets["contrastive_partners"] != IGNORE
        return {"contrastive": int(has_partner_B.sum())}


def sentence_plan(stream: CorpusView, max_length: int, *, frame: Frame, min_tokens: int) -> Plan:
    """Every sentence of at least `min_tokens` as a sequence of at most `max_length`, special tokens included."""
    room = max_length - frame.size(1)
    kept = stream.ends_S - stream.starts_S >= min_tokens
    starts_S = stream.starts_S[kept]
    ends_S = np.minimum(stream.ends_S[kept], starts_S + room)
    return Plan(np.stack([starts_S, ends_S], -1)[:, None, :], frame=frame)


def pair_up(document_S: np.ndarray, *, key: np.uint64) -> np.ndarray:
    """The group of each sequence: two in a row of one document share one. A draw per document says which is first."""
    is_another = document_S[1:] != document_S[:-1]
    is_first_S = np.concatenate([[True], is_another])
    place_S = np.arange(len(document_S))
    # The first sequence of the same document.
    starts_S = np.maximum.accumulate(np.where(is_first_S, place_S, 0))
    number_S = place_S - starts_S
    # With an offset of 1 the first sequence stays alone and the second begins a pair.
    offset_S = rng.below(key, 2, document_S, 7)
    begins_S = is_first_S | ((number_S + offset_S) % 2 == 0)
    return np.cumsum(begins_S) - 1


def partners_of(groups_B: np.ndarray) -> np.ndarray:
    """For each sequence of a pack the number of the other one of its group; IGNORE where it is alone."""
    partners = np.full(len(groups_B), IGNORE, np.int64)
    is_pair = groups_B[1:] == groups_B[:-1]
    first = np.flatnonzero(is_pair)
    partners[first] = first + 1
    partners[first + 1] = first
    return partners
