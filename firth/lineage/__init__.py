"""The lineage: every pre-trained model is encoder x objectives x tokenizer x recipe. Read top to bottom as history.

Each entry is a function from a size to a `Recipe`; `TABLE` names them. Adding one is one function and one line.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from firth.config import resolve
from firth.data.settings import BatchConfig
from firth.errors import BadConfig
from firth.train.settings import TrainConfig

SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "8x384": (8, 384, 6),
    "12x256": (12, 256, 4),
    "12x384": (12, 384, 6),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
"""Layers, width, heads, as published (Devlin et al. 2018; Turc et al. 2019; 12x256 is ELECTRA-Small's;
8x384 is the size of the default models)."""
RATES = {"tiny": 2e-3, "mini": 1e-3, "small": 7e-4, "medium": 5e-4, "8x384": 7e-4, "12x256": 1e-3, "12x384": 7e-4}
"""Learning rates of encoders of these sizes, which allow more than those of the papers."""
LARGE_RATE = 1e-4
"""That of the others."""


def initial_std(width: int) -> float:
    """Standard deviation of initial weights: 0.02 is right for a width of 768; narrower networks need larger ones."""
    narrower = max(1.0, 768 / width)
    return round(0.02 * math.sqrt(narrower), 3)


@dataclass(frozen=True)
class Recipe:
    """The settings of a whole pre-training run."""

    recipe: str = "bert"
    """Name of the recipe in the lineage."""
    size: str = "base"
    """Name of the size."""
    encoder: Mapping[str, Any] = field(default_factory=dict, metadata={"table": "firth.encoders"})
    """The encoder, by name, with its config."""
    objectives: Mapping[str, Any] = field(default_factory=dict, metadata={"table": "firth.objectives"})
    """The objectives, by name, with their configs; the first cuts the text."""
    batches: BatchConfig = field(default_factory=BatchConfig)
    """How text becomes batches."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """The loop and its optimizer; a recipe that is solved without gradients uses only the seed."""
    epochs: int = 1
    """Passes over the text of a recipe that is solved without gradients; 0 leaves them to the width."""
    tokenizer: Mapping[str, Any] = field(default_factory=dict, metadata={"table": "firth.tokenizers"})
    """The tokenizer, by name, with its config, where the recipe takes plain text."""
    layout: str = ""
    """The `model_type` of the written folder, where that is not the encoder's name."""
    finetune_dropout: float | None = None
    """Dropout written into the model's folder, for fine-tuning, where pre-training uses another."""
    continues: bool = False
    """Whether it trains a model further: its rates are for weights that have learned, and the folder keeps its type."""
    layer_decay: float = 1.0
    """Each layer's rate is this times that of the layer above it; for continued pre-training of a model."""


TABLE: dict[str, str] = {
    "tf-idf": "firth.lineage.counted:tf_idf",
    "lsa": "firth.lineage.counted:lsa",
    "lda": "firth.lineage.counted:lda",
    "nnlm": "firth.lineage.counted:nnlm",
    "word2vec-sg-ns": "firth.lineage.word_vectors:word2vec_sg_ns",
    "word2vec-sg-hs": "firth.lineage.word_vectors:word2vec_sg_hs",
    "word2vec-cbow-ns": "firth.lineage.word_vectors:word2vec_cbow_ns",
    "word2vec-cbow-hs": "firth.lineage.word_vectors:word2vec_cbow_hs",
    "fasttext": "firth.lineage.word_vectors:fasttext",
    "glove": "firth.lineage.word_vectors:glove",
    "elmo": "firth.lineage.recurrent:elmo",
    "ulmfit": "firth.lineage.recurrent:ulmfit",
    "transformer": "firth.lineage.rewriting:transformer",
    "gpt": "firth.lineage.autoregressive:gpt",
    "bert": "firth.lineage.masked:bert",
    "ernie": "firth.lineage.masked:ernie",
    "bert-wwm": "firth.lineage.masked:bert_wwm",
    "mass": "firth.lineage.rewriting:mass",
    "spanbert": "firth.lineage.masked:spanbert",
    "gpt-2": "firth.lineage.autoregressive:gpt_2",
    "unilm": "firth.lineage.unified:unilm",
    "xlnet": "firth.lineage.unified:xlnet",
    "roberta": "firth.lineage.masked:roberta",
    "albert": "firth.lineage.masked:albert",
    "mbert": "firth.lineage.cross_lingual:mbert",
    "xlm": "firth.lineage.cross_lingual:xlm",
    "xlm-roberta": "firth.lineage.cross_lingual:xlm_roberta",
    "infoword": "firth.lineage.masked:infoword",
    "t5": "firth.lineage.rewriting:t5",
    "bart": "firth.lineage.rewriting:bart",
    "wklm": "firth.lineage.masked:wklm",
    "distilbert": "firth.lineage.masked:distilbert",
    "electra": "firth.lineage.masked:electra",
    "t5-v1.1": "firth.lineage.rewriting:t5_v1_1",
    "tsdae": "firth.lineage.rewriting:tsdae",
    "modernbert": "firth.lineage.masked:modernbert",
    "small": "firth.lineage.masked:small",
}


def make(name: str, size: str) -> Recipe:
    """The recipe of this name and size."""
    recipe: Callable[[str], Recipe] = resolve(TABLE, name, "recipe")
    if size not in SIZES:
        raise BadConfig(f"There is no size '{size}' (known: {', '.join(SIZES)}).")
    return recipe(size)
