"""The weight files of a folder in Hugging Face's layout -> all tensors by name, in single precision.

Weights are in one safetensors file, in several that an index lists, or quantised; other formats are refused.
"""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from firth.convert.row_quantised import QUANTISED, load_quantised
from firth.errors import BadInput, Damaged
from firth.files import read_json


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors in the weight file or files of a folder, as float32."""
    if (folder / QUANTISED).exists():
        return load_quantised(folder / QUANTISED)
    index = folder / "model.safetensors.index.json"
    file_names = ["model.safetensors"]
    # Large models are split into several files, which the index lists.
    if index.exists():
        file_of_tensor = read_json(index)["weight_map"]
        file_names = sorted(set(file_of_tensor.values()))
    tensors: dict[str, Tensor] = {}
    for file_name in file_names:
        path = folder / file_name
        if not path.exists():
            raise BadInput(f"{folder} has no {file_name}{_other_format(folder)}.{_without_weights(folder)}")
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    tensor = file.get_tensor(name)
                    if tensor.is_floating_point():
                        tensor = tensor.float()
                    tensors[name] = tensor
        except (SafetensorError, json.JSONDecodeError) as error:
            raise Damaged(f"{path} cannot be read ({error}); fetch or make it again.") from None
    return tensors


def _other_format(folder: Path) -> str:
    """A hint for a folder whose weights are in a format that must be imported; empty if there are none."""
    others = [*folder.glob("*.bin"), *folder.glob("*.ckpt*")]
    if not others:
        return ""
    return f" ({others[0].name} has another format; convert it with `firth import`)"


def _without_weights(folder: Path) -> str:
    """What a folder with a config but without weights looks like, and the remedy; empty if it has other weights."""
    if _other_format(folder):
        return ""
    return " It looks like a model whose weights were not copied or downloaded; fetch the weights into this folder."
