"""Whole fine-tuning runs: a model and labelled files in, a fine-tuned, measured and documented model out.

RUN/run.toml holds the numbers, RUN/source.json the files with their hashes, RUN/seed-K each seed's logs, states and
best weights, RUN/results.json all figures. The folder itself becomes the model of the seed that did best on the file
for picking.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint, Embedding, make_head
from firth.config import from_dict, to_dict
from firth.data.items import Item, ItemBatches
from firth.files import read_json, write_json
from firth.finetuning import labelled
from firth.finetuning.auxiliary import beside, kept_heads
from firth.finetuning.backbones import KINDS
from firth.finetuning.collapse import same_answer, say_collapsed
from firth.finetuning.figures import card, summarise
from firth.finetuning.jobs import FinetuneJob, FinetuneRequest, resolve_job
from firth.finetuning.labelled import PARTS
from firth.finetuning.picking import BEST, PickingRun, keep, load_best, read_best
from firth.finetuning.transfer import adapt, thaw
from firth.nn.features import Features
from firth.run_folder import RESULTS, RunFolder
from firth.tasks import resolve, scorer_of
from firth.tasks.predicting import predict
from firth.tasks.task import Head
from firth.tensors import Encoder
from firth.train.layer_rates import rate_share
from firth.train.loop import Learner, Progress
from firth.train.parallel import reseed
from firth.types import Prediction


def finetune(folder: RunFolder, asked: FinetuneRequest, *, device: str | None = None) -> dict[str, Any]:
    """Trains, picks, measures and writes; gives what `results.json` holds."""
    out = folder.path
    job = resolve_job(folder, asked, device=device)
    if folder.finished:
        folder.say_finished()
        return dict(read_json(out / RESULTS))
    _rehearse(job)
    folder.begin(job.source, job.plan, leftovers=[RESULTS])
    folder.remove_leftovers(("result.json", "best.json", BEST), below="seed-*")
    results = []
    first_seed = job.plan.train.seed
    for seed in range(first_seed, first_seed + job.source.seeds):
        results.append(_one_seed(job, folder, seed))
        _keep_only_best(out, results)
    best = max(results, key=_picked)
    learner, encoder = _learner(job, best["seed"])
    load_best(out / f"seed-{best['seed']}", learner)
    tasks = _tuned(learner, best)
    for name, task in tasks.items():
        task.before_training(job.data[name].examples["train"])
    summary = summarise(
        job.data, tasks, results, best, predictions=_predictions(job, encoder, tasks), source=job.source
    )
    _save(out, job, learner, tasks, summary)
    write_json(out / RESULTS, summary)
    (out / f"seed-{best['seed']}" / BEST).unlink()
    return summary


# One seed


def _rehearse(job: FinetuneJob) -> None:
    """Builds everything once and encodes one row, so that what fails does so before anything is written."""
    learner, _ = _learner(job, job.plan.train.seed)
    for name, task in _tuned(learner, {"configs": {}}).items():
        rows = job.data[name].examples["train"]
        task.before_training(rows)
        task.batch(task.encode(rows[:1], job.start.tokenizer, max_length=job.max_length, training=True))


def _one_seed(job: FinetuneJob, run_folder: RunFolder, seed: int) -> dict[str, Any]:
    """Trains with one seed, or reads what an earlier go wrote; gives its figures."""
    folder = run_folder.path / f"seed-{seed}"
    if (folder / "result.json").exists():
        return dict(read_json(folder / "result.json"))
    folder.mkdir(parents=True, exist_ok=True)
    plan, learner_encoder = job.plan, _learner(job, seed)
    learner, encoder = learner_encoder
    tasks: dict[str, Head] = dict(learner.goals.items())  # type: ignore[arg-type]
    items = {part: _items(job, tasks, part) for part in PARTS}
    for name, task in tasks.items():
        labelled.tell_of_cuts(f"{name}, train", items["train"][name])
        task.before_training(job.data[name].examples["train"])
    if any(map(KINDS[plan.encoder].solves, tasks.values())):
        return _solved(job, folder, seed, learner=learner, items=items)
    batches = ItemBatches(tasks, items["train"], plan.batch_size, seed, plan.alpha)
    layers = job.start.num_blocks
    collapsed: dict[str, str] = {}
    run = PickingRun(
        folder,
        learner,
        packs=batches,
        measure=partial(_measure, job, encoder, tasks, items["dev"], collapsed),
        config=replace(plan.train, seed=seed),
        resume=run_folder.resume,
        interrupts=run_folder.interrupts,
        label=f"fine-tuning, seed {seed}",
        scale=partial(rate_share, num_layers=layers, decay=plan.transfer.layer_decay),
        patience=plan.patience,
        keep_last=plan.pick == "last",
        facts=lambda: {
            "configs": {name: to_dict(task.config) for name, task in tasks.items()},
            "collapsed": dict(collapsed),
        },
        before_step=partial(_thaw, job, encoder, batches),
    )
    run.go()
    best = read_best(folder)
    assert best is not None
    load_best(folder, learner)
    say_collapsed(seed, best, rate=plan.train.optim.rate, epochs=plan.epochs)
    tasks = _tuned(learner, best)
    result = {"seed": seed, **best, "epochs": best["step"] * plan.train.accumulate / batches.num_packs(0)}
    result["test"] = {
        name: _scores(job, encoder, {name: tasks[name]}, "test", items["test"][name]) for name in items["test"]
    }
    write_json(folder / "result.json", result)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return result


def _solved(
    job: FinetuneJob, folder: Path, seed: int, *, learner: Learner, items: dict[str, dict[str, Sequence[Item]]]
) -> dict[str, Any]:
    """The figures of a task whose weights are found without the loop."""
    tasks: dict[str, Head] = dict(learner.goals.items())  # type: ignore[arg-type]
    ((name, task),) = tasks.items()
    solve = KINDS[job.plan.encoder].solve
    assert solve is not None
    training_rows = items.pop("train")[name]  # not needed afterwards, and large
    solve(task, learner.encoder, training_rows, job, seed)
    values = _measure(job, learner.encoder, tasks, items["dev"], {})
    keep(folder, learner, step=0, values=values, facts={"configs": {name: to_dict(task.config)}})
    best = read_best(folder)
    assert best is not None
    test = {part: _scores(job, learner.encoder, tasks, "test", rows) for part, rows in items["test"].items()}
    result = {"seed": seed, **best, "epochs": 0.0, "test": test}
    write_json(folder / "result.json", result)
    return result


def _learner(job: FinetuneJob, seed: int) -> tuple[Learner, Encoder]:
    """Model and heads as a seed begins."""
    reseed(seed, "initial weights")
    bert = job.start.encoder(job.plan.train.precision, job.device)
    encoder = adapt(bert, job.plan.transfer)
    tasks = {
        name: make_head(name, job.plan.tasks[name], encoder, labels=part.labels) for name, part in job.data.items()
    }
    more = beside(job.start, encoder, job.plan.transfer)
    return Learner(encoder, tasks, auxiliary=more).to(job.device), encoder


def _items(job: FinetuneJob, tasks: Mapping[str, Head], part: str) -> dict[str, Sequence[Item]]:
    return {
        name: task.encode(
            job.data[name].examples[part], job.start.tokenizer, max_length=job.max_length, training=part == "train"
        )
        for name, task in tasks.items()
        if part in job.data[name].examples
    }


def _measure(
    job: FinetuneJob,
    encoder: Encoder,
    tasks: Mapping[str, Head],
    items: Mapping[str, Sequence[Item]],
    collapsed: dict[str, str],
) -> dict[str, float]:
    """Figures on the picking rows; `picked` is the mean of the tasks' main ones. Leaves in `collapsed` the tasks that
    gave all rows the same answer."""
    figures: dict[str, float] = {}
    mains = []
    for name, task in tasks.items():
        rows = job.data[name].examples["dev"]
        predictions = task.tune(predict(encoder, task, items[name]), rows)
        scorer = scorer_of(task)
        scores = scorer.score(predictions, rows)
        collapsed.pop(name, None)
        if (answer := same_answer(predictions, rows)) is not None:
            collapsed[name] = answer
        mains.append(scores[scorer.main_metric])
        figures |= {f"{name}_{key}" if len(tasks) > 1 else key: value for key, value in scores.items()}
    return {"picked": sum(mains) / len(mains), **figures}


def _scores(
    job: FinetuneJob, encoder: Encoder, tasks: Mapping[str, Head], part: str, items: Sequence[Item]
) -> dict[str, float]:
    ((name, task),) = tasks.items()
    return scorer_of(task).score(predict(encoder, task, items), job.data[name].examples[part])


def _thaw(job: FinetuneJob, encoder: Encoder, batches: ItemBatches, progress: Progress) -> None:
    every = job.plan.transfer.unfreeze_every
    if every:
        done = progress.step * job.plan.train.accumulate / batches.num_packs(0)
        thaw(encoder, num_layers=job.start.num_blocks, epochs_done=done, every=every)


def _tuned(learner: Learner, best: Mapping[str, Any]) -> dict[str, Head]:
    """The tasks with what was found on the picking rows along with the best weights."""
    tasks: dict[str, Head] = dict(learner.goals.items())  # type: ignore[arg-type]
    for name, config in best["configs"].items():
        tasks[name].config = from_dict(resolve(name).Config, config)
    return tasks


# All seeds


def _picked(result: Mapping[str, Any]) -> float:
    value = result["value"]
    return float("-inf") if value is None or value != value else float(value)


def _keep_only_best(out: Path, results: list[dict[str, Any]]) -> None:
    best = max(results, key=_picked)
    for result in results:
        if result is not best:
            (out / f"seed-{result['seed']}" / BEST).unlink(missing_ok=True)


def _predictions(
    job: FinetuneJob, encoder: Encoder, tasks: Mapping[str, Head]
) -> dict[str, dict[str, list[Prediction]]]:
    """Of the kept model, by task and part."""
    return {
        part: {name: predict(encoder, tasks[name], items) for name, items in _items(job, tasks, part).items()}
        for part in PARTS
        if part != "train"
    }


def _save(out: Path, job: FinetuneJob, learner: Learner, tasks: Mapping[str, Head], summary: Mapping[str, Any]) -> None:
    encoder = learner.encoder
    features = encoder if isinstance(encoder, Features) else None
    body = features.encoder if features else encoder
    info = {
        "fine_tuned_from": Path(job.source.model).name or KINDS[job.plan.encoder].origin,
        "max_length": job.max_length,
        "figures": {name: row["figures"] for name, row in summary["tasks"].items()},
    }
    made = Checkpoint(
        body.cpu().eval(),
        (job.start.goals or {}) if features else kept_heads(learner),
        job.start.tokenizer,
        info=info,
        embedding=_embedding(tasks) if features is None else Embedding(),
        tasks={name: task.cpu().eval() for name, task in tasks.items()},
        reader=features,
        adapter_width=job.plan.transfer.adapter_width if job.plan.transfer.mode == "adapters" else 0,
        layout=job.start.layout,
    )
    checkpoints.save(out, replace(made, text=card(made, summary)))


def _embedding(tasks: Mapping[str, Head]) -> Embedding:
    """How `embed` makes vectors: as the task wants it that taught the encoder what their cosine means."""
    poolings = [task.embeds for task in tasks.values() if task.embeds]
    return Embedding(poolings[0], normalise=True) if poolings else Embedding()
