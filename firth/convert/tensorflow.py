"""BERT's original files (TensorFlow 1) -> a Hugging Face folder.

In: a folder with `bert_config.json`, `vocab.txt` and `*.ckpt.index` with its data. Out: `config.json`, and the weights
as safetensors with Hugging Face's names; the strict reader of such folders then checks that every tensor is used. The
optimizer's variables are left out.
"""

import re
from pathlib import Path

import numpy as np

from firth.convert.bundle import Bundle
from firth.errors import BadInput
from firth.files import read_json, write_bytes, write_json

CONFIG = "bert_config.json"
# Variables of Adam, LAMB and of training in mixed precision.
_OPTIMIZER = re.compile(
    r"(^|/)(adam_[mv]|Adam(_1)?|lamb_[mv]|global_step|beta[12]_power|bad_steps|good_steps|loss_scale)$"
)
# TensorFlow's names with dots in place of slashes -> Hugging Face's, applied in order.
_RENAMINGS = (
    (r"_embeddings$", "_embeddings.weight"),
    (r"\.(kernel|gamma|output_weights)$", ".weight"),
    (r"\.(beta|output_bias)$", ".bias"),
    (r"\.layer_(\d+)\.", r".layer.\1."),
)


def find(folder: Path) -> Path | None:
    """The prefix of the checkpoint in a folder; None if there is none."""
    found = sorted(path.with_suffix("") for path in folder.glob("*.index"))
    if len(found) > 1:
        raise BadInput(f"{folder} has {len(found)} checkpoints ({found[0].name}, {found[1].name} ...); keep one.")
    if not found:
        return None
    return found[0]


def convert(prefix: Path, out: Path) -> None:
    """Writes `config.json` and `model.safetensors` into the folder `out`."""
    from safetensors.numpy import save

    config = prefix.parent / CONFIG
    if not config.is_file():
        raise BadInput(f"{prefix.parent} has a TensorFlow checkpoint but no {CONFIG} with its shape.")
    bundle = Bundle(prefix)
    tensors: dict[str, np.ndarray] = {}
    for name in bundle.entries:
        if not _OPTIMIZER.search(name):
            tensors[translate(name)] = _tensor(bundle, name)
    write_bytes(out / "model.safetensors", save(tensors, {"format": "pt"}))
    write_json(out / "config.json", {**read_json(config), "model_type": "bert"})


def translate(name: str) -> str:
    """TensorFlow's name of a variable -> Hugging Face's."""
    translated = name.replace("/", ".")
    for pattern, replacement in _RENAMINGS:
        translated = re.sub(pattern, replacement, translated)
    return translated


def _tensor(bundle: Bundle, name: str) -> np.ndarray:
    """A tensor as float32, with matrices as torch has them."""
    array = bundle.read(name)
    if name.endswith("/kernel"):
        array = array.T  # TensorFlow has inputs x outputs
    return np.ascontiguousarray(array, np.float32)
