"""What a person asks of fine-tuning -> a job: numbers settled, files read and checked, a model to start from.

A run remembers its numbers in `run.toml` and its files with their hashes in `source.json`; resuming reads these.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from firth.config import from_dict, load_toml, override, to_dict
from firth.encoders.tables import StaticConfig
from firth.errors import BadConfig, BadInput
from firth.files import sha256
from firth.finetuning import chains, checking, labelled
from firth.finetuning.backbones import KINDS
from firth.finetuning.bags import FastTextConfig
from firth.finetuning.labelled import PARTS, Labelled
from firth.finetuning.start import Start, usual_rate
from firth.finetuning.transfer import TransferConfig
from firth.run_folder import FinetuningSource, RunFolder, SourceFile, model_sha256
from firth.tasks import resolve
from firth.tokenizers.templates import Templates
from firth.train.parallel import chosen_device
from firth.train.settings import OptimConfig, TrainConfig

log = logging.getLogger(__name__)

USUAL_EPOCHS, MOST_EPOCHS, FEWEST_STEPS = 3.0, 20.0, 150
"""How long to train when nobody says: three passes, more where three would be a handful of steps."""


@dataclass(frozen=True)
class FinetuneConfig:
    """A fine-tuning run as numbers."""

    tasks: Mapping[str, Any] = field(default_factory=dict, metadata={"table": "firth.tasks"})
    """The tasks, by name, with their configs."""
    epochs: float = 0.0
    """Passes over the training rows; 0: 3, or for few rows as many as make 150 steps, at most 20."""
    batch_size: int = 32
    """Examples of a batch; a step takes train.accumulate batches."""
    max_length: int = 0
    """Longest sequence, special tokens included; 0 is as long as the model reads."""
    held_out_rate: float = 0.1
    """Share of the training rows that take the place of a missing dev file."""
    patience: int = 0
    """Stop after this many evaluations without a better figure; 0 never stops early."""
    pick: Literal["best", "last"] = "best"
    """Which epoch's weights to keep: those best on the picking file, or the last."""
    alpha: float = 0.5
    """With several tasks, each is drawn in proportion to its size to this power."""
    encoder: Literal["model", "bag", "static", "fasttext"] = "model"
    """What reads the rows: the model (or random weights of its kind), a bag of features, new vectors of words or
    characters, or fastText's bag of words."""
    static: StaticConfig = field(default_factory=lambda: StaticConfig(init_std=0.1))
    """The vectors, with encoder=static; their number is that of the units of the training rows."""
    fasttext: FastTextConfig = field(default_factory=FastTextConfig)
    """Its numbers, with encoder=fasttext."""
    templates: Templates.Config = field(default_factory=Templates.Config)
    """Which features, with encoder=bag."""
    transfer: TransferConfig = field(default_factory=TransferConfig)
    """What of the model learns, and how."""
    train: TrainConfig = field(default_factory=lambda: TrainConfig(compile="no", optim=OptimConfig(warmup_rate=0.1)))
    """The loop and its optimizer; steps and evaluations are worked out from the epochs."""

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch_size < 1 or not 0 < self.held_out_rate < 1:
            raise BadConfig("A run needs epochs of at least 0, a batch_size of at least 1 and 0 < held_out_rate < 1.")


@dataclass(frozen=True)
class FinetuneRequest:
    """What a person asked for."""

    model: str = ""
    tasks: tuple[str, ...] = ()
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Paths by part (train, dev, test), one for each task or none."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the tasks' configs, such as preset and columns."""
    seeds: int = 1
    random: bool = False
    skip_bad: bool = False
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FinetuneJob:
    """A run with its data read and its numbers settled."""

    plan: FinetuneConfig
    source: FinetuningSource
    data: Mapping[str, Labelled]
    start: Start
    device: str

    @property
    def max_length(self) -> int:
        return self.plan.max_length or self.start.shape.max_positions


def resolve_job(folder: RunFolder, asked: FinetuneRequest, *, device: str | None) -> FinetuneJob:
    resumed = folder.begun
    if resumed:
        source = folder.read_source(FinetuningSource)
        _same_source(folder, source, asked)
        plan = from_dict(FinetuneConfig, load_toml(folder.config_path))
        if _changed(plan, asked.changes) != plan:
            raise folder.refuse_other_numbers()
    else:
        source = _source(asked)
        plan = _first_plan(asked)
    kind = KINDS[plan.encoder]
    data = {}
    for name, config in plan.tasks.items():
        files = {part: Path(file.path) for part, file in source.files[name].items()}
        read = labelled.read(name, config, files)
        if not source.skip_bad:
            labelled.refuse_bad(read, files)
        for part, count in read.num_skipped.items():
            if count:
                log.info(f"{files[part]}: {count} bad row{'s' * (count > 1)} skipped.")
        data[name] = labelled.hold_out(name, read, rate=plan.held_out_rate, seed=plan.train.seed)
        if not resumed:
            _look_at(name, data[name])
        data[name] = replace(data[name], config=kind.resolve_config(data[name].config))
    if kind.alone:
        _refuse_company(source.model, data)
    start = kind.begin(data, plan, source)
    data = {
        name: replace(part, config=chains.with_head(part.config, start, plan.transfer)) for name, part in data.items()
    }
    place = "cpu" if kind.alone else str(chosen_device(device))
    return FinetuneJob(plan if resumed else _settled(plan, data, start, asked), source, data, start, place)


def _refuse_company(model: str, data: Mapping[str, Labelled]) -> None:
    if model:
        raise BadConfig(f"A bag reads features or words, not {Path(model).name}; leave one of the two out.")
    if len(data) > 1:
        raise BadConfig("A bag learns one task at a time.")


def _look_at(name: str, data: Labelled) -> None:
    """Tells what is odd about the rows; raises where the figure to pick epochs on does not exist."""
    found = checking.inspect(name, data)
    figures = found["parts"]["dev"]["baseline"]
    if found["main"] not in figures:
        raise BadConfig(f"{name} has no figure '{found['main']}' to pick epochs on; here it has {', '.join(figures)}.")
    for part, row in found["parts"].items():
        for line in checking.warnings(part, {**row, "bad": []}):
            log.warning(f"{name}, {part}: {line.removeprefix('Warning: ')}")


def _first_plan(asked: FinetuneRequest) -> FinetuneConfig:
    """The plan before the data are known: enough to read them."""
    tasks: dict[str, Any] = {}
    for task in asked.tasks:
        name = task if task not in tasks else f"{task}-{sum(n.partition('-')[0] == task for n in tasks) + 1}"
        tasks[name] = to_dict(from_dict(resolve(task).Config, asked.options))
    return _changed(from_dict(FinetuneConfig, {"tasks": tasks}), asked.changes)


def _changed(plan: FinetuneConfig, changes: Iterable[str]) -> FinetuneConfig:
    """The plan with a person's changes; `pooling=mean` is `tasks.compare.pooling=mean` where only that task has it."""
    full = []
    for change in changes:
        owners = [name for name, config in plan.tasks.items() if hasattr(config, change.partition("=")[0])]
        short = len(owners) == 1 and not hasattr(plan, change.partition("=")[0])
        full.append(f"tasks.{owners[0]}.{change}" if short else change)
    return override(plan, full)


def _settled(
    plan: FinetuneConfig, data: Mapping[str, Labelled], start: Start, asked: FinetuneRequest
) -> FinetuneConfig:
    """The plan with steps, evaluations and rate worked out; what the person changed stands."""
    counts = [-(-len(part.examples["train"]) // plan.batch_size) for part in data.values()]
    steps_of_pass = sum(counts) / plan.train.accumulate
    epoch = max(1, round(steps_of_pass))
    epochs = (
        plan.epochs
        or KINDS[plan.encoder].epochs
        or min(MOST_EPOCHS, max(USUAL_EPOCHS, math.ceil(FEWEST_STEPS / steps_of_pass)))
    )
    steps = max(1, round(epochs * steps_of_pass))
    rate = usual_rate(start, plan.transfer)
    train = replace(
        plan.train,
        steps=steps,
        evaluate_every=min(epoch, steps),
        checkpoint_every=min(epoch, 500),
        log_every=max(1, min(20, steps // 50)),
        optim=replace(plan.train.optim, rate=rate),
    )
    tasks = {name: part.config for name, part in data.items()}
    settled = _changed(replace(plan, epochs=epochs, train=train, tasks=tasks), asked.changes)
    positions = start.shape.max_positions
    if settled.max_length and not 8 <= settled.max_length <= positions:
        raise BadConfig(f"max_length={settled.max_length} must be at least 8 and at most the model's {positions}.")
    return settled


def _source(asked: FinetuneRequest) -> FinetuningSource:
    """What a run is made from: model and files with their hashes."""
    if not asked.tasks or not asked.files.get("train"):
        raise BadConfig("Fine-tuning needs a `task=` and a `train=` file.")
    if asked.seeds < 1:
        raise BadConfig(f"`seeds=` must be at least 1; it is {asked.seeds}.")
    names = list(_first_plan(asked).tasks)
    files: dict[str, dict[str, SourceFile]] = {name: {} for name in names}
    for part in PARTS:
        paths = asked.files.get(part, ())
        if paths and len(paths) != len(asked.tasks):
            raise BadConfig(f"There are {len(asked.tasks)} `task=` but {len(paths)} `{part}=`; give one for each task.")
        for name, path in zip(names, paths, strict=False):
            if not Path(path).is_file():
                raise BadInput(f"{path} does not exist." if not Path(path).exists() else f"{path} is not a file.")
            files[name][part] = SourceFile(str(Path(path).resolve()), sha256(Path(path)))
    model = str(Path(asked.model).resolve()) if asked.model else ""
    return FinetuningSource(
        model=model,
        random=asked.random or not model,
        seeds=asked.seeds,
        skip_bad=asked.skip_bad,
        files=files,
        model_sha256=model_sha256(model),
    )


def _same_source(folder: RunFolder, saved: FinetuningSource, asked: FinetuneRequest) -> None:
    """Raises where what is given or found now is not what the run began with."""
    out = folder.path
    recorded = [file for parts in saved.files.values() for file in parts.values()]
    for file in recorded:
        path = Path(file.path)
        if not path.exists() or sha256(path) != file.sha256:
            raise BadInput(f"{path} is not as it was when {out} began; resume needs the same data.")
    if asked.model and str(Path(asked.model).resolve()) != saved.model:
        raise BadInput(f"{out} did not start from {asked.model}; leave the model out to resume it.")
    folder.refuse_changed_model(saved.model, saved.model_sha256)
    given = {str(Path(path).resolve()) for paths in asked.files.values() for path in paths}
    strange = given - {file.path for file in recorded}
    if strange:
        raise BadInput(f"{out} was not begun with {min(strange)}; leave the files out to resume it.")
    if asked.tasks and list(_first_plan(asked).tasks) != list(saved.files):
        raise BadConfig(f"{out} is a run of {', '.join(saved.files)}; leave out `task=` to resume it.")
    other = [
        ("`seeds=`", asked.seeds not in (1, saved.seeds)),
        ("`random=True`", asked.random and not saved.random),
        ("`skip_bad=True`", asked.skip_bad and not saved.skip_bad),
    ]
    if changed := next((name for name, is_other in other if is_other), None):
        raise BadConfig(f"{out} was begun with another {changed}; leave it out to resume it, or choose another `out=`.")
