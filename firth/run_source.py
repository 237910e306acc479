"""What a run is made from: RUN/source.json, written before the run begins and compared when it is resumed.

Files and models are named with their hashes. Every kind of run has a record of its own. Torch is not imported here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from firth.config import from_dict
from firth.errors import BadConfig, BadInput, Damaged
from firth.files import MANIFEST, read_json, sha256

SOURCE = "source.json"
RESULTS = "results.json"
REPORT = "report.html"
DATA = "data"
"""Text that was prepared for this run."""
LANGUAGE_MODEL = "lm"
"""The run of ULMFiT's second stage, in the folder of its fine-tuning."""
WAYS = "ways"
"""What fine-tuning with few labels tried before its run: other ways, a teacher, the labels it gave."""
TEXT = "text.txt"
"""The text that ULMFiT's second stage is trained on, in its folder."""

Command = Literal["pretrain", "finetune", "compress", "tune"]


@dataclass(frozen=True)
class SourceFile:
    """A file as it was when the run began."""

    path: str
    sha256: str


@dataclass(frozen=True)
class PretrainingSource:
    """What a pre-training run with gradients is made from."""

    command: ClassVar[Command] = "pretrain"
    before_begin: ClassVar[tuple[str, ...]] = (DATA, TEXT)
    """What the folder may hold before the run has begun."""
    last_written: ClassVar[str] = MANIFEST
    """The file whose presence shows that the run is finished."""
    data: str
    """The folder of prepared text."""
    sha256: str
    """Of its manifest."""
    start_from: str = ""
    """The folder of the model whose weights the run starts from; empty for random weights."""
    start_sha256: str = ""
    """Of its manifest; empty if it has none."""
    inputs: Mapping[str, SourceFile] = field(default_factory=dict)
    """Other files that the run reads, by the setting that names them."""
    kind: Literal["pretraining"] = "pretraining"


@dataclass(frozen=True)
class SolvingSource:
    """What a run that is solved without gradients is made from."""

    command: ClassVar[Command] = "pretrain"
    before_begin: ClassVar[tuple[str, ...]] = (DATA,)
    last_written: ClassVar[str] = MANIFEST
    data: str
    """The folder of prepared text."""
    sha256: str
    """Of its manifest."""
    min_count: int | None = None
    """Words that occur less often were left out; None keeps all words of the prepared text."""
    threads: int | None = None
    text: str = ""
    """The plain text that was prepared for this run; empty if it was prepared before."""
    kind: Literal["solving"] = "solving"


@dataclass(frozen=True)
class FinetuningSource:
    """What a fine-tuning run is made from."""

    command: ClassVar[Command] = "finetune"
    before_begin: ClassVar[tuple[str, ...]] = (LANGUAGE_MODEL, WAYS)
    last_written: ClassVar[str] = RESULTS
    """Written after the model and its manifest."""
    model: str
    """The folder of the model; empty if there is none."""
    random: bool
    """Whether the run starts from random weights."""
    seeds: int
    skip_bad: bool
    files: Mapping[str, Mapping[str, SourceFile]]
    """By task and part: train, dev, test."""
    model_sha256: str = ""
    """Of the model's manifest; empty if it has none."""
    inputs: Mapping[str, SourceFile] = field(default_factory=dict)
    """Other files or models that the run reads, by the setting that names them."""
    kind: Literal["finetuning"] = "finetuning"


@dataclass(frozen=True)
class CompressionSource:
    """What a compression with a training loop is made from."""

    command: ClassVar[Command] = "compress"
    before_begin: ClassVar[tuple[str, ...]] = ()
    last_written: ClassVar[str] = RESULTS
    """Written after the model and its manifest."""
    model: str
    """The folder of the original."""
    model_sha256: str
    """Of its manifest; empty if it has none."""
    method: str
    files: Mapping[str, SourceFile]
    """By part: train, data, unlabelled, and vocabulary-1, vocabulary-2 ... for the texts whose tokens are kept."""
    kind: Literal["compression"] = "compression"


@dataclass(frozen=True)
class TuningSource:
    """What a search for settings is made from."""

    command: ClassVar[Command] = "tune"
    before_begin: ClassVar[tuple[str, ...]] = ()
    last_written: ClassVar[str] = RESULTS
    """Written after the model and its manifest."""
    model: str
    """The folder of the model; empty if there is none."""
    model_sha256: str
    """Of its manifest; empty if it has none."""
    random: bool
    """Whether the runs start from random weights."""
    files: Mapping[str, SourceFile]
    """By part: train, dev."""
    kind: Literal["tuning"] = "tuning"


Source = PretrainingSource | SolvingSource | FinetuningSource | CompressionSource | TuningSource
AnySource = TypeVar("AnySource", PretrainingSource, SolvingSource, FinetuningSource, CompressionSource, TuningSource)

SOURCE_CLASSES: Mapping[str, type[Source]] = {
    "pretraining": PretrainingSource,
    "solving": SolvingSource,
    "finetuning": FinetuningSource,
    "compression": CompressionSource,
    "tuning": TuningSource,
}


def read_source(run: Path) -> Source:
    """What a run is made from, as it was written when the run began."""
    path = run / SOURCE
    values = _source_values(path)
    source_class = SOURCE_CLASSES[values["kind"]]
    try:
        source = from_dict(source_class, values)
        # `from_dict` does not convert the values of mappings.
        if isinstance(source, PretrainingSource | FinetuningSource):
            inputs = _files({"": source.inputs})
            source = replace(source, inputs=inputs[""])
        if isinstance(source, FinetuningSource):
            source = replace(source, files=_files(source.files))
        elif isinstance(source, CompressionSource | TuningSource):
            files = _files({"": source.files})
            source = replace(source, files=files[""])
    except (BadConfig, AttributeError) as error:
        why = str(error).rstrip(".")
        raise Damaged(f"{path} does not say what the run is made from ({why}); begin the run again.") from None
    return source


def _source_values(path: Path) -> dict[str, Any]:
    """The record as it is in the file; the first versions of firth did not write its kind."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise Damaged(f"{path} does not say what the run is made from; begin the run again.")
    # Each kind of source had a field that the others did not have.
    if "files" in values:
        guessed = "finetuning"
    elif "threads" in values:
        guessed = "solving"
    else:
        guessed = "pretraining"
    kind = values.setdefault("kind", guessed)
    if kind not in SOURCE_CLASSES:
        raise Damaged(f"{path} is of a kind of run that this version does not know ('{kind}'); use a newer one.")
    return values


def _files(values: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, SourceFile]]:
    """The files of a record, by task and part."""
    files: dict[str, dict[str, SourceFile]] = {}
    for task, parts in values.items():
        files[task] = {part: from_dict(SourceFile, row) for part, row in parts.items()}
    return files


def input_file(path: str | Path) -> SourceFile:
    """A file or a model folder that a setting names, with its hash."""
    found = Path(path).resolve()
    if not found.exists():
        raise BadInput(f"{path} does not exist.")
    digest = model_sha256(found) if found.is_dir() else sha256(found)
    return SourceFile(str(found), digest)


def model_sha256(model: str | Path) -> str:
    """The sha256 of a model's manifest, which holds those of its files; empty if there is no model or manifest."""
    manifest = Path(model) / MANIFEST
    if not model or not manifest.exists():
        return ""
    return sha256(manifest)


def source_class(path: Path) -> type[Source]:
    """The kind of run that a record is of."""
    return SOURCE_CLASSES[_source_values(path)["kind"]]
