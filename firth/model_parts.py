"""A model in memory, `Checkpoint`, and what it is made of: heads, objectives, a LoRA adapter over another model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from firth import encoders
from firth.config import from_dict
from firth.convert import own
from firth.convert.peft import shared_copy
from firth.convert.sentence_transformers import Embedding, VectorLayer
from firth.convert.task_heads import TransformersHead, transformers_head
from firth.convert.vector_head import VectorHead
from firth.errors import BadConfig, BadInput, Damaged
from firth.files import JsonObject
from firth.nn.lora import LoraConfig, merge_lora
from firth.objectives import resolve
from firth.objectives.objective import Objective
from firth.tasks import resolve as resolve_task
from firth.tasks.task import Head, TaskConfig
from firth.tensors import Encoder
from firth.tokenizers import Tokenizer

TOKEN_EMBEDDING = "embeddings.tokens.weight"
"""The input embedding of BERT and its relatives."""


@dataclass(frozen=True)
class Checkpoint:
    """A model in memory, with all that its folder contains."""

    encoder: Encoder
    goals: Mapping[str, Objective]
    tokenizer: Tokenizer
    embedding: Embedding = field(default_factory=Embedding)
    info: JsonObject = field(default_factory=dict)
    """Where the model comes from, as `firth.json` has it."""
    tasks: Mapping[str, Head] = field(default_factory=dict)
    """The heads of the tasks it was fine-tuned for, by name."""
    feature_encoder: Encoder | None = None
    """The encoder that the tasks use, if it is not `encoder` itself: frozen features of it."""
    adapter_width: int = 0
    """Bottleneck of the adapters in the encoder's blocks; 0 if there are none."""
    vector_head: VectorHead | None = None
    """What makes vectors of texts in place of pooling, if it has learned that."""
    vector_layers: tuple[VectorLayer, ...] = ()
    """Layers over the pooled vector of a text, as sentence-transformers has them."""
    prefix_length: int = 0
    """Learned keys and values before each text in the encoder's blocks; 0 if there are none."""
    light: "LightAdapter | None" = None
    """If set, the encoder has LoRA's low-rank matrices, and only these are saved."""
    layout: str = ""
    """The `model_type` of its folder; if empty, the layout is chosen by the encoder's name."""
    text: str = ""
    """Its model card, if not the default one: a fine-tuned model's card has its metrics."""


@dataclass(frozen=True)
class LightAdapter:
    """LoRA's low-rank matrices beside a model that is saved elsewhere."""

    base: str
    """The folder of that model."""
    config: LoraConfig
    model: Checkpoint | None = None
    """That model, which adapters over it share."""


def only_task(checkpoint: Checkpoint, model: Path | str, name: str = "") -> tuple[str, Head]:
    """The name and the head of the task with this name; without a name, the only task of the model."""
    known = ", ".join(checkpoint.tasks)
    if not checkpoint.tasks:
        raise BadInput(f"{model} is not fine-tuned for a task; `firth finetune` makes such a model.")
    if not name:
        if len(checkpoint.tasks) > 1:
            raise BadConfig(f"{model} has several tasks ({known}); name one with `task=`.")
        name = next(iter(checkpoint.tasks))
    if name not in checkpoint.tasks:
        raise BadConfig(f"{model} has no task '{name}'; it has {known}.")
    return name, checkpoint.tasks[name]


def make_head(
    name: str,
    config: TaskConfig | JsonObject,
    encoder: Encoder,
    *,
    labels: Mapping[str, Sequence[str]],
) -> Head:
    """A task's head over an encoder, with new weights; `config` is its config or a dict of the config's values."""
    task = resolve_task(name)
    if not isinstance(config, TaskConfig):
        config = from_dict(task.Config, config)
    label_groups = {group: tuple(names) for group, names in labels.items()}
    head = task.head(config, encoder, labels=label_groups)
    head.name = name
    return head.eval()


def make_objective(
    name: str,
    config: Any,
    encoder: Encoder,
    tokenizer: Tokenizer,
    *,
    max_length: int = 0,
    seed: int = 0,
) -> Objective:
    """An objective over an encoder, with new weights; a `max_length` of 0 means the encoder's."""
    objective_class = resolve(name)
    goal: Objective = objective_class(
        config,
        encoder,
        vocab=tokenizer.vocab,
        max_length=max_length or encoder.max_positions,
        seed=seed,
    )
    return goal.eval()


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Loads tensors into a module; raises with the name of the first one whose shape differs."""
    expected = module.state_dict()
    for name, tensor in tensors.items():
        if name in expected and expected[name].shape != tensor.shape:
            shapes = f"{tuple(tensor.shape)} where config.json asks for {tuple(expected[name].shape)}"
            raise Damaged(f"{folder}: the weights and the config are not of one model: {name} has {shapes}.")
    module.load_state_dict(tensors)


def merged(checkpoint: Checkpoint) -> Checkpoint:
    """The model with LoRA's low-rank matrices added to its own; any other model as it is."""
    if checkpoint.light is None:
        return checkpoint
    encoder = shared_copy(checkpoint.encoder)
    merge_lora(encoder)
    return replace(checkpoint, encoder=encoder, light=None)


def head_for_transformers(checkpoint: Checkpoint) -> TransformersHead | None:
    """The head of the model's only task as transformers has it; None if there is none, or none that it can have."""
    has_parts = checkpoint.feature_encoder is not None or checkpoint.adapter_width or checkpoint.prefix_length
    if len(checkpoint.tasks) != 1 or has_parts:
        return None
    (head,) = checkpoint.tasks.values()
    model_type = layout_name_of(checkpoint)
    if model_type == "modernbert" and "masked_lm" in checkpoint.goals:
        return None  # its classes name the layers of both heads alike
    return transformers_head(model_type, checkpoint.encoder, head)


def layout_name_of(checkpoint: Checkpoint) -> str:
    """The `model_type` of the model's folder."""
    name = encoders.name_of(checkpoint.encoder)
    if getattr(checkpoint.encoder.config, "block_sizes", ()):
        return own.PREFIX + name  # transformers' layouts have one size for all blocks
    return checkpoint.layout or name


def token_table(encoder: Encoder) -> Tensor | None:
    """The input embedding of a model, V x E; None if it has none that a vector head can read."""
    for name, parameter in encoder.named_parameters():
        if name == TOKEN_EMBEDDING:
            return parameter.detach()
    return None


def described(encoder: Encoder) -> str:
    """An encoder's class and sizes in one line."""
    description = type(encoder).__name__
    if encoder.num_layers:
        description += f", {encoder.num_layers} layers"
    description += f", width {encoder.width}"
    if getattr(encoder.config, "block_sizes", ()):
        description += ", blocks of different sizes"
    elif hasattr(encoder.config, "num_heads"):
        description += f", {encoder.config.num_heads} heads"
    return description
