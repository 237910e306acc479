"""Model folders without their matrices, for measuring speed elsewhere: how fast a model is does not depend on them.

`strip` leaves out the matrices and notes their shapes; tokenizer, configs and vectors stay. `restore` fills matrices of
these shapes with random numbers, so that the folder opens again. Many stripped folders make a small archive.
"""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from firth import checkpoint as checkpoints
from firth import rng
from firth.files import MANIFEST, write_manifest

SHAPES = ".shapes.json"
"""Added to the name of a file of weights."""
STANDARD_DEVIATION = 0.02


def strip(model: Path, out: Path) -> None:
    """Writes the folder without its matrices. Weights of few bits are as they are in memory: single precision."""
    shutil.rmtree(out, ignore_errors=True)
    checkpoints.save(out, checkpoints.load(model))
    (out / MANIFEST).unlink()
    for path in sorted(out.rglob("*.safetensors")):
        vectors: dict[str, np.ndarray] = {}
        shapes: dict[str, list[int]] = {}
        for name, array in load_file(path).items():
            is_matrix = array.ndim > 1 and np.issubdtype(array.dtype, np.floating)
            if is_matrix:
                shapes[name] = list(array.shape)
            else:
                vectors[name] = array
        save_file(vectors, path)
        Path(f"{path}{SHAPES}").write_text(json.dumps(shapes), "utf-8")


def restore(stripped: Path, out: Path) -> Path:
    """Writes a folder that opens, with random numbers in its matrices; returns it."""
    shutil.copytree(stripped, out)
    for path in sorted(out.rglob("*.safetensors")):
        tensors = load_file(path)
        noted = Path(f"{path}{SHAPES}")
        for name, shape in json.loads(noted.read_text("utf-8")).items():
            numbers = np.arange(int(np.prod(shape)))
            values = STANDARD_DEVIATION * rng.normal(rng.key("restored", name), numbers)
            tensors[name] = values.astype(np.float32).reshape(shape)
        save_file(tensors, path, metadata={"format": "pt"})
        noted.unlink()
    write_manifest(out)
    return out
