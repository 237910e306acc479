"""BERT's original files (TensorFlow 1) -> a Hugging Face folder.

In: a folder with `bert_config.json`, `vocab.txt` and `*.ckpt.index` with its data. Out: the weights as safetensors by
Hugging Face's names, and `config.json`; the strict reader of such folders accounts for them. The optimizer's variables
stay behind.
"""

import re
from pathlib import Path

import numpy as np

from firth.convert.bundle import Bundle
from firth.errors import BadInput
from firth.files import read_json, write_bytes, write_json

CONFIG = "bert_config.json"
_OPTIMIZER = re.compile(
    r"(^|/)(adam_[mv]|Adam(_1)?|lamb_[mv]|global_step|beta[12]_power|bad_steps|good_steps|loss_scale)$"
)
_ENDINGS = (
    (r"_embeddings$", "_embeddings.weight"),
    (r"\.(kernel|gamma|output_weights)$", ".weight"),
    (r"\.(beta|output_bias)$", ".bias"),
    (r"\.layer_(\d+)\.", r".layer.\1."),
)


def find(folder: Path) -> Path | None:
    """The prefix of the folder's checkpoint, where it holds one."""
    found = sorted(path.with_suffix("") for path in folder.glob("*.index"))
    if len(found) > 1:
        raise BadInput(
            f"{folder} has {len(found)} checkpoints ({found[0].name}, {found[1].name} ...); leave one there."
        )
    return found[0] if found else None


def convert(prefix: Path, out: Path) -> None:
    """Writes `config.json` and `model.safetensors` into the folder `out`."""
    from safetensors.numpy import save

    config = prefix.parent / CONFIG
    if not config.is_file():
        raise BadInput(f"{prefix.parent} has a TensorFlow checkpoint but no {CONFIG} to say its shape.")
    bundle = Bundle(prefix)
    names = [name for name in bundle.entries if not _OPTIMIZER.search(name)]
    tensors = {translate(name): _tensor(bundle, name) for name in names}
    write_bytes(out / "model.safetensors", save(tensors, {"format": "pt"}))
    write_json(out / "config.json", {**read_json(config), "model_type": "bert"})


def translate(name: str) -> str:
    """TensorFlow's name of a variable -> Hugging Face's."""
    theirs = name.replace("/", ".")
    for pattern, replacement in _ENDINGS:
        theirs = re.sub(pattern, replacement, theirs)
    return theirs


def _tensor(bundle: Bundle, name: str) -> np.ndarray:
    array = bundle.read(name)
    # TensorFlow multiplies from the left, so its matrices lie the other way round.
    return np.ascontiguousarray((array.T if name.endswith("/kernel") else array), np.float32)
