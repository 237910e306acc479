"""Replaced token detection (Clark et al. 2020): tell for every token whether a small generator put it there.

Cut and corruption: masked LM's, without random tokens. Step: a generator, a small BERT over the encoder's own
embeddings, learns masked LM and fills the masks by sampling; the encoder reads the filled text and says for every token
whether it was replaced; a sample that equals the original counts as original. No gradient goes through the sampling.
Loss: L_generator + weight * L_encoder (equation 3). Chance comes from torch's generator, which the loop reseeds.
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
from firth.objectives.masked_lm import IGNORE, MaskedLM
from firth.tensors import Batch, Encoder, Loss, Objective, States
from firth.tokenizers import Tokenizer
from firth.tokenizers.vocab import Vocab

LEARNED = 0.98
"""A discriminator whose loss is below this share of its base rate's entropy has learned something."""


@dataclass(frozen=True)
class Generator:
    """The shape of the generator: a quarter to a half of the encoder's, as deep as it (section 3.2)."""

    width: int = 64
    """Width of its states; 0: there is no generator, and the model can judge texts but not be trained further."""
    num_layers: int = 12
    """Its blocks."""
    num_heads: int = 1
    """Its attention heads."""
    ffn_width: int = 256
    """Width of its feed-forward layer."""


class ReplacedToken(Objective):
    word_losses = MaskedLM.word_losses  # its generator's

    @dataclass(frozen=True)
    class Config:
        weight: float = 50.0
        """How much the encoder's loss counts beside the generator's (lambda in the paper)."""
        generator: Generator = field(default_factory=Generator)
        """The network that fills the masks."""
        masking: MaskedLM.Config = field(default_factory=lambda: MaskedLM.Config(mask_share=1.0, random_share=0.0))
        """What the generator learns: the paper masks every chosen token, its authors' program 85 % of them."""

        def __post_init__(self) -> None:
            if self.weight <= 0:
                raise BadConfig("objectives.replaced_token.weight must be above 0.")

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config, self.num_tokens = config, len(vocab)
        self.dense, self.judge = nn.Linear(encoder.width, encoder.width), nn.Linear(encoder.width, 1)
        self.activate = activation(encoder.config.activation)
        # As in the authors' program, whose layers outside the encoder start by Glorot's rule.
        for layer in (self.dense, self.judge):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.generator = _generator(config.generator, encoder) if config.generator.width else None
        self.masked = (
            MaskedLM(config.masking, self.generator, vocab=vocab, max_length=max_length, seed=seed)
            if self.generator
            else None
        )

    def warning(self) -> str:
        return self._trainable().warning()

    def meet(self, tokenizer: Tokenizer) -> None:
        self._trainable().meet(tokenizer)

    def sequences(self, stream: Stream, epoch: int) -> Plan:
        return self._trainable().sequences(stream, epoch)

    def corrupt(self, pack: Pack, epoch: int) -> None:
        self._trainable().corrupt(pack, epoch)
        real = np.zeros(pack.num_tokens, bool)
        real[: len(pack.ids_N)] = True
        pack.targets["replaced_token_real"] = real

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {**self._trainable().counts(batch), "replaced_token": int(batch.targets["replaced_token_real"].sum())}

    def step(self, encoder: Encoder, batch: Batch) -> Loss:
        masked, positions_P = self._trainable(), batch.targets["masked_lm_positions"]
        assert self.generator is not None
        scores_PV = masked.scores(self.generator(batch), positions_P)
        filled_N, replaced_N = self._filled(scores_PV, batch)
        states = encoder(replace(batch, ids_N=filled_N))
        loss = masked.loss_of(scores_PV, batch) + self._judged(self.scores(states), replaced_N, batch)
        if self.training:
            return loss
        return loss + Loss({}, masked.hidden_tallies(scores_PV, batch))

    def scores(self, states: States) -> Tensor:
        """For every token, the logit of having been replaced."""
        logits_N: Tensor = self.judge(self.activate(self.dense(states.last_ND))).squeeze(-1)
        return logits_N

    @torch.no_grad()
    def _filled(self, scores_PV: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The text with samples for its masks, and where they differ from what stood there."""
        scores_PV = scores_PV[:, : self.num_tokens].float()
        # The largest of scores with Gumbel noise is a sample of their softmax.
        samples_P = (scores_PV - (-torch.rand_like(scores_PV).log()).log()).argmax(-1)
        labels_P, positions_P = batch.targets["masked_lm_labels"], batch.targets["masked_lm_positions"]
        # Places without a prediction are written behind the last token, and cut off.
        places_P = torch.where(labels_P == IGNORE, batch.num_tokens, positions_P)
        longer = torch.cat([batch.ids_N, batch.ids_N[:1]])
        filled_N, original_N = (longer.scatter(0, places_P, ids_P)[:-1] for ids_P in (samples_P, labels_P))
        return filled_N, filled_N != original_N

    def _judged(self, logits_N: Tensor, replaced_N: Tensor, batch: Batch) -> Loss:
        real_N = batch.targets["replaced_token_real"]
        losses_N = binary_cross_entropy_with_logits(logits_N.float(), replaced_N.float(), reduction="none")
        total = (losses_N * real_N).sum()
        # The figure stays a plain mean over tokens; only its gradient is weighted.
        weighted = total.detach() + self.config.weight * (total - total.detach())
        said_N = (logits_N > 0) & real_N
        hits = (said_N & replaced_N).sum()
        tallies = {
            "replaced_token_correct": ((said_N == replaced_N) & real_N).sum(),
            "replaced_token_recall": hits,
            "replaced_token_recall_of": replaced_N.sum(),
            "replaced_token_precision": hits,
            "replaced_token_precision_of": said_N.sum(),
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
        if self.masked is None:
            raise Unsupported("This discriminator came without its generator, so it cannot be trained on or measured.")
        return self.masked


def _auc(scores_N: Tensor, positive_N: Tensor) -> Tensor:
    """The probability that a positive scores above a negative: the rank sum of Mann and Whitney."""
    ranks_N = scores_N.argsort().argsort().double() + 1
    num_positive = positive_N.sum()
    num_negative = len(positive_N) - num_positive
    above = (ranks_N * positive_N).sum() - num_positive * (num_positive + 1) / 2
    return above / (num_positive * num_negative).clamp(min=1)


def binary_entropy(share: float) -> float:
    """The least loss, in nats, of one that knows only how often the answer is yes."""
    if not 0 < share < 1:
        return 0.0
    return -share * math.log(share) - (1 - share) * math.log(1 - share)


def filler(encoder: Encoder, goals: Mapping[str, Objective]) -> tuple[Encoder, MaskedLM] | None:
    """What fills masks: the model with its masked-LM head, or a discriminator's generator; None where neither is."""
    head, judge = goals.get("masked_lm"), goals.get("replaced_token")
    if isinstance(head, MaskedLM):
        return encoder, head
    if isinstance(judge, ReplacedToken) and judge.generator and judge.masked:
        return judge.generator, judge.masked
    return None


def _generator(shape: Generator, encoder: Encoder) -> Bert:
    """A BERT that has the encoder's embeddings: tokens, positions, segments and their norm."""
    shared = getattr(encoder, "embeddings", None)
    if not isinstance(shared, Embeddings):
        raise Unsupported("Replaced token detection needs an encoder with BERT's embeddings, for its generator.")
    config, table_width = encoder.config, encoder.table_width
    generator = Bert(
        Bert.Config(
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
            # A narrower net needs larger weights to say as much; a fixed size is right for one width.
            init_std=config.init_std * (encoder.width / shape.width) ** 0.5,
            init=getattr(config, "init", "normal"),
            pooler=False,
            embedding_width=0 if table_width == shape.width else table_width,
        )
    )
    # Parameters are shared and not modules: torch.func would put a module's tensors back twice, the second time wrong.
    for name in ("tokens", "positions", "segments", "norm"):
        own = getattr(generator.embeddings, name)
        for kind, parameter in getattr(shared, name).named_parameters():
            setattr(own, kind, parameter)
    return generator
