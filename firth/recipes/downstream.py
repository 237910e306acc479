"""Whole fine-tuning runs: a model and labelled files in, a fine-tuned, measured and documented model out.

RUN/run.toml holds the numbers, RUN/source.json the files with their hashes, RUN/seed-K each seed's logs, states and best
weights, RUN/results.json all figures. The folder itself becomes the model of the seed that did best on the picking file.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint, make_task, only_task
from firth.config import from_dict, load_toml, override, to_dict, to_toml
from firth.console import say
from firth.data.items import Item, ItemBatches
from firth.encoders.bert import Bert
from firth.errors import BadConfig, BadInput
from firth.files import read_json, sha256, write_bytes, write_json
from firth.nn.features import Features
from firth.recipes import labelled
from firth.recipes.figures import card, summarise
from firth.recipes.labelled import PARTS, Labelled
from firth.recipes.picking import PickingRun, load_best, read_best
from firth.recipes.start import Start, begin, usual_rate
from firth.recipes.transfer import TransferConfig, adapt, rate_share, thaw
from firth.tasks import resolve
from firth.tasks.predicting import predict
from firth.tensors import Encoder, Task
from firth.train.loop import Learner, Progress, TrainConfig, reseed
from firth.train.optim import OptimConfig
from firth.types import Prediction


@dataclass(frozen=True)
class Plan:
    """A fine-tuning run as numbers."""

    tasks: Mapping[str, Any] = field(default_factory=dict, metadata={"table": "firth.tasks"})
    """The tasks, by name, with their configs."""
    epochs: float = 3.0
    """Passes over the training rows."""
    batch_size: int = 32
    """Examples of a step."""
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
    transfer: TransferConfig = field(default_factory=TransferConfig)
    """What of the model learns, and how."""
    train: TrainConfig = field(default_factory=lambda: TrainConfig(compile="no", optim=OptimConfig(warmup_rate=0.1)))
    """The loop and its optimizer; steps and evaluations are worked out from the epochs."""

    def __post_init__(self) -> None:
        if self.epochs <= 0 or self.batch_size < 1 or not 0 < self.held_out_rate < 1:
            raise BadConfig("A run needs epochs above 0, a batch_size of at least 1 and 0 < held_out_rate < 1.")


@dataclass(frozen=True)
class Asked:
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
class Job:
    """A run with its data read and its numbers settled."""

    plan: Plan
    source: Mapping[str, Any]
    data: Mapping[str, Labelled]
    start: Start
    device: str

    @property
    def max_length(self) -> int:
        return self.plan.max_length or self.start.encoder_config.max_positions


def finetune(out: Path, asked: Asked, *, resume: bool = False, device: str | None = None) -> dict[str, Any]:
    """Trains, picks, measures and writes; gives what `results.json` holds."""
    job = _job(out, asked, resume=resume, device=device)
    if resume and (out / "results.json").exists() and (out / "config.json").exists():
        return dict(read_json(out / "results.json"))
    write_json(out / "source.json", job.source)
    write_bytes(out / "run.toml", (to_toml(to_dict(job.plan)) + "\n").encode())
    results = []
    for seed in range(job.plan.train.seed, job.plan.train.seed + job.source["seeds"]):
        results.append(_one_seed(job, out / f"seed-{seed}", seed, resume=resume))
        _keep_only_best(out, results)
    best = max(results, key=_picked)
    learner, encoder = _learner(job, best["seed"])
    load_best(out / f"seed-{best['seed']}", learner)
    tasks = _tuned(learner, best)
    summary = summarise(job.data, tasks, results, best, predictions=_predictions(job, encoder, tasks), source=job.source)
    _save(out, job, encoder, tasks, summary)
    write_json(out / "results.json", summary)
    (out / f"seed-{best['seed']}" / "best.safetensors").unlink()
    return summary


def evaluate(model: Path, data: Path) -> dict[str, Any]:
    """A fine-tuned model's figures on a labelled file, read as its training files were."""
    checkpoint = checkpoints.load(model)
    name, task = only_task(checkpoint, model)
    read = labelled.read(name, task.config, {"data": data}, labels=task.labels)
    labelled.refuse_bad(read, {"data": data})
    length = int(checkpoint.info.get("max_length", checkpoint.encoder.config.max_positions))
    items = task.encode(read.examples["data"], checkpoint.tokenizer, max_length=length, training=False)
    predictions = predict(checkpoint.reader or checkpoint.encoder, task, items)
    return {"rows": len(items), **task.score(predictions, read.examples["data"])}


# Settling what to do


def _job(out: Path, asked: Asked, *, resume: bool, device: str | None) -> Job:
    saved = out / "run.toml"
    if out.exists() and not resume:
        raise BadInput(f"{out} already exists; continue it with --resume or choose another --out.")
    if resume and not saved.exists():
        raise BadInput(f"{out} holds no fine-tuning run to resume.")
    source = read_json(out / "source.json") if resume else _source(asked)
    if resume:
        _same_source(out, source, asked)
    plan = from_dict(Plan, load_toml(saved)) if resume else _first_plan(asked)
    if resume and override(plan, asked.changes) != plan:
        raise BadConfig(f"--resume continues the run as {saved} says; leave out options that differ from it.")
    files = {name: {part: Path(row["path"]) for part, row in parts.items()} for name, parts in source["files"].items()}
    data = {}
    for name, config in plan.tasks.items():
        read = labelled.read(name, config, files[name])
        if not source["skip_bad"]:
            labelled.refuse_bad(read, files[name])
        for part, count in read.num_skipped.items():
            if count:
                say(f"{files[name][part]}: {count} bad rows skipped.")
        data[name] = labelled.hold_out(read, rate=plan.held_out_rate, seed=plan.train.seed)
    texts = (text for part in data.values() for row in part.examples["train"] for text in row.texts)
    start = begin(source["model"], random=source["random"], texts=texts)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return Job(plan if resume else _settled(plan, data, start, asked), source, data, start, device)


def _first_plan(asked: Asked) -> Plan:
    """The plan before the data are known: enough to read them."""
    tasks: dict[str, Any] = {}
    for task in asked.tasks:
        name = task if task not in tasks else f"{task}-{sum(n.partition('-')[0] == task for n in tasks) + 1}"
        tasks[name] = to_dict(from_dict(resolve(task).Config, asked.options))
    plan = from_dict(Plan, {"tasks": tasks})
    return override(plan, asked.changes)


def _settled(plan: Plan, data: Mapping[str, Labelled], start: Start, asked: Asked) -> Plan:
    """The plan with steps, evaluations and rate worked out; what the person changed stands."""
    counts = [-(-len(part.examples["train"]) // plan.batch_size) for part in data.values()]
    epoch = sum(counts)
    steps = max(1, round(plan.epochs * epoch))
    rate = usual_rate(start, plan.transfer)
    train = replace(
        plan.train,
        steps=steps,
        evaluate_every=min(epoch, steps),
        checkpoint_every=min(epoch, 500),
        optim=replace(plan.train.optim, rate=rate),
    )
    tasks = {name: part.config for name, part in data.items()}
    settled = override(replace(plan, train=train, tasks=tasks), asked.changes)
    positions = start.encoder_config.max_positions
    if settled.max_length and not 8 <= settled.max_length <= positions:
        raise BadConfig(f"max_length={settled.max_length} must be at least 8 and at most the model's {positions}.")
    return settled


def _source(asked: Asked) -> dict[str, Any]:
    """What a run is made from: model and files with their hashes."""
    if not asked.tasks or not asked.files.get("train"):
        raise BadConfig("Fine-tuning needs a --task and a --train file.")
    if asked.seeds < 1:
        raise BadConfig(f"--seeds must be at least 1; it is {asked.seeds}.")
    files: dict[str, Any] = {}
    for part in PARTS:
        paths = asked.files.get(part, ())
        if paths and len(paths) != len(asked.tasks):
            raise BadConfig(f"There are {len(asked.tasks)} --task but {len(paths)} --{part}; give one for each task.")
        for index, path in enumerate(paths):
            if not Path(path).is_file():
                raise BadInput(f"{path} does not exist." if not Path(path).exists() else f"{path} is not a file.")
            row = {"path": str(Path(path).resolve()), "sha256": sha256(Path(path))}
            files.setdefault(str(index), {})[part] = row
    names = list(_first_plan(asked).tasks)
    model = str(Path(asked.model).resolve()) if asked.model else ""
    return {
        "model": model,
        "random": asked.random or not model,
        "seeds": asked.seeds,
        "skip_bad": asked.skip_bad,
        "files": {name: files[str(index)] for index, name in enumerate(names)},
    }


def _same_source(out: Path, saved: Mapping[str, Any], asked: Asked) -> None:
    for parts in saved["files"].values():
        for row in parts.values():
            if not Path(row["path"]).exists() or sha256(Path(row["path"])) != row["sha256"]:
                raise BadInput(f"{row['path']} is not as it was when {out} began; resume needs the same data.")
    if asked.tasks and list(_first_plan(asked).tasks) != list(saved["files"]):
        raise BadConfig(f"{out} is a run of {', '.join(saved['files'])}; leave out --task to resume it.")


# One seed


def _one_seed(job: Job, folder: Path, seed: int, *, resume: bool) -> dict[str, Any]:
    """Trains with one seed, or reads what an earlier go wrote; gives its figures."""
    if (folder / "result.json").exists():
        return dict(read_json(folder / "result.json"))
    folder.mkdir(parents=True, exist_ok=True)
    plan, learner_encoder = job.plan, _learner(job, seed)
    learner, encoder = learner_encoder
    tasks: dict[str, Task] = dict(learner.goals.items())  # type: ignore[arg-type]
    items = {part: _items(job, tasks, part) for part in PARTS}
    _tell_of_cuts(items["train"])
    for name, task in tasks.items():
        task.weigh(job.data[name].examples["train"])
    batches = ItemBatches(tasks, items["train"], plan.batch_size, seed, plan.alpha)
    layers = job.start.encoder_config.num_layers
    run = PickingRun(
        folder,
        learner,
        packs=batches,
        measure=partial(_measure, job, encoder, tasks, items["dev"]),
        config=replace(plan.train, seed=seed),
        resume=resume,
        label=f"fine-tuning, seed {seed}",
        scale=partial(rate_share, num_layers=layers, decay=plan.transfer.layer_decay),
        patience=plan.patience,
        keep_last=plan.pick == "last",
        facts=lambda: {"configs": {name: to_dict(task.config) for name, task in tasks.items()}},
        before_step=partial(_thaw, job, encoder, batches),
    )
    run.go()
    best = read_best(folder)
    assert best is not None
    load_best(folder, learner)
    tasks = _tuned(learner, best)
    result = {"seed": seed, **best, "epochs": best["step"] / batches.num_packs(0)}
    result["test"] = {name: _scores(job, encoder, {name: tasks[name]}, "test", items["test"][name]) for name in items["test"]}
    write_json(folder / "result.json", result)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return result


def _learner(job: Job, seed: int) -> tuple[Learner, Encoder]:
    """Model and heads as a seed begins."""
    reseed(seed, "initial weights")
    bert = job.start.encoder(job.plan.train.precision, job.device)
    encoder = adapt(bert, job.plan.transfer)
    tasks = {name: make_task(name, job.plan.tasks[name], encoder, labels=part.labels) for name, part in job.data.items()}
    return Learner(encoder, tasks).to(job.device), encoder


def _items(job: Job, tasks: Mapping[str, Task], part: str) -> dict[str, Sequence[Item]]:
    return {
        name: task.encode(
            job.data[name].examples[part], job.start.tokenizer, max_length=job.max_length, training=part == "train"
        )
        for name, task in tasks.items()
        if part in job.data[name].examples
    }


def _measure(job: Job, encoder: Encoder, tasks: Mapping[str, Task], items: Mapping[str, Sequence[Item]]) -> dict[str, float]:
    """Figures on the picking rows; `picked` is the mean of the tasks' main ones."""
    figures: dict[str, float] = {}
    mains = []
    for name, task in tasks.items():
        rows = job.data[name].examples["dev"]
        scores = task.score(task.tune(predict(encoder, task, items[name]), rows), rows)
        mains.append(scores[task.main])
        figures |= {f"{name}_{key}" if len(tasks) > 1 else key: value for key, value in scores.items()}
    return {"picked": sum(mains) / len(mains), **figures}


def _scores(job: Job, encoder: Encoder, tasks: Mapping[str, Task], part: str, items: Sequence[Item]) -> dict[str, float]:
    ((name, task),) = tasks.items()
    return task.score(predict(encoder, task, items), job.data[name].examples[part])


def _thaw(job: Job, encoder: Encoder, batches: ItemBatches, progress: Progress) -> None:
    every = job.plan.transfer.unfreeze_every
    if every:
        done = progress.step * job.plan.train.accumulate / batches.num_packs(0)
        thaw(encoder, num_layers=job.start.encoder_config.num_layers, epochs_done=done, every=every)


def _tuned(learner: Learner, best: Mapping[str, Any]) -> dict[str, Task]:
    """The tasks with what was found on the picking rows along with the best weights."""
    tasks: dict[str, Task] = dict(learner.goals.items())  # type: ignore[arg-type]
    for name, config in best["configs"].items():
        tasks[name].config = from_dict(resolve(name).Config, config)
    return tasks


def _tell_of_cuts(items: Mapping[str, Sequence[Item]]) -> None:
    for name, rows in items.items():
        found = labelled.sizes(rows)
        if found["cut_rows"]:
            say(
                f"{name}: {found['cut_share']:.2%} of the training tokens are cut ({found['cut_rows']:,.0f} of "
                f"{len(rows):,} rows are longer than the model reads; the longest has {found['longest']:,} tokens)."
            )


# All seeds


def _picked(result: Mapping[str, Any]) -> float:
    value = result["value"]
    return float("-inf") if value is None or value != value else float(value)


def _keep_only_best(out: Path, results: list[dict[str, Any]]) -> None:
    best = max(results, key=_picked)
    for result in results:
        if result is not best:
            (out / f"seed-{result['seed']}" / "best.safetensors").unlink(missing_ok=True)


def _predictions(job: Job, encoder: Encoder, tasks: Mapping[str, Task]) -> dict[str, dict[str, list[Prediction]]]:
    """Of the kept model, by task and part."""
    return {
        part: {name: predict(encoder, tasks[name], items) for name, items in _items(job, tasks, part).items()}
        for part in PARTS
        if part != "train"
    }


def _save(out: Path, job: Job, encoder: Encoder, tasks: Mapping[str, Task], summary: Mapping[str, Any]) -> None:
    features = encoder if isinstance(encoder, Features) else None
    bert = encoder.encoder if features else encoder
    assert isinstance(bert, Bert)
    info = {
        "fine_tuned_from": Path(job.source["model"]).name or "random weights",
        "max_length": job.max_length,
        "figures": summary["tasks"],
    }
    made = Checkpoint(
        bert.cpu().eval(),
        job.start.goals if features else {},
        job.start.tokenizer,
        info=info,
        tasks={name: task.cpu().eval() for name, task in tasks.items()},
        reader=features,
        adapter_width=job.plan.transfer.adapter_width if job.plan.transfer.mode == "adapters" else 0,
    )
    checkpoints.save(out, made, text=card(made, summary))
