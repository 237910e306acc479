"""The folder of an encoder without a public layout: `config.json` and `model.safetensors` under our own names.

`model_type` is `firth-` and the encoder's name in the table; tensors are `encoder.NAME` and `goals.GOAL.NAME`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from firth import encoders
from firth.config import from_dict, to_dict
from firth.convert import Weights
from firth.errors import Damaged, Unsupported
from firth.files import read_json

if TYPE_CHECKING:
    from torch import Tensor, nn

    from firth.tensors import Encoder

PREFIX = "firth-"
T = TypeVar("T")


def read(folder: Path) -> Weights:
    from firth.convert.huggingface import read_tensors  # needs torch, which writing a table does not

    values = read_json(folder / "config.json")
    kind = str(values.get("model_type"))
    name = kind.removeprefix(PREFIX)
    if not kind.startswith(PREFIX) or name not in encoders.TABLE:
        raise Unsupported(f"{folder}/config.json is of type '{kind}', which firth does not read.")
    config = from_dict(encoders.resolve(name).Config, values.get("config", {}))
    parts = dict[str, "dict[str, Tensor]"]()
    for key, tensor in read_tensors(folder).items():
        owner, _, rest = key.removeprefix("goals.").partition(".")
        if not rest:
            raise Damaged(f"{folder}/model.safetensors has the tensor {key}, which belongs to no part of the model.")
        parts.setdefault(owner if key.startswith("goals.") else "", {})[rest] = tensor
    own = parts.pop("", {})
    without: dict[str, dict[str, Tensor]] = {goal: {} for goal in values.get("goals", ())}
    return Weights(name, config, own, {**without, **parts})


def tensors_of(encoder: "Encoder", goals: "Mapping[str, nn.Module]", *, pad_id: int = 0) -> "dict[str, Tensor]":
    own = named({name: t.detach().contiguous() for name, t in encoder.state_dict().items()})
    heads = {f"goals.{goal}.{name}": t for goal, head in goals.items() for name, t in head.state_dict().items()}
    # Cloned, because a goal may share tensors with the encoder, whose own may be too large to be copied.
    return own | {name: tensor.detach().contiguous().clone() for name, tensor in heads.items()}


def config_json(encoder: "Encoder", goals: Mapping[str, Any], *, pad_id: int) -> dict[str, Any]:
    return settings(encoders.name_of(encoder), encoder.config, goals=goals)


def settings(name: str, config: Any, *, goals: Iterable[str]) -> dict[str, Any]:
    """What `config.json` says of an encoder; goals are named, because one may have no tensors of its own."""
    return {"model_type": PREFIX + name, "config": to_dict(config), "goals": list(goals)}


def named(arrays: Mapping[str, T]) -> dict[str, T]:
    """An encoder's arrays as the file names them."""
    return {f"encoder.{name}": array for name, array in arrays.items()}


def beside(goals: "Mapping[str, nn.Module]") -> dict[str, Any]:
    return {}
