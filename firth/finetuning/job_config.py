"""A request for fine-tuning -> the numbers of the run: its config before the rows are read, and after."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from firth.config import has_field, override
from firth.errors import BadConfig
from firth.finetuning.backbones import BACKBONES
from firth.finetuning.extension import Extension
from firth.finetuning.labelled import Labelled
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
from firth.tasks import make_config, resolve
from firth.tasks.task import TaskConfig


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
    return with_changes(config, request.changes)


def _refuse_settings(options: Mapping[str, object], task: str) -> None:
    """Raises for a setting of the run among the options of a task."""
    for name, value in options.items():
        if has_field(FinetuneConfig, name) and not has_field(resolve(task).Config, name):
            raise BadConfig(f"{name} is a setting of the run, not of the task; give it as changes=['{name}={value}'].")


def with_changes(config: FinetuneConfig, changes: Iterable[str]) -> FinetuneConfig:
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


def resolve_config(
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
    resolved = with_changes(resolved, request.changes)
    positions = start.shape.max_positions
    if resolved.max_length and not 8 <= resolved.max_length <= positions:
        raise BadConfig(f"max_length={resolved.max_length} must be at least 8 and at most the model's {positions}.")
    return resolved
