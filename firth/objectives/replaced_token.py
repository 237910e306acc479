"""Replaced token detection (Clark et al. 2020): classify every token as original or replaced by a small generator.

Cut and corruption: those of masked LM, without random tokens. Step: a generator, a small BERT that shares the encoder's
embeddings, learns masked LM and fills the masks by sampling. The encoder (the discriminator) reads the filled text and
says for every token whether it was replaced; a sample that equals the original counts as original. No gradient goes
through the sampling. Loss: L_generator + weight * L_encoder (equation 3). Samples come from torch's random generator,
which the training loop seeds for every step.

With `corrective_weight` the encoder also predicts the original token at every chosen position (corrective language
modelling, as in COCO-LM, Meng et al. 2021). With `kept_masks` some of those positions stay `[MASK]` in its input. Such
an encoder fills masks itself, without its generator.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from firth import rng
from firth.data.packing import Pack, Plan
from firth.data.stream import CorpusView
from firth.encoders.bert import Bert
from firth.errors import BadConfig, Unsupported
from firth.nn.blocks import activation
from firth.nn.embeddings import Embeddings
from firth.nn.likelihood import IGNORE, scale_gradient
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.objective import Objective
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers import Tokenizer
from firth.tokenizers.vocab import Vocab
from firth.types import ShareFigure

LEARNED = 0.98
"""A discriminator whose loss is below this share of its base rate's entropy has learned something."""


@dataclass(frozen=True)
class Generator:
    """The shape of the generator: a quarter to a half of the encoder's, as deep as it (section 3.2)."""

    width: int = 64
    """Width of its states; 0: no generator, the model can judge texts but cannot be trained further."""
    num_layers: int = 12
    """Number of its blocks."""
    num_heads: int = 1
    """Number of its attention heads."""
    ffn_width: int = 256
    """Width of its feed-forward layer."""


class ReplacedToken(Objective):
    word_losses = {**MaskedLM.word_losses, "corrective_lm": "original token"}
    """The generator's, and the encoder's own."""
    per_token = ("generator.embeddings.tokens.weight", "masked.head.bias", "corrective.head.bias")
    other_losses = ("replaced_token",)
    shares = {
        "replaced_token_recall": ShareFigure("Replaced tokens found (recall)"),
        "replaced_token_precision": ShareFigure("Tokens rightly called replaced (precision)"),
        "replaced_token_auc": ShareFigure("Replaced tokens ranked above originals (AUC)", chance=0.5),
    }

    @dataclass(frozen=True)
    class Config:
        weight: float = 50.0
        """How much the encoder's loss counts, compared with the generator's (lambda in the paper)."""
        generator: Generator = field(default_factory=Generator)
        """The network that fills the masks."""
        masking: MaskedLM.Config = field(default_factory=lambda: MaskedLM.Config(mask_share=1.0, random_share=0.0))
        """What the generator learns: the paper masks every chosen token, its authors' program 85 % of them."""
        corrective_weight: float = 0.0
        """How much the encoder's own prediction of the chosen tokens counts; 0: it only detects replaced tokens."""
        kept_masks: float = 0.0
        """Share of the masked tokens that the encoder reads as `[MASK]` instead of a sample of the generator."""

        def __post_init__(self) -> None:
            if self.weight <= 0:
                raise BadConfig("objectives.replaced_token.weight must be above 0.")
            if self.corrective_weight < 0:
                raise BadConfig("objectives.replaced_token.corrective_weight must be 0 or more.")
            if not 0 <= self.kept_masks < 1:
                raise BadConfig("objectives.replaced_token.kept_masks must be at least 0 and below 1.")
            if self.kept_masks and not self.corrective_weight:
                raise BadConfig("objectives.replaced_token.kept_masks needs a corrective_weight above 0.")

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config = config
        self.vocab = vocab
        self.seed = seed
        self.num_tokens = len(vocab)
        self.dense = nn.Linear(encoder.width, encoder.width)
        self.judge = nn.Linear(encoder.width, 1)
        self.activate = activation(encoder.config.activation)
        # As in the authors' program, where layers outside the encoder start with Glorot's initialisation.
        for layer in (self.dense, self.judge):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.generator: Bert | None = None
        self.masked: MaskedLM | None = None
        if config.generator.width:
            self.generator = _generator(config.generator, encoder)
            self.masked = MaskedLM(config.masking, self.generator, vocab=vocab, max_length=max_length, seed=seed)
        self.corrective: MaskedLM | None = None
        if config.corrective_weight:
            self.corrective = MaskedLM(config.masking, encoder, vocab=vocab, max_length=max_length, seed=seed)

    @property
    def fills_masks_itself(self) -> bool:
        """Whether the encoder fills masks without the generator: it has a head for it and was trained on masks."""
        return self.corrective is not None and self.config.kept_masks > 0

    def warning(self) -> str:
        return self._trainable().warning()

    def set_tokenizer(self, tokenizer: Tokenizer) -> None:
        self._trainable().set_tokenizer(tokenizer)

    def set_text(self, stream: CorpusView) -> None:
        self._trainable().set_text(stream)

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        return self._trainable().sequences(stream, epoch)

    def corrupt(self, pack: Pack, epoch: int) -> None:
        self._trainable().corrupt(pack, epoch)
        # The filler at the end of a pack is not judged, and neither are tokens that the encoder reads as masks.
        judged = np.zeros(pack.num_tokens, bool)
        judged[: len(pack.ids_N)] = True
        judged[self._kept_masks(pack, epoch)] = False
        pack.targets["replaced_token_real"] = judged

    def _kept_masks(self, pack: Pack, epoch: int) -> np.ndarray:
        """The positions that stay masked in the encoder's input: a share of those that the generator predicts, and all
        others (those of `hide_repeats`)."""
        masks = np.flatnonzero(pack.ids_N == self.vocab.mask)
        is_predicted = np.isin(masks, pack.targets["masked_lm_positions"])
        key = rng.key(self.seed, "kept masks", epoch)
        rows = pack.rows_B[pack.sequence_N[masks]]
        draws = rng.uniform(key, rows, pack.positions_N[masks], 0)
        is_kept = (draws < self.config.kept_masks) | ~is_predicted
        kept: np.ndarray = masks[is_kept]
        return kept

    def counts(self, batch: Batch) -> Mapping[str, int]:
        counts = dict(self._trainable().counts(batch))
        if self.corrective is not None:
            counts["corrective_lm"] = counts["masked_lm"]
        counts["replaced_token"] = int(batch.targets["replaced_token_real"].sum())
        return counts

    def rewrite(self, batch: Batch) -> tuple[Batch, Loss]:
        """The batch with the generator's samples in place of masks, and the generator's loss."""
        masked = self._trainable()
        assert self.generator is not None
        scores_PV = masked.scores(self.generator(batch), batch.targets["masked_lm_positions"])
        loss = masked.loss_from_scores(scores_PV, batch)
        if not self.training:
            loss = loss + Loss({}, masked.hidden_tallies(scores_PV, batch))
        filled_N, replaced_N = self._fill(scores_PV, batch)
        targets = {**batch.targets, "replaced_token_replaced": replaced_N}
        return replace(batch, ids_N=filled_N, targets=targets), loss

    def loss(self, states: States, batch: Batch) -> Loss:
        """The encoder's losses on a batch that `rewrite` has filled."""
        loss = self._discriminator_loss(self.scores(states), batch)
        if self.corrective is not None:
            loss = loss + self._corrective_loss(states, batch)
        return loss

    def _corrective_loss(self, states: States, batch: Batch) -> Loss:
        """The encoder's cross-entropy of the original tokens at all chosen positions."""
        assert self.corrective is not None
        loss = self.corrective.loss(states, batch)
        total = loss.sums["masked_lm"]
        tallies = {"corrective_lm_correct": loss.tallies["masked_lm_correct"]}
        if not self.training:
            scores_PV = self.corrective.scores(states, batch.targets["masked_lm_positions"])
            for name, tally in self.corrective.hidden_tallies(scores_PV, batch).items():
                tallies[name.replace("masked_lm", "corrective_lm")] = tally
        return Loss({"corrective_lm": scale_gradient(total, self.config.corrective_weight)}, tallies)

    def scores(self, states: States) -> Tensor:
        """For every token, the logit of having been replaced."""
        hidden_ND = self.activate(self.dense(states.last_ND))
        logits_N: Tensor = self.judge(hidden_ND).squeeze(-1)
        return logits_N

    @torch.no_grad()
    def _fill(self, scores_PV: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The ids with samples in place of masks, and where they differ from the original text."""
        scores_PV = scores_PV[:, : self.num_tokens].float()
        # Gumbel-max: the largest of scores with Gumbel noise is a sample of their softmax.
        minus_gumbel_PV = (-torch.rand_like(scores_PV).log()).log()
        samples_P = (scores_PV - minus_gumbel_PV).argmax(-1)
        labels_P = batch.targets["masked_lm_labels"]
        positions_P = batch.targets["masked_lm_positions"]
        # Rows without a prediction are written to one extra place after the last token, which is cut off.
        places_P = torch.where(labels_P == IGNORE, batch.num_tokens, positions_P)
        extended = torch.cat([batch.ids_N, batch.ids_N[:1]])
        filled_N = extended.scatter(0, places_P, samples_P)[:-1]
        original_N = extended.scatter(0, places_P, labels_P)[:-1]
        judged_N = batch.targets["replaced_token_real"]
        if self.config.kept_masks:
            filled_N = torch.where(judged_N, filled_N, batch.ids_N)
        return filled_N, (filled_N != original_N) & judged_N

    def _discriminator_loss(self, logits_N: Tensor, batch: Batch) -> Loss:
        """The binary cross-entropy of all real tokens, with accuracy, recall, precision and the share of replaced."""
        real_N = batch.targets["replaced_token_real"]
        replaced_N = batch.targets["replaced_token_replaced"]
        losses_N = binary_cross_entropy_with_logits(logits_N.float(), replaced_N.float(), reduction="none")
        total = (losses_N * real_N).sum()
        weighted = scale_gradient(total, self.config.weight)
        predicted_N = (logits_N > 0) & real_N
        hits = (predicted_N & replaced_N).sum()
        tallies = {
            "replaced_token_correct": ((predicted_N == replaced_N) & real_N).sum(),
            "replaced_token_recall": hits,
            "replaced_token_recall_of": replaced_N.sum(),
            "replaced_token_precision": hits,
            "replaced_token_precision_of": predicted_N.sum(),
            "replaced_token_share": replaced_N.sum(),
            "replaced_token_share_of": real_N.sum(),
        }
        if not self.training:
            tallies["replaced_token_auc"] = _auc(logits_N[real_N].float(), replaced_N[real_N])
            tallies["replaced_token_auc_of"] = torch.ones((), device=logits_N.device)
        return Loss({"replaced_token": weighted}, tallies)

    @classmethod
    def finding(cls, figures: Mapping[str, float]) -> str:
        recall = figures.get("replaced_token_recall")
        precision = figures.get("replaced_token_precision")
        if recall is None or precision is None:
            return ""
        return f"finds {recall:.0%} of replaced tokens (of those it names, {precision:.0%} are)"

    def nothing_learned(self, figures: Mapping[str, float]) -> str:
        floor = binary_entropy(figures.get("replaced_token_share", 0.0))
        loss = figures.get("replaced_token", 0.0)
        if loss <= LEARNED * floor:
            return ""
        return (
            f"the discriminator's loss {loss:.3f} is at the entropy {floor:.3f} of its base rate: it says the same of "
            "every token. Try a lower train.optim.rate."
        )

    def _trainable(self) -> MaskedLM:
        """The generator's objective; refuses a model without generator."""
        if self.masked is None:
            raise Unsupported("This discriminator came without its generator, so it cannot be trained on or measured.")
        return self.masked


def _auc(scores_N: Tensor, positive_N: Tensor) -> Tensor:
    """Area under the ROC curve, by the rank sum of Mann and Whitney: how likely a positive outscores a negative.

    Equal scores share the mean of their ranks, so that a tie counts as half a win.
    """
    sorted_N = scores_N.sort().values
    num_below_N = torch.searchsorted(sorted_N, scores_N)
    num_up_to_N = torch.searchsorted(sorted_N, scores_N, right=True)
    ranks_N = (num_below_N + 1 + num_up_to_N).double() / 2
    num_positive = positive_N.sum()
    num_negative = len(positive_N) - num_positive
    rank_sum = (ranks_N * positive_N).sum()
    lowest_sum = num_positive * (num_positive + 1) / 2
    num_pairs = num_positive * num_negative
    return (rank_sum - lowest_sum) / num_pairs.clamp(min=1)


def binary_entropy(share: float) -> float:
    """The entropy of a yes-no answer in nats: the least loss of a model that knows only the share of yes."""
    if not 0 < share < 1:
        return 0.0
    other = 1 - share
    return -share * math.log(share) - other * math.log(other)


def mask_filler(encoder: Encoder, goals: Mapping[str, Objective]) -> tuple[Encoder, MaskedLM] | None:
    """The encoder and head that fill masks: the model's own, or a discriminator's generator; None without either."""
    head = goals.get("masked_lm") or goals.get("unilm") or goals.get("translation_lm")
    if isinstance(head, MaskedLM):
        return encoder, head
    discriminator = goals.get("replaced_token")
    if not isinstance(discriminator, ReplacedToken):
        return None
    if discriminator.fills_masks_itself and discriminator.corrective is not None:
        return encoder, discriminator.corrective
    if discriminator.generator is not None and discriminator.masked is not None:
        return discriminator.generator, discriminator.masked
    return None


def trainable_goals(goals: Mapping[str, Objective]) -> dict[str, Objective]:
    """The goals that a model can be measured on and trained further with.

    A discriminator that came without its generator is none; if it fills masks itself, its masked LM takes its place.
    """
    trainable = dict(goals)
    discriminator = goals.get("replaced_token")
    if not isinstance(discriminator, ReplacedToken) or discriminator.generator is not None:
        return trainable
    if discriminator.fills_masks_itself and discriminator.corrective is not None:
        del trainable["replaced_token"]
        trainable["masked_lm"] = discriminator.corrective
    return trainable


def _generator(shape: Generator, encoder: Encoder) -> Bert:
    """A BERT of this shape that shares the encoder's embeddings: tokens, positions, segments and their norm."""
    shared = getattr(encoder, "embeddings", None)
    if not isinstance(shared, Embeddings):
        raise Unsupported("Replaced token detection needs an encoder with BERT's embeddings, for its generator.")
    generator = Bert(_generator_config(shape, encoder))
    # Parameters are shared, not modules: torch.func would restore a shared module's tensors twice, the second time
    # wrongly.
    for name in ("tokens", "positions", "segments", "norm"):
        own = getattr(generator.embeddings, name)
        for kind, parameter in getattr(shared, name).named_parameters():
            setattr(own, kind, parameter)
    return generator


def _generator_config(shape: Generator, encoder: Encoder) -> Bert.Config:
    """The encoder's config with the generator's sizes."""
    config = encoder.config
    # In a config 0 means "as wide as the states".
    embedding_width = encoder.table_width
    if embedding_width == shape.width:
        embedding_width = 0
    return Bert.Config(
        vocab_size=encoder.vocab_size,
        width=shape.width,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        ffn_width=shape.ffn_width,
        max_positions=encoder.max_positions,
        num_segments=config.num_segments,
        activation=config.activation,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        norm_eps=config.norm_eps,
        # The right scale of initial weights depends on the width: a narrower network needs larger ones.
        init_std=config.init_std * (encoder.width / shape.width) ** 0.5,
        init=getattr(config, "init", "normal"),
        pooler=False,
        embedding_width=embedding_width,
    )
