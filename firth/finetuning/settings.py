"""The settings of a fine-tuning run: every number that `run.toml` holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from firth.config import key_names, to_dict
from firth.encoders.tables import StaticConfig
from firth.errors import BadConfig
from firth.finetuning.bags import FastTextConfig
from firth.finetuning.few.settings import FewConfig
from firth.finetuning.new_transformer import NewTransformerConfig
from firth.finetuning.transfer import TransferConfig
from firth.tasks import TABLE as TASKS
from firth.tasks import make_config
from firth.tasks.task import TaskConfig
from firth.tokenizers.templates import Templates
from firth.train.settings import OptimConfig, TrainConfig

PARTS_OF_ENCODERS = {"static": "static", "fasttext": "fasttext", "templates": "bag", "transformer": "transformer"}
"""Parts of the config that only one value of `encoder` uses."""


@dataclass(frozen=True)
class FinetuneConfig:
    """A fine-tuning run as numbers."""

    tasks: Mapping[str, TaskConfig] = field(default_factory=dict, metadata={"table": "firth.tasks"})
    """The tasks, by name, with their configs."""
    epochs: float = 0.0
    """Passes over the training rows; 0: 3, or for few rows as many as make 150 steps, at most 20."""
    batch_size: int = 32
    """Examples of a batch; a step takes train.accumulate batches."""
    max_length: int = 0
    """Longest sequence, special tokens included; 0 is as long as the model reads."""
    held_out_rate: float = 0.1
    """Share of the training rows that take the place of a missing dev file; 0 learns from all rows, and the figures on
    dev are those of the training rows themselves."""
    patience: int = 0
    """Stop after this many evaluations without a better figure; 0 never stops early."""
    pick: Literal["best", "last"] = "best"
    """Which epoch's weights to keep: those best on the picking file, or the last."""
    alpha: float = 0.5
    """With several tasks, each is drawn in proportion to its size to this power."""
    encoder: Literal["model", "bag", "static", "fasttext", "transformer"] = "model"
    """What reads the rows: the model (or random weights of its kind), a bag of features, new vectors of words or
    characters, fastText's bag of words, or a new Transformer that writes."""
    static: StaticConfig = field(default_factory=lambda: StaticConfig(init_std=0.1))
    """The vectors, with encoder=static; their number is that of the units of the training rows."""
    fasttext: FastTextConfig = field(default_factory=FastTextConfig)
    """Its numbers, with encoder=fasttext."""
    templates: Templates.Config = field(default_factory=Templates.Config)
    """Which features, with encoder=bag."""
    transformer: NewTransformerConfig = field(default_factory=NewTransformerConfig)
    """Its shape and vocabulary, with encoder=transformer."""
    language: str = ""
    """The language of the rows, for a model with language embeddings; empty: the model's own, or its first."""
    decoder_layers: int = 0
    """Blocks of the decoder that a model that only reads gets to learn to rewrite; 0: as many as the model has."""
    transfer: TransferConfig = field(default_factory=TransferConfig)
    """What of the model learns, and how."""
    few: FewConfig = field(default_factory=FewConfig)
    """How to learn from few labels."""
    compression: Mapping[str, object] = field(default_factory=dict)
    """The method by which `firth compress` made this run, with its numbers; empty for plain fine-tuning."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(compile="no", optim=OptimConfig(optimizer="auto", warmup_rate=0.1))
    )
    """The loop and its optimizer; steps and evaluations are worked out from the epochs."""

    def __post_init__(self) -> None:
        if self.language and self.encoder != "model":
            raise BadConfig(
                f"encoder={self.encoder} has no language embeddings; leave out `language='{self.language}'`."
            )
        if self.decoder_layers < 0:
            raise BadConfig(f"decoder_layers must be at least 0; it is {self.decoder_layers}.")
        if self.epochs < 0 or self.batch_size < 1 or not 0 <= self.held_out_rate < 1:
            raise BadConfig("A run needs epochs above 0, a batch_size of at least 1 and 0 <= held_out_rate < 1.")


def setting_names() -> set[str]:
    """The names of all settings of a run and its tasks, without the parts that they belong to."""
    tasks = {name: make_config(name, {}) for name in TASKS}
    return key_names(to_dict(FinetuneConfig(tasks=tasks)))
