"""What fine-tuning starts from: a model folder, the same shape with random weights, or nothing but the text."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from firth import checkpoint as checkpoints
from firth import encoders, lineage
from firth.errors import BadConfig
from firth.finetuning.transfer import TransferConfig
from firth.objectives.objective import Objective
from firth.tensors import Encoder
from firth.tokenizers import Tokenizer
from firth.tokenizers.wordpiece import WordPiece

log = logging.getLogger(__name__)

VOCAB_SIZE = 8000
"""Pieces of a vocabulary that is trained on the training rows, at most."""


RATES = {128: 5e-4, 256: 3e-4, 384: 1e-4, 512: 1e-4, 768: 5e-5}
"""Learning rate by the width of a pre-trained model: 768 is BERT's own, 384 and 512 did well on the sets of
docs/results.md (at 2e-4 and width 384 RTE, CoLA and GoEmotions fell apart in some seeds)."""


@dataclass(frozen=True)
class Start:
    encoder_name: str
    encoder_config: Any
    tokenizer: Tokenizer
    trained: Encoder | None = None
    """None starts from random weights."""
    goals: Mapping[str, Objective] | None = None
    layout: str = ""
    """The type of folder it came in."""

    @cached_property
    def shape(self) -> Encoder:
        """An encoder of this shape that holds no weights."""
        with torch.device("meta"):
            return self._made(self.encoder_config)

    @property
    def num_blocks(self) -> int:
        """Blocks with weights of their own; ALBERT has one, however often it is applied."""
        return len(blocks) if (blocks := getattr(self.shape, "blocks", None)) is not None else self.shape.num_layers

    def encoder(self, precision: str, device: str) -> Encoder:
        """A fresh copy, ready to learn."""
        config = self.encoder_config
        if getattr(config, "attention_dropout", 0) and device.startswith("cuda") and precision != "fp32":
            config = replace(config, attention_dropout=0.0)  # the packed kernel has none
        encoder = self._made(config)
        if self.trained is not None:
            encoder.load_state_dict(self.trained.state_dict())
        return encoder

    def _made(self, config: Any) -> Encoder:
        encoder: Encoder = encoders.resolve(self.encoder_name)(config)
        return encoder


def begin(model: str, *, random: bool, texts: Iterable[str]) -> Start:
    if not model:
        log.info("No model was named: starting from random weights and a vocabulary of the training rows.")
        tokenizer = WordPiece.train(texts, WordPiece.Config(vocab_size=VOCAB_SIZE), fewer=True)
        shape = lineage.make("bert", "tiny").encoder["bert"]
        return Start("bert", replace(shape, vocab_size=-(-len(tokenizer.vocab) // 64) * 64), tokenizer)
    loaded = checkpoints.load(Path(model))
    if loaded.adapter_width or loaded.reader:
        raise BadConfig(f"{model} has adapters or frozen features; fine-tune the model it came from.")
    trained = None if random else loaded.encoder
    return Start(
        encoders.name_of(loaded.encoder),
        loaded.encoder.config,
        loaded.tokenizer,
        trained,
        {} if random else loaded.goals,
        loaded.layout,
    )


def usual_rate(start: Start, transfer: TransferConfig) -> float:
    """The rate that did well on small sets: higher for smaller models, for random weights and for what is new."""
    if transfer.mode != "full":
        return 1e-3
    rate = next((rate for most, rate in RATES.items() if start.shape.width <= most), 3e-5)
    return rate if start.trained is not None else 2 * rate
