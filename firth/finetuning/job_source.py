"""What a fine-tuning run is made from: a request -> the model and the files with their hashes.

A run that is resumed must be made from the same.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from firth.config import check_whole
from firth.errors import BadConfig, BadInput
from firth.finetuning import labelled
from firth.finetuning.job_config import FinetuneRequest, first_config
from firth.finetuning.labelled import PARTS
from firth.run_folder import RunFolder
from firth.run_source import FinetuningSource, SourceFile, input_file, model_sha256
from firth.tasks import resolve
from firth.tasks.task import TaskConfig

VECTORS = "transfer.features.vectors"
"""The setting that names a model of word vectors."""


def source_of(request: FinetuneRequest) -> FinetuningSource:
    """The model and the files of a new run, with their hashes."""
    if not request.tasks or not request.files.get("train"):
        raise BadConfig("Fine-tuning needs a `task=` and a `train=` file.")
    check_whole(seeds=request.seeds)
    config = first_config(request)
    tasks = config.tasks
    names = list(tasks)
    files: dict[str, dict[str, SourceFile]] = {name: {} for name in names}
    for part in PARTS:
        paths = request.files.get(part, ())
        if paths and len(paths) != len(names):
            raise BadConfig(f"There are {len(names)} `task=` but {len(paths)} `{part}=`; give one for each task.")
        for name, path in zip(names, paths, strict=False):
            files[name][part] = _source_file(name, tasks[name], Path(path))
    model = str(Path(request.model).resolve()) if request.model else ""
    vectors = config.transfer.features.vectors
    return FinetuningSource(
        model=model,
        random=request.random or not model,
        seeds=request.seeds,
        skip_bad=request.skip_bad,
        files=files,
        model_sha256=model_sha256(model),
        inputs={VECTORS: input_file(vectors)} if vectors else {},
    )


def with_model(source: FinetuningSource, model: Path) -> FinetuningSource:
    path = str(model.resolve())
    return replace(source, model=path, random=False, model_sha256=model_sha256(path))


def _source_file(name: str, config: TaskConfig, path: Path) -> SourceFile:
    for file in resolve(name).reader(config).files(path):
        if not file.exists():
            raise BadInput(f"{file} does not exist.")
        if not file.is_file():
            raise BadInput(f"{file} is not a file.")
    return SourceFile(str(path.resolve()), labelled.rows_sha256(name, config, path))


def refuse_other_source(
    folder: RunFolder, saved: FinetuningSource, request: FinetuneRequest, tasks: Mapping[str, TaskConfig]
) -> None:
    """Raises if what is given or found now differs from what the run started with."""
    out = folder.path
    saved_paths: set[str] = set()
    for name, files in saved.files.items():
        for file in files.values():
            saved_paths.add(file.path)
            path = Path(file.path)
            if not path.exists() or labelled.rows_sha256(name, tasks[name], path) != file.sha256:
                raise BadInput(f"{path} is not as it was when {out} began; resume needs the same data.")
    if request.model and str(Path(request.model).resolve()) != saved.model:
        raise BadInput(f"{out} did not start from {request.model}; leave the model out to resume it.")
    folder.refuse_changed_model(saved.model, saved.model_sha256)
    folder.refuse_changed_inputs(saved.inputs)
    given_paths: set[str] = set()
    for paths in request.files.values():
        given_paths.update(str(Path(path).resolve()) for path in paths)
    other_paths = given_paths - saved_paths
    if other_paths:
        raise BadInput(f"{out} was not begun with {min(other_paths)}; leave the files out to resume it.")
    if request.tasks and list(first_config(request).tasks) != list(saved.files):
        raise BadConfig(f"{out} is a run of {', '.join(saved.files)}; leave out `task=` to resume it.")
    _refuse_other_options(out, saved, request)


def _refuse_other_options(out: Path, saved: FinetuningSource, request: FinetuneRequest) -> None:
    # An option that was left out has its default, which therefore never differs.
    other_options = {
        "`seeds=`": request.seeds not in (1, saved.seeds),
        "`random=True`": request.random and not saved.random,
        "`skip_bad=True`": request.skip_bad and not saved.skip_bad,
    }
    for option, is_other in other_options.items():
        if is_other:
            raise BadConfig(
                f"{out} was begun with another {option}; leave it out to resume it, or choose another `out=`."
            )
