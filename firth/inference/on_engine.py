"""Texts -> vectors and rows -> predictions by the workers of an engine, in order.

The model's files are sent to every machine once; a worker opens them with its first piece. Pieces have a fixed number
of texts, so the results do not depend on the number of workers. One process batches all texts by their lengths instead,
so its vectors may differ from these in the last bits.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from firth.data.items import Item
from firth.engines.engine import Engine, Handle, ahead, window
from firth.errors import BadConfig
from firth.files import MANIFEST, atomic_file, read_files, read_json, write_files
from firth.inference.model import Model, load
from firth.types import Example, Prediction

PIECE_TEXTS = 1024
"""Texts or rows of one piece of work."""
ModelFiles = dict[str, bytes]
"""The files of a model folder, by name."""


def embed_to_file(
    engine: Engine,
    model: Model,
    texts: Sequence[str],
    path: Path,
    *,
    pooling: str | None,
    precision: str | None,
) -> None:
    """Writes the vectors of the texts as a .npy file, a piece at a time."""
    if precision == "auto":
        raise BadConfig("Every worker would choose a precision of its own; name fp32, bf16 or int8 instead of auto.")
    files = engine.share(model_files(_folder_of(model)))

    def submitted() -> Iterator[Handle[np.ndarray]]:
        for start in range(0, len(texts), PIECE_TEXTS):
            piece = list(texts[start : start + PIECE_TEXTS])
            yield engine.submit(embed_piece, files, piece, pooling, precision)

    with atomic_file(path) as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (len(texts), model.embedder.width(pooling))}
        np.lib.format.write_array_header_1_0(file, header)
        for number, waiting in enumerate(ahead(submitted(), window(engine))):
            vectors = np.array(engine.result(waiting), "<f4")
            piece = texts[number * PIECE_TEXTS : (number + 1) * PIECE_TEXTS]
            # As on one machine, a blank line has a vector of zeros.
            vectors[[not text.strip() for text in piece]] = 0
            file.write(vectors.tobytes())


def predict(
    engine: Engine,
    model: Model,
    examples: Sequence[Example],
    *,
    task: str = "",
    language: str = "",
) -> list[Prediction]:
    """What a fine-tuned model predicts for each row, in order."""
    files = engine.share(model_files(_folder_of(model)))
    items = model.encode_inputs(examples, task=task)

    def submitted() -> Iterator[Handle[list[Prediction]]]:
        for start in range(0, len(items), PIECE_TEXTS):
            piece = list(items[start : start + PIECE_TEXTS])
            yield engine.submit(predict_piece, files, piece, task, language)

    predictions: list[Prediction] = []
    for waiting in ahead(submitted(), window(engine)):
        piece = engine.result(waiting)
        predictions += piece
    return predictions


def _folder_of(model: Model) -> Path:
    assert model.folder is not None
    return model.folder


def model_files(folder: Path) -> ModelFiles:
    """The files of a model; those of a run that the model does not need are left out."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        return read_files(folder)
    names = [*read_json(manifest)["files"], MANIFEST]
    return {name: (folder / name).read_bytes() for name in names}


# What workers do


def embed_piece(files: ModelFiles, texts: list[str], pooling: str | None, precision: str | None) -> np.ndarray:
    model = _opened(files, precision=precision, language="")
    return model.embed(texts, pooling=pooling)


def predict_piece(files: ModelFiles, items: list[Item], task: str, language: str) -> list[Prediction]:
    model = _opened(files, precision=None, language=language)
    return model.predict_items(items, task=task)


def _opened(files: ModelFiles, *, precision: str | None, language: str) -> Model:
    """The model of these files; a worker keeps it for the next piece."""
    hashable = tuple(sorted(files.items()))
    return _load(hashable, precision, language)


@lru_cache(1)
def _load(files: tuple[tuple[str, bytes], ...], precision: str | None, language: str) -> Model:
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        write_files(Path(folder), dict(files))
        return load(folder, precision=precision, language=language)
