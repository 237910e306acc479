"""How a text's states become one vector, as sentence-transformers keeps it beside a BERT: pooled, normalised, cut."""

from dataclasses import dataclass
from pathlib import Path

from firth.errors import Unsupported
from firth.files import read_json, write_json

SENTENCE_FILES = ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json")
"""What it keeps."""
POOLINGS = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "last": "lasttoken"}
"""What it calls our poolings."""


@dataclass(frozen=True)
class Embedding:
    """How a model turns a text's states into one vector."""

    pooling: str = "mean"
    normalise: bool = False
    max_length: int | None = None
    """Cut longer texts here, as the folder asks; None reads them whole, in windows."""


def read_embedding(folder: Path) -> Embedding:
    if not (folder / "modules.json").exists():
        return Embedding()
    paths = {module["type"].rsplit(".", 1)[-1]: module["path"] for module in read_json(folder / "modules.json")}
    kinds = list(paths)
    if unknown := [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]:
        raise Unsupported(f"{folder}/modules.json has a {unknown[0]} layer, which firth does not have.")
    pooling = read_json(folder / paths["Pooling"] / "config.json") if "Pooling" in kinds else {}
    modes = [
        name.removeprefix("pooling_mode_") for name, on in pooling.items() if "pooling_mode_" in name and on is True
    ]
    if pooling and (len(modes) != 1 or modes[0] not in POOLINGS.values()):
        raise Unsupported(f"{folder}/{paths['Pooling']}/config.json asks for a pooling firth does not have.")
    settings = folder / "sentence_bert_config.json"
    length = read_json(settings).get("max_seq_length") if settings.exists() else None
    ours = {theirs: name for name, theirs in POOLINGS.items()}
    return Embedding(ours[modes[0]] if modes else "mean", "Normalize" in kinds, length)


def write_embedding(folder: Path, embedding: Embedding) -> tuple[str, ...]:
    """The same settings as sentence-transformers' files, where the model has any of its own."""
    if embedding == Embedding():
        return ()
    kinds = ["Transformer", "Pooling"] + ["Normalize"] * embedding.normalise
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    rows = [
        {"idx": i, "name": str(i), "path": paths[kind], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    write_json(folder / "modules.json", rows)
    modes = {f"pooling_mode_{theirs}": name == embedding.pooling for name, theirs in POOLINGS.items()}
    length = {} if embedding.max_length is None else {"max_seq_length": embedding.max_length}
    write_json(folder / "sentence_bert_config.json", {**length, "do_lower_case": False})
    write_json(folder / "1_Pooling/config.json", modes)
    return SENTENCE_FILES
