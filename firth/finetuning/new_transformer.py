"""What a rewriting run starts from if no model is named: a new Transformer and the tokens of its training rows.

In: labelled rows. Out: a byte-level BPE learned from sources and targets together, so that both have one vocabulary and
every text can be written, and an encoder-decoder with random weights (Vaswani et al. 2017).
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Literal

from firth.encoders.transformer import Transformer
from firth.errors import BadConfig
from firth.finetuning.labelled import Labelled
from firth.finetuning.start import Start
from firth.pretraining.planning import padded_rows
from firth.tokenizers.bpe import BPE

log = logging.getLogger(__name__)

EPOCHS = 30.0
"""Passes over the rows by default."""


@dataclass(frozen=True)
class NewTransformerConfig:
    vocab_size: int = 8000
    """Tokens learned from sources and targets together, at most."""
    width: int = 256
    """Width of every state."""
    num_layers: int = 4
    """Blocks of each half."""
    num_heads: int = 4
    """Attention heads; the width must be a multiple of it."""
    ffn_width: int = 1024
    """Width of the feed-forward layers."""
    max_positions: int = 512
    """The longest source and the longest target, special tokens included."""
    dropout: float = 0.3
    """Share of embeddings and of sublayers' outputs set to zero in training; small sets need more."""
    norm: Literal["pre", "post"] = "pre"
    """Norms before every sublayer, which is easier to train, or after it as in the paper."""


def start_from_pairs(data: Mapping[str, Labelled], config: NewTransformerConfig) -> Start:
    """A vocabulary of the training rows, and the shape of a Transformer with so many tokens."""
    log.info("No model was named: starting from a new Transformer and a vocabulary of the training rows.")
    tokenizer = BPE.train(_texts(data), BPE.Config(vocab_size=config.vocab_size), fewer=True)
    shape = {each.name: getattr(config, each.name) for each in fields(config)}
    shape["vocab_size"] = padded_rows(len(tokenizer.vocab))
    return Start("transformer", Transformer.Config(**shape), tokenizer)


def _texts(data: Mapping[str, Labelled]) -> Iterator[str]:
    """Sources and targets of the training rows."""
    for name, rows in data.items():
        for example in rows.examples["train"]:
            if not isinstance(example.gold, str):
                raise BadConfig(f"`recipe='transformer'` writes texts: use it with `task='rewrite'`, not {name}.")
            yield from example.texts
            yield example.gold
