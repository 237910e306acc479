"""What the user asks of a compression; where it trains, `run.toml` and `source.json` keep it for resuming."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from firth.compression.method import MethodConfig
from firth.compression.method_chain import FollowUp
from firth.compression.strength_search import Wanted
from firth.config import load_toml, to_dict, to_toml
from firth.corpus.readers import find_files
from firth.errors import BadInput
from firth.files import JsonObject, sha256
from firth.run_folder import RunFolder
from firth.run_source import CompressionSource, SourceFile, model_sha256


@dataclass(frozen=True)
class CompressionRequest:
    """What the user asks for."""

    model: Path
    method: str
    data: Path
    train: Path | None = None
    vocabulary_from: tuple[Path, ...] = ()
    task: str = ""
    wanted: Wanted = field(default_factory=Wanted)
    then: tuple[str, ...] = ()
    """Methods without training that follow."""
    changes: tuple[str, ...] = ()
    """Settings of the method as `key=value`; those of a method that follows begin with its name and a dot."""
    skip_bad: bool = False
    seed: int = 1


@dataclass(frozen=True)
class CompressionNumbers:
    """The numbers of a compression that trains, as `run.toml` holds them."""

    method: str
    task: str
    keep: float | None
    faster: float | None
    seed: int
    skip_bad: bool
    settings: JsonObject
    """The method's config."""
    then: list[JsonObject]
    """The methods that follow, with their configs."""


def source_of(request: CompressionRequest, config: MethodConfig) -> CompressionSource:
    """The files that the run reads, with their hashes, and its model."""
    files = {"data": request.data, **config.input_files}
    if request.train is not None:
        files["train"] = request.train
    if request.vocabulary_from:
        texts = find_files([str(path) for path in request.vocabulary_from])
        for number, path in enumerate(texts, start=1):
            files[f"vocabulary-{number}"] = path
    hashes: dict[str, SourceFile] = {}
    for part, path in files.items():
        if not path.is_file():
            raise BadInput(f"{path} does not exist or is not a file.")
        hashes[part] = SourceFile(str(path.resolve()), sha256(path))
    # A run may be resumed from another folder.
    model = request.model.resolve()
    return CompressionSource(str(model), model_sha256(model), request.method, hashes)


def numbers_of(request: CompressionRequest, config: MethodConfig, follow_ups: Sequence[FollowUp]) -> CompressionNumbers:
    """The numbers of a run."""
    return CompressionNumbers(
        method=request.method,
        task=request.task,
        keep=request.wanted.keep,
        faster=request.wanted.faster,
        seed=request.seed,
        skip_bad=request.skip_bad,
        settings=to_dict(config),
        then=[follow_up.note for follow_up in follow_ups],
    )


def refuse_other_run(run: RunFolder, source: CompressionSource, numbers: CompressionNumbers) -> None:
    """Raises if a run is to be resumed with other files, another model or other numbers."""
    saved = run.read_source(CompressionSource)
    run.refuse_changed_model(saved.model, saved.model_sha256)
    if saved != source or load_toml(run.config_path) != _as_toml(numbers):
        raise run.refuse_other_numbers("give the same model, files and options again")


def _as_toml(numbers: CompressionNumbers) -> object:
    """The numbers as they are after writing and reading `run.toml`."""
    return tomllib.loads(to_toml(to_dict(numbers)))
