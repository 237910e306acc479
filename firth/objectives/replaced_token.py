"""Replaced token detection (Clark et al. 2020): classify every token as original or replaced by a small generator.

Cut and corruption: those of masked LM, without random tokens. Step: a generator, a small BERT that shares the encoder's
embeddings, learns masked LM and fills the masks by sampling. The encoder (the discriminator) reads the filled text and
says for every token whether it was replaced; a sample that equals the original counts as original. No gradient goes
through the sampling. Loss: L_generator + weight * L_encoder (equation 3). Samples come from torch's random generator,
which the training loop seeds for every step.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from firth.data.packing import Pack, Plan
from firth.data.stream import Stream
from firth.encoders.bert import Bert
from firth.errors import BadConfig, Unsupported
from firth.nn.blocks import activation
from firth.nn.embeddings import Embeddings
from firth.nn.likelihood import IGNORE
from firth.objectives.masked_lm import MaskedLM
from firth.tensors import Batch, Encoder, Loss, Objective, States
from firth.tokenizers import Tokenizer
from firth.tokenizers.vocab import Vocab

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
    word_losses = MaskedLM.word_losses
    """The generator's."""

    @dataclass(frozen=True)
    class Config:
        weight: float = 50.0
        """How much the encoder's loss counts, compared with the generator's (lambda in the paper)."""
        generator: Generator = field(default_factory=Generator)
        """The network that fills the masks."""
        masking: MaskedLM.Config = field(default_factory=lambda: MaskedLM.Config(mask_share=1.0, random_share=0.0))
        """What the generator learns: the paper masks every chosen token, its authors' program 85 % of them."""

        def __post_init__(self) -> None:
            if self.weight <= 0:
                raise BadConfig("objectives.replaced_token.weight must be above 0.")

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config = config
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

    def warning(self) -> str:
        return self._trainable().warning()

    def set_tokenizer(self, tokenizer: Tokenizer) -> None:
        self._trainable().set_tokenizer(tokenizer)

    def sequences(self, stream: Stream, epoch: int) -> Plan:
        return self._trainable().sequences(stream, epoch)

    def corrupt(self, pack: Pack, epoch: int) -> None:
        self._trainable().corrupt(pack, epoch)
        # The filler at the end of a pack is not judged.
        real = np.zeros(pack.num_tokens, bool)
        real[: len(pack.ids_N)] = True
        pack.targets["replaced_token_real"] = real

    def counts(self, batch: Batch) -> Mapping[str, int]:
        num_real = int(batch.targets["replaced_token_real"].sum())
        return {**self._trainable().counts(batch), "replaced_token": num_real}

    def step(self, encoder: Encoder, batch: Batch) -> Loss:
        masked = self._trainable()
        assert self.generator is not None
        scores_PV = masked.scores(self.generator(batch), batch.targets["masked_lm_positions"])
        filled_N, replaced_N = self._fill(scores_PV, batch)
        states = encoder(replace(batch, ids_N=filled_N))
        generator_loss = masked.loss_from_scores(scores_PV, batch)
        encoder_loss = self._discriminator_loss(self.scores(states), replaced_N, batch)
        loss = generator_loss + encoder_loss
        if self.training:
            return loss
        return loss + Loss({}, masked.hidden_tallies(scores_PV, batch))

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
        return filled_N, filled_N != original_N

    def _discriminator_loss(self, logits_N: Tensor, replaced_N: Tensor, batch: Batch) -> Loss:
        """The binary cross-entropy of all real tokens, with accuracy, recall, precision and the share of replaced."""
        real_N = batch.targets["replaced_token_real"]
        losses_N = binary_cross_entropy_with_logits(logits_N.float(), replaced_N.float(), reduction="none")
        total = (losses_N * real_N).sum()
        # The reported figure stays a plain mean over tokens; only its gradient is weighted.
        weighted = total.detach() + self.config.weight * (total - total.detach())
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
    """Area under the ROC curve, by the rank sum of Mann and Whitney: how likely a positive outscores a negative."""
    ranks_N = scores_N.argsort().argsort().double() + 1
    num_positive = positive_N.sum()
    num_negative = len(positive_N) - num_positive
    above = (ranks_N * positive_N).sum() - num_positive * (num_positive + 1) / 2
    return above / (num_positive * num_negative).clamp(min=1)


def binary_entropy(share: float) -> float:
    """The entropy of a yes-no answer in nats: the least loss of a model that knows only the share of yes."""
    if not 0 < share < 1:
        return 0.0
    return -share * math.log(share) - (1 - share) * math.log(1 - share)


def filler(encoder: Encoder, goals: Mapping[str, Objective]) -> tuple[Encoder, MaskedLM] | None:
    """The encoder and head that fill masks: the model's own, or a discriminator's generator; None without either."""
    head = goals.get("masked_lm")
    if isinstance(head, MaskedLM):
        return encoder, head
    discriminator = goals.get("replaced_token")
    if isinstance(discriminator, ReplacedToken) and discriminator.generator and discriminator.masked:
        return discriminator.generator, discriminator.masked
    return None


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
    table_width = encoder.table_width
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
        embedding_width=0 if table_width == shape.width else table_width,
    )
