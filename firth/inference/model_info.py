"""What a model consists of and where it comes from: a checkpoint in, names and numbers out."""

from dataclasses import dataclass

from firth.checkpoint import Checkpoint
from firth.config import to_dict
from firth.files import JsonObject
from firth.tensors import parameter_count


@dataclass(frozen=True)
class ModelInfo:
    """What a model consists of and where it comes from."""

    encoder: JsonObject
    """The encoder's config."""
    parameters: int
    encoder_parameters: int
    vocabulary: int
    """Number of tokens."""
    heads: list[str]
    """The names of its pre-training objectives."""
    tasks: dict[str, JsonObject]
    """For each task it was fine-tuned for, its labels and its config."""
    embedding: JsonObject
    """How it embeds texts."""
    training: JsonObject
    """How it was trained, as recorded in `firth.json`."""


def model_info(checkpoint: Checkpoint) -> ModelInfo:
    tasks: dict[str, JsonObject] = {}
    for name, task in checkpoint.tasks.items():
        tasks[name] = {"labels": to_dict(task.labels), "config": to_dict(task.config)}
    return ModelInfo(
        encoder=to_dict(checkpoint.encoder.config),
        parameters=num_parameters(checkpoint),
        encoder_parameters=parameter_count([checkpoint.encoder]),
        vocabulary=len(checkpoint.tokenizer.vocab),
        heads=list(checkpoint.goals),
        tasks=tasks,
        embedding=to_dict(checkpoint.embedding),
        training=dict(checkpoint.info),
    )


def num_parameters(checkpoint: Checkpoint) -> int:
    """Of the encoder and the heads of pre-training."""
    return parameter_count([checkpoint.encoder, *checkpoint.goals.values()])
