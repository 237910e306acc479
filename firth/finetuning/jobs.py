"""A request for fine-tuning -> a job: the config resolved, files read and checked, a model to start from.

A run saves its config in `run.toml` and its files with their hashes in `source.json`; resuming reads these.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from firth import models
from firth.checkpoint import make_head
from firth.config import check_whole, from_dict, has_field, load_toml, override
from firth.console import counted
from firth.errors import BadConfig, BadInput
from firth.finetuning import chains, checking, labelled
from firth.finetuning.backbones import BACKBONES, Backbone
from firth.finetuning.extension import Extension
from firth.finetuning.few.contrast import ContrastExtension
from firth.finetuning.few.extension import FewExtension
from firth.finetuning.labelled import PARTS, Labelled, texts_of
from firth.finetuning.settings import PARTS_OF_ENCODERS, FinetuneConfig
from firth.finetuning.start import Start
from firth.finetuning.usual_settings import (
    MUON_ADAMW_SHARE,
    resolve_train,
    usual_epochs,
    usual_layer_decay,
    usual_optimizer,
    usual_rate,
)
from firth.finetuning.writer_start import as_writer, needs_source, with_way
from firth.run_folder import RunFolder
from firth.run_source import FinetuningSource, SourceFile, input_file, model_sha256
from firth.tasks import make_config, resolve
from firth.tasks.task import TaskConfig
from firth.tasks.writers import can_write
from firth.train.parallel import chosen_device, micro_batches_of_rank, with_micro_batches

log = logging.getLogger(__name__)

VECTORS = "transfer.features.vectors"
"""The setting that names a model of word vectors."""
REMEDY = "name a model folder, or start from random weights with `random=True`"
"""If no model was named and none comes with the installation."""


@dataclass(frozen=True)
class FinetuneRequest:
    """A request for a run; what is left out is resolved later."""

    model: str = ""
    tasks: tuple[str, ...] = ()
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Paths by part (train, dev, test), one for each task or none."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Fields of the tasks' configs, such as preset and columns."""
    seeds: int = 1
    random: bool = False
    """Whether to start from random weights in the model's shape."""
    skip_bad: bool = False
    changes: tuple[str, ...] = ()
    """Settings as `key=value`."""
    extension: Extension = field(default_factory=Extension)
    """What a method of compression adds to the run."""


@dataclass(frozen=True)
class FinetuneJob:
    """A run with its data read and its config resolved."""

    config: FinetuneConfig
    source: FinetuningSource
    data: Mapping[str, Labelled]
    """By task."""
    start: Start
    device: str
    extension: Extension = field(default_factory=Extension)

    @property
    def max_length(self) -> int:
        return self.config.max_length or self.start.shape.max_positions

    @property
    def backbone(self) -> Backbone:
        return BACKBONES[self.config.encoder]


def resolve_job(folder: RunFolder, request: FinetuneRequest, *, device: str | None) -> FinetuneJob:
    """The job of a new run, or of one that is resumed with its saved settings and files."""
    resumed = folder.begun
    if resumed:
        source, config = _saved_run(folder, request)
    else:
        source = _source(request)
        config = first_config(request)
    backbone = BACKBONES[config.encoder]
    extension = _extension(request, config)
    data = _read_tasks(config, source, extension, report=not resumed)
    if backbone.is_bag:
        _refuse_model_and_several_tasks(source.model, data)
    if not resumed and config.encoder == "model" and not source.model and not request.random:
        source = _with_model(source, models.suiting(texts_of(data), remedy=REMEDY))
    start, data = _start(data, config, source)
    device_name = "cpu" if backbone.is_bag else str(chosen_device(device))
    if not resumed:
        config = replace(config, train=with_micro_batches(config.train))
        config = _resolve_config(config, data, start, request)
    # Raises now rather than after files were written.
    micro_batches_of_rank(config.train)
    return FinetuneJob(config, source, data, start, device_name, extension)


def _read_tasks(
    config: FinetuneConfig, source: FinetuningSource, extension: Extension, *, report: bool
) -> dict[str, Labelled]:
    """The rows of each task, with those that an extension adds."""
    data: dict[str, Labelled] = {}
    for name, task_config in config.tasks.items():
        rows = _read_task(name, task_config, source, config)
        if report:
            _report_findings(name, rows)
        extension.check_rows(name, rows)
        training_rows = extension.more_rows(name, rows.examples["train"])
        examples = {**rows.examples, "train": training_rows}
        resolved = BACKBONES[config.encoder].resolve_config(rows.config)
        data[name] = replace(rows, config=resolved, examples=examples)
    return data


def _start(
    data: Mapping[str, Labelled], config: FinetuneConfig, source: FinetuningSource
) -> tuple[Start, dict[str, Labelled]]:
    """What the run starts from, and the rows that it can learn, whose configs name the heads."""
    # It may depend on the rows: a vocabulary or features are learned from them.
    start = BACKBONES[config.encoder].start(data, config, source)
    configs: dict[str, TaskConfig] = {}
    for name, rows in data.items():
        configs[name] = with_way(rows.config, start.goals)
    if any(map(needs_source, configs.values())) and not can_write(start.shape):
        start = as_writer(start, decoder_layers=config.decoder_layers)
    learned: dict[str, Labelled] = {}
    for name, rows in data.items():
        with_head = replace(rows, config=chains.with_head(configs[name], start, config.transfer))
        learned[name] = _check_tokens(name, with_head, start, source=source, max_length=config.max_length)
    return start, learned


def _extension(request: FinetuneRequest, config: FinetuneConfig) -> Extension:
    """What the run does in addition to plain fine-tuning."""
    if config.few.way == "none":
        return request.extension
    if request.extension.record():
        raise BadConfig("few.way goes with plain fine-tuning, not with a method of compression.")
    if config.few.way == "contrast":
        return ContrastExtension(config.few)
    return FewExtension(config.few)


def _saved_run(folder: RunFolder, request: FinetuneRequest) -> tuple[FinetuningSource, FinetuneConfig]:
    """Source and numbers of a run that is resumed; raises if the request differs from them."""
    source = folder.read_source(FinetuningSource)
    config = from_dict(FinetuneConfig, load_toml(folder.config_path))
    _refuse_other_source(folder, source, request, config.tasks)
    if config.compression and not request.extension.record():
        raise BadConfig(f"{folder.path} is a part of a compression; resume it with `firth compress`.")
    if _with_changes(config, request.changes) != config or config.compression != request.extension.record():
        raise folder.refuse_other_numbers()
    return source, config


def _read_task(name: str, task_config: TaskConfig, source: FinetuningSource, config: FinetuneConfig) -> Labelled:
    """The rows of a task; some are held out if there is no dev file."""
    files = {part: Path(file.path) for part, file in source.files[name].items()}
    rows = labelled.read(name, task_config, files)
    if not source.skip_bad:
        labelled.refuse_bad(rows, files)
    for part, count in rows.num_skipped.items():
        if count:
            log.info(f"{files[part]}: {counted(count, 'bad row')} skipped.")
    return labelled.hold_out(name, rows, rate=config.held_out_rate, seed=config.train.seed)


def _check_tokens(name: str, data: Labelled, start: Start, *, source: FinetuningSource, max_length: int) -> Labelled:
    """The training rows without those whose tokens the model cannot learn; raises for them if none may be skipped."""
    head = make_head(name, data.config, start.shape, labels=data.labels)
    longest = max_length or start.shape.max_positions
    found = list(head.token_problems(data.examples["train"], start.tokenizer, max_length=longest))
    if not found:
        return data
    checked = labelled.with_problems(data, "train", found)
    path = source.files[name]["train"].path
    if not source.skip_bad:
        labelled.refuse_bad(checked, {"train": Path(path)})
    log.info(f"{path}: {counted(len(found), 'row')} skipped that the model cannot learn, such as row {found[0].row}.")
    if not checked.examples["train"]:
        raise BadInput(f"{path}: no row is left to use ({found[0].what} in row {found[0].row}).")
    return checked


def _refuse_model_and_several_tasks(model: str, data: Mapping[str, Labelled]) -> None:
    if model:
        raise BadConfig(f"A bag reads features or words, not {Path(model).name}; leave one of the two out.")
    if len(data) > 1:
        raise BadConfig("A bag learns one task at a time.")


def _report_findings(name: str, rows: Labelled) -> None:
    """Warns about what is odd in the rows; raises if the figure to pick epochs by does not exist."""
    findings = checking.inspect(name, rows)
    main = findings["main"]
    figures = findings["parts"]["dev"]["baseline"]
    if main not in figures:
        raise BadConfig(f"{name} has no figure '{main}' to pick epochs on; here it has {', '.join(figures)}.")
    for part, found in findings["parts"].items():
        if part == "dev" and rows.learned_from:
            # The training rows again.
            continue
        # Bad rows were refused or counted before.
        found["bad"] = []
        for line in checking.warnings(part, found):
            log.warning(f"{name}, {part}: {line.removeprefix('Warning: ')}")


# The numbers


def first_config(request: FinetuneRequest) -> FinetuneConfig:
    """The config before the data are read: enough to read them."""
    tasks: dict[str, TaskConfig] = {}
    for task in request.tasks:
        _refuse_settings(request.options, task)
        name = task
        if task in tasks:
            num_before = sum(other.partition("-")[0] == task for other in tasks)
            name = f"{task}-{num_before + 1}"
        tasks[name] = make_config(task, request.options)
    if any(change.startswith("compression") for change in request.changes):
        raise BadConfig("Methods of compression and their numbers are options of `firth compress`.")
    config = FinetuneConfig(tasks=tasks, compression=request.extension.record())
    if not request.model and tasks:
        # Without a model, the first task says what it is learned by.
        first = next(iter(tasks))
        config = replace(config, encoder=resolve(first).new_backbone)
    return _with_changes(config, request.changes)


def _refuse_settings(options: Mapping[str, object], task: str) -> None:
    """Raises for a setting of the run among the options of a task."""
    for name, value in options.items():
        if has_field(FinetuneConfig, name) and not has_field(resolve(task).Config, name):
            raise BadConfig(f"{name} is a setting of the run, not of the task; give it as changes=['{name}={value}'].")


def _with_changes(config: FinetuneConfig, changes: Iterable[str]) -> FinetuneConfig:
    """The config with `key=value` changes; `pooling=mean` is `tasks.compare.pooling=mean` if only that task has it."""
    full: list[str] = []
    encoder: str = config.encoder
    for change in changes:
        if change.startswith("encoder="):
            encoder = change.removeprefix("encoder=")
        key = change.partition("=")[0]
        owners = [name for name, task_config in config.tasks.items() if hasattr(task_config, key)]
        # A field of the run itself comes before one of a task.
        is_short = len(owners) == 1 and not hasattr(config, key)
        full.append(f"tasks.{owners[0]}.{change}" if is_short else change)
    unused = [part for part, owner in PARTS_OF_ENCODERS.items() if owner != encoder]
    for change in full:
        part = change.partition(".")[0]
        if part in unused:
            raise BadConfig(f"'{change}' is for encoder={PARTS_OF_ENCODERS[part]}; this run has encoder={encoder}.")
    changed = override(config, full, unused=unused)
    if not changed.epochs and any(change.startswith("epochs=") for change in full):
        raise BadConfig("epochs must be above 0; leave it out for the usual number.")
    return changed


def _resolve_config(
    config: FinetuneConfig, data: Mapping[str, Labelled], start: Start, request: FinetuneRequest
) -> FinetuneConfig:
    """The config with steps, evaluations and rate worked out; the user's changes take precedence."""
    num_batches = 0
    for rows in data.values():
        num_batches += math.ceil(len(rows.examples["train"]) / config.batch_size)
    steps_of_epoch = num_batches / config.train.accumulate
    # 0: not given.
    epochs = config.epochs or BACKBONES[config.encoder].epochs or usual_epochs(steps_of_epoch)
    optimizer = usual_optimizer(start, config)
    layer_decay = config.transfer.layer_decay or usual_layer_decay(start, optimizer)
    rate = usual_rate(start, config.transfer, optimizer, steps=epochs * steps_of_epoch)
    optim = replace(config.train.optim, optimizer=optimizer, rate=rate)
    if optimizer == "muon":
        optim = replace(optim, adamw_share=MUON_ADAMW_SHARE)
    resolved = replace(
        config,
        epochs=epochs,
        transfer=replace(config.transfer, layer_decay=layer_decay),
        train=resolve_train(replace(config.train, optim=optim), epochs, steps_of_epoch),
        tasks={name: rows.config for name, rows in data.items()},
    )
    # Applied again, because a changed rate or number of steps was just overwritten.
    resolved = _with_changes(resolved, request.changes)
    positions = start.shape.max_positions
    if resolved.max_length and not 8 <= resolved.max_length <= positions:
        raise BadConfig(f"max_length={resolved.max_length} must be at least 8 and at most the model's {positions}.")
    return resolved


# What the run is made from


def _source(request: FinetuneRequest) -> FinetuningSource:
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


def _with_model(source: FinetuningSource, model: Path) -> FinetuningSource:
    path = str(model.resolve())
    return replace(source, model=path, random=False, model_sha256=model_sha256(path))


def _source_file(name: str, config: TaskConfig, path: Path) -> SourceFile:
    for file in resolve(name).reader(config).files(path):
        if not file.exists():
            raise BadInput(f"{file} does not exist.")
        if not file.is_file():
            raise BadInput(f"{file} is not a file.")
    return SourceFile(str(path.resolve()), labelled.rows_sha256(name, config, path))


def _refuse_other_source(
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
