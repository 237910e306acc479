"""What fine-tuning starts from: a model folder, the same shape with random weights, or nothing but the text."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from firth import checkpoint as checkpoints
from firth import encoders, lineage
from firth.convert.languages import LANGUAGES, chosen_language, in_language
from firth.errors import BadConfig
from firth.nn.meta import on_meta_device
from firth.objectives.objective import Objective
from firth.pretraining.planning import padded_rows
from firth.tensors import Encoder
from firth.tokenizers import Tokenizer
from firth.tokenizers.wordpiece import WordPiece
from firth.train.settings import OPTIMIZER

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

log = logging.getLogger(__name__)

VOCAB_SIZE = 8000
"""The largest vocabulary that is trained on the training rows."""


@dataclass(frozen=True)
class Start:
    """An encoder's name, config and tokenizer, and the weights it starts with."""

    encoder_name: str
    encoder_config: "DataclassInstance"
    tokenizer: Tokenizer
    trained: Encoder | None = None
    """None starts from random weights."""
    goals: Mapping[str, Objective] | None = None
    """The heads of pre-training."""
    layout: str = ""
    """The type of folder it came in."""
    new_tensors: frozenset[str] = frozenset()
    """Tensors of `trained` that were not trained: every copy draws its own."""
    languages: tuple[str, ...] = ()
    """The languages of its language embeddings, if it has any."""
    language: str = ""
    """The one that its texts are in."""
    optimizer: str = "adamw"
    """The optimizer that pre-trained the weights, as far as the folder says."""

    @cached_property
    def shape(self) -> Encoder:
        """An encoder of this shape that holds no weights."""
        with on_meta_device():
            return self._make_encoder(self.encoder_config)

    @property
    def num_blocks(self) -> int:
        """Blocks that have their own weights; ALBERT has one, however often it is applied."""
        blocks = getattr(self.shape, "blocks", None)
        if blocks is None:
            return self.shape.num_layers
        return len(blocks)

    def encoder(self, precision: str, device: str) -> Encoder:
        """A fresh copy, ready to learn."""
        config = self.encoder_config
        is_half = device.startswith("cuda") and precision != "fp32"
        if is_half and getattr(config, "attention_dropout", 0.0) > 0:
            # The attention kernel for packed sequences has no dropout.
            config = replace(config, attention_dropout=0.0)
        encoder = self._make_encoder(config)
        if self.trained is not None:
            weights = {name: w for name, w in self.trained.state_dict().items() if name not in self.new_tensors}
            encoder.load_state_dict(weights, strict=not self.new_tensors)
        return encoder

    def _make_encoder(self, config: "DataclassInstance") -> Encoder:
        encoder: Encoder = encoders.resolve(self.encoder_name)(config)
        return encoder


def start_from_model(model: str, *, random: bool, texts: Iterable[str], language: str = "") -> Start:
    """A model folder as a start, or if `model` is empty a tiny BERT with a vocabulary trained on the texts.

    `random` keeps the shape and the tokenizer of the model but not its weights. `language` is that of the rows, for a
    model with language embeddings.
    """
    if not model:
        if language:
            raise BadConfig(f"Random weights have no language embeddings; leave out `language='{language}'`.")
        return _start_from_texts(texts)
    loaded = checkpoints.merged(checkpoints.load(Path(model)))
    chosen = chosen_language(loaded.info, language)
    if loaded.adapter_width or loaded.prefix_length or loaded.feature_encoder:
        raise BadConfig(f"{model} has adapters, prefixes or frozen features; fine-tune the model it came from.")
    return Start(
        encoder_name=encoders.name_of(loaded.encoder),
        encoder_config=in_language(loaded.encoder.config, loaded.info, language),
        tokenizer=loaded.tokenizer,
        trained=None if random else loaded.encoder,
        goals={} if random else loaded.goals,
        layout=loaded.layout,
        languages=tuple(loaded.info.get(LANGUAGES, ())),
        language=chosen,
        optimizer=str(loaded.info.get(OPTIMIZER, "adamw")),
    )


def _start_from_texts(texts: Iterable[str]) -> Start:
    log.info("Starting from random weights and a vocabulary of the training rows, because no model was named.")
    tokenizer = WordPiece.train(texts, WordPiece.Config(vocab_size=VOCAB_SIZE), fewer=True)
    config = lineage.make("bert", "tiny").encoder["bert"]
    return Start("bert", replace(config, vocab_size=padded_rows(len(tokenizer.vocab))), tokenizer)
