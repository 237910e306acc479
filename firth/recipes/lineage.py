"""The lineage: every pre-trained model is encoder x objectives x tokenizer x recipe. Read top to bottom as history.

Each entry is a function from a size to a `Recipe`; `TABLE` names them. Adding one is one function and one line.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from firth.config import resolve
from firth.data.loader import BatchConfig
from firth.encoders.bert import Bert
from firth.errors import BadConfig
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.next_sentence import NextSentence
from firth.train.loop import TrainConfig
from firth.train.optim import OptimConfig

SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
"""Layers, width, heads, as published (Devlin et al. 2018; Turc et al. 2019)."""


@dataclass(frozen=True)
class Recipe:
    """A whole pre-training run as numbers."""

    recipe: str = "bert"
    """The lineage's name."""
    size: str = "base"
    """The size's name."""
    encoder: Mapping[str, Any] = field(default_factory=dict, metadata={"table": "firth.encoders"})
    """The encoder, by name, with its config."""
    objectives: Mapping[str, Any] = field(default_factory=dict, metadata={"table": "firth.objectives"})
    """The objectives, by name, with their configs; the first cuts the text."""
    batches: BatchConfig = field(default_factory=BatchConfig)
    """How text becomes batches."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """The loop and its optimizer."""


def bert(size: str) -> Recipe:
    """BERT (Devlin et al. 2018): masked LM and next sentence over pairs that fill the sequence.

    The paper: batches of 256 x 512 tokens (we: 16k tokens of length 128), rate 1e-4 with 1 % warm-up and linear decay,
    weight decay 0.01, dropout 0.1 (here without attention dropout). Smaller models stand higher rates.
    """
    num_layers, width, num_heads = SIZES[size]
    rate = {"tiny": 2e-3, "mini": 1e-3, "small": 7e-4, "medium": 5e-4}.get(size, 1e-4)
    shape = Bert.Config(width=width, num_layers=num_layers, num_heads=num_heads, ffn_width=4 * width)
    return Recipe(
        "bert",
        size,
        {"bert": shape},
        {"next_sentence": NextSentence.Config(), "masked_lm": MaskedLM.Config()},
        BatchConfig(max_length=128, tokens=8192),
        TrainConfig(optim=OptimConfig(rate=rate, warmup_rate=0.05)),
    )


TABLE: dict[str, str] = {
    "bert": "firth.recipes.lineage:bert",
}


def make(name: str, size: str) -> Recipe:
    recipe: Callable[[str], Recipe] = resolve(TABLE, name, "recipe")
    if size not in SIZES:
        raise BadConfig(f"There is no size '{size}' (known: {', '.join(SIZES)}).")
    return recipe(size)
