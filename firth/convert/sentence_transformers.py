"""How the states of a text become one vector, in the files of sentence-transformers: pooling, normalisation, length."""

from dataclasses import dataclass
from pathlib import Path

from firth.errors import Unsupported
from firth.files import read_json, write_json

SENTENCE_FILES = ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json")
"""The files of sentence-transformers."""
POOLINGS = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "last": "lasttoken"}
"""Firth's names of the poolings -> those of sentence-transformers."""
_MODE = "pooling_mode_"
_FOLDERS = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
"""The modules that firth knows -> their folders, as sentence-transformers names them."""


@dataclass(frozen=True)
class Embedding:
    """How a model turns the states of a text into one vector."""

    pooling: str = "mean"
    normalise: bool = False
    max_length: int | None = None
    """Longer texts are truncated here; None reads them whole, in windows."""


def read_embedding(folder: Path) -> Embedding:
    """The settings in a folder's files; the defaults if it has none."""
    if not (folder / "modules.json").exists():
        return Embedding()
    paths: dict[str, str] = {}
    for module in read_json(folder / "modules.json"):
        # For example, `sentence_transformers.models.Pooling`.
        kind = module["type"].rsplit(".", 1)[-1]
        paths[kind] = module["path"]
    for kind in paths:
        if kind not in _FOLDERS:
            raise Unsupported(f"{folder}/modules.json has a {kind} layer, which firth does not have.")
    pooling = "mean"
    if "Pooling" in paths:
        pooling = _read_pooling(folder / paths["Pooling"] / "config.json")
    max_length = None
    settings = folder / "sentence_bert_config.json"
    if settings.exists():
        max_length = read_json(settings).get("max_seq_length")
    return Embedding(pooling, "Normalize" in paths, max_length)


def _read_pooling(path: Path) -> str:
    """Firth's name of the pooling that a file asks for."""
    values = read_json(path)
    if not values:
        return "mean"
    modes: list[str] = []
    for name, value in values.items():
        if _MODE in name and value is True:
            modes.append(name.removeprefix(_MODE))
    if len(modes) == 1:
        for name, their_name in POOLINGS.items():
            if their_name == modes[0]:
                return name
    raise Unsupported(f"{path} asks for a pooling firth does not have.")


def write_embedding(folder: Path, embedding: Embedding) -> tuple[str, ...]:
    """Writes the settings as files of sentence-transformers and returns their names; nothing for the defaults."""
    if embedding == Embedding():
        return ()
    kinds = ["Transformer", "Pooling"]
    if embedding.normalise:
        kinds.append("Normalize")
    modules: list[dict[str, int | str]] = []
    for i, kind in enumerate(kinds):
        class_name = f"sentence_transformers.models.{kind}"
        modules.append({"idx": i, "name": str(i), "path": _FOLDERS[kind], "type": class_name})
    write_json(folder / "modules.json", modules)

    settings: dict[str, int | bool] = {}
    if embedding.max_length is not None:
        settings["max_seq_length"] = embedding.max_length
    settings["do_lower_case"] = False
    write_json(folder / "sentence_bert_config.json", settings)

    modes = {f"{_MODE}{their_name}": name == embedding.pooling for name, their_name in POOLINGS.items()}
    write_json(folder / "1_Pooling/config.json", modes)
    return SENTENCE_FILES
