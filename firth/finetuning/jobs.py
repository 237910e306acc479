"""A request for fine-tuning -> a job: the config resolved, files read and checked, a model to start from.

A run saves its config in `run.toml` and its files with their hashes in `source.json`; resuming reads these.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from firth import models
from firth.checkpoint import make_head
from firth.config import from_dict, load_toml
from firth.console import counted
from firth.errors import BadConfig, BadInput
from firth.finetuning import chains, checking, labelled
from firth.finetuning.backbones import BACKBONES, Backbone
from firth.finetuning.extension import Extension
from firth.finetuning.few.contrast import ContrastExtension
from firth.finetuning.few.extension import FewExtension
from firth.finetuning.job_config import FinetuneRequest, first_config, resolve_config, with_changes
from firth.finetuning.job_source import refuse_other_source, source_of, with_model
from firth.finetuning.labelled import Labelled, texts_of
from firth.finetuning.settings import FinetuneConfig
from firth.finetuning.start import Start
from firth.finetuning.writer_start import as_writer, needs_source, with_way
from firth.run_folder import RunFolder
from firth.run_source import FinetuningSource
from firth.tasks.task import TaskConfig
from firth.tasks.writers import can_write
from firth.train.parallel import chosen_device, micro_batches_of_rank, with_micro_batches

log = logging.getLogger(__name__)

REMEDY = "name a model folder, or start from random weights with `random=True`"
"""If no model was named and none comes with the installation."""


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
        source = source_of(request)
        config = first_config(request)
    backbone = BACKBONES[config.encoder]
    extension = _extension(request, config)
    data = _read_tasks(config, source, extension, report=not resumed)
    if backbone.is_bag:
        _refuse_model_and_several_tasks(source.model, data)
    if not resumed and config.encoder == "model" and not source.model and not request.random:
        source = with_model(source, models.suiting(texts_of(data), remedy=REMEDY))
    start, data = _start(data, config, source)
    device_name = "cpu" if backbone.is_bag else str(chosen_device(device))
    if not resumed:
        config = replace(config, train=with_micro_batches(config.train))
        config = resolve_config(config, data, start, request)
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
    refuse_other_source(folder, source, request, config.tasks)
    if config.compression and not request.extension.record():
        raise BadConfig(f"{folder.path} is a part of a compression; resume it with `firth compress`.")
    if with_changes(config, request.changes) != config or config.compression != request.extension.record():
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
