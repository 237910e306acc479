"""The folder of an encoder without a public layout: `config.json` and `model.safetensors` with firth's own names.

`model_type` is `firth-` plus the encoder's name in the table; tensors are `encoder.NAME` and `goals.GOAL.NAME`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from firth import encoders
from firth.config import from_dict, to_dict
from firth.convert import NestedModel, Weights
from firth.errors import Damaged, Unsupported
from firth.files import read_json

if TYPE_CHECKING:
    from torch import Tensor, nn

    from firth.tensors import Encoder

PREFIX = "firth-"
ENCODER_PREFIX = "encoder."
GOAL_PREFIX = "goals."
T = TypeVar("T")


def read(folder: Path) -> Weights:
    """The content of a folder; raises when anything in it is not understood."""
    from firth.convert.weight_files import read_tensors  # imports torch, which writing a table does not need

    values = read_json(folder / "config.json")
    model_type = str(values.get("model_type"))
    name = model_type.removeprefix(PREFIX)
    if not model_type.startswith(PREFIX) or name not in encoders.TABLE:
        raise Unsupported(f"{folder}/config.json is of type '{model_type}', which firth does not read.")
    config = from_dict(encoders.resolve(name).Config, values.get("config", {}))

    encoder: dict[str, Tensor] = {}
    # Listed first, because a goal may have no tensors.
    goals: dict[str, dict[str, Tensor]] = {goal: {} for goal in values.get("goals", ())}
    for key, tensor in read_tensors(folder).items():
        owner, _, tensor_name = key.removeprefix(GOAL_PREFIX).partition(".")
        if not tensor_name:
            raise Damaged(f"{folder}/model.safetensors has the tensor {key}, which belongs to no part of the model.")
        if key.startswith(GOAL_PREFIX):
            goals.setdefault(owner, {})[tensor_name] = tensor
        else:
            encoder[tensor_name] = tensor
    return Weights(name, config, encoder, goals)


def tensors_of(encoder: "Encoder", goals: "Mapping[str, nn.Module]", *, pad_id: int = 0) -> "dict[str, Tensor]":
    """All weights, with the names they have in the file."""
    state = {name: tensor.detach().contiguous() for name, tensor in encoder.state_dict().items()}
    tensors = named(state)
    for goal, head in goals.items():
        for name, tensor in head.state_dict().items():
            # Cloned, because a goal may share tensors with the encoder. Those of the encoder may be too large to copy.
            tensors[f"{GOAL_PREFIX}{goal}.{name}"] = tensor.detach().contiguous().clone()
    return tensors


def config_json(encoder: "Encoder", goals: "Mapping[str, nn.Module]", *, pad_id: int) -> dict[str, object]:
    """The content of `config.json`."""
    return settings(encoders.name_of(encoder), encoder.config, goals=goals)


def settings(name: str, config: object, *, goals: Iterable[str]) -> dict[str, object]:
    """The content of `config.json` for an encoder; goals are listed, because one may have no tensors."""
    return {"model_type": PREFIX + name, "config": to_dict(config), "goals": list(goals)}


def named(arrays: Mapping[str, T]) -> dict[str, T]:
    """The arrays of an encoder, with the names they have in the file."""
    return {f"{ENCODER_PREFIX}{name}": array for name, array in arrays.items()}


def nested_models(goals: "Mapping[str, nn.Module]") -> dict[str, NestedModel]:
    """None: only ELECTRA has a second model."""
    return {}
