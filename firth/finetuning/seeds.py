"""One seed of a fine-tuning run: a job in, its trained weights, its figures and SEED/result.json out.

RUN/seed-K holds the logs, states and best weights of seed K (`picking.py`). A seed that has a result is not trained
again. With several ranks only rank 0 writes.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from firth.checkpoint import Checkpoint, head_for_transformers, make_head
from firth.config import from_dict, to_dict
from firth.data.items import BatchMaker, Item, ItemBatches
from firth.errors import BadConfig
from firth.files import read_json, write_json
from firth.finetuning import labelled
from firth.finetuning.collapse import same_answer, warn_collapsed
from firth.finetuning.jobs import FinetuneJob
from firth.finetuning.labelled import PARTS
from firth.finetuning.picking import (
    PICKED,
    RESULT,
    HeadState,
    PickingRun,
    SeedResult,
    keep,
    load_best,
    read_best,
)
from firth.finetuning.rank_predictions import predict_together
from firth.finetuning.transfer import adapt, auxiliary_goals, unfreeze
from firth.run_folder import RunFolder
from firth.tasks import resolve, scorer_of
from firth.tasks.task import Head
from firth.tensors import Encoder
from firth.tokenizers.unknown import warn_about_unknown
from firth.train.layer_rates import rate_share
from firth.train.loop import Learner, Progress
from firth.train.parallel import reseed
from firth.train.run import CHECKPOINTS

Items = Mapping[str, Sequence[Item]]
"""The encoded rows of one part, by task."""


@dataclass(frozen=True)
class SeedModel:
    """An encoder and its heads while they are trained and measured."""

    learner: Learner
    encoder: Encoder
    """What the heads read: the encoder with its adapters, or features of a frozen one."""
    heads: Mapping[str, Head]
    """By task."""


def seed_folder(out: Path, seed: int) -> Path:
    return out / f"seed-{seed}"


def build_model(job: FinetuneJob, seed: int) -> SeedModel:
    """The encoder and the heads at the start of a seed."""
    # All weights that are new are drawn after this: of adapters or features, then of the heads.
    reseed(seed, "initial weights")
    backbone = job.start.encoder(job.config.train.precision, job.device)
    encoder = adapt(backbone, job.config.transfer, tokenizer=job.start.tokenizer)
    heads: dict[str, Head] = {}
    for name, rows in job.data.items():
        heads[name] = make_head(name, job.config.tasks[name], encoder, labels=rows.labels)
        heads[name].start_from(job.start.goals or {})
        heads[name].calibrate_prompt(encoder, job.start.tokenizer)
    auxiliary = auxiliary_goals(job.start, encoder, job.config.transfer)
    job.extension.prepare_encoder(encoder)
    goals = {name: job.extension.goal(head, encoder) for name, head in heads.items()}
    learner = Learner(encoder, goals, auxiliary=auxiliary).to(job.device)
    return SeedModel(learner, encoder, heads)


def rehearse(job: FinetuneJob) -> None:
    """Builds everything once and encodes one row, so that what fails does so before anything is written."""
    model = build_model(job, job.config.train.seed)
    for name, head in model.heads.items():
        rows = job.data[name].examples["train"]
        head.before_training(rows)
        items = head.encode(rows[:1], job.start.tokenizer, max_length=job.max_length, training=True)
        head.batch(items)
    if not job.config.transfer.merge:
        _check_adapter(job, model)


def _check_adapter(job: FinetuneJob, model: SeedModel) -> None:
    """Raises if the LoRA matrices could not be saved without the model that they adapt."""
    if not job.source.model or job.source.random:
        raise BadConfig("transfer.merge=false needs a model that the small folder belongs to; name one or merge.")
    checkpoint = Checkpoint(
        model.encoder, {}, job.start.tokenizer, tasks=model.heads, layout=job.start.layout or job.start.encoder_name
    )
    if head_for_transformers(checkpoint) is None:
        names = ", ".join(model.heads)
        raise BadConfig(f"transfer.merge=false is for heads that transformers has; {names} has another: merge it.")


def run_seed(job: FinetuneJob, run_folder: RunFolder, seed: int) -> SeedResult:
    """Trains with one seed, or reads what an earlier process wrote; returns its figures."""
    folder = seed_folder(run_folder.path, seed)
    is_done = (folder / RESULT).exists()
    # All ranks look before rank 0 writes.
    run_folder.wait_for_ranks()
    if is_done:
        return from_dict(SeedResult, read_json(folder / RESULT))
    if run_folder.is_main:
        folder.mkdir(parents=True, exist_ok=True)
    model = build_model(job, seed)
    items = {part: encode_part(job, model.heads, part) for part in PARTS}
    for name, head in model.heads.items():
        # All seeds read the same rows, so the first one reports them.
        if seed == job.config.train.seed:
            labelled.report_cuts(f"{name}, train", items["train"][name])
            _report_unknown(job, name, items["train"][name])
        head.before_training(job.data[name].examples["train"])
    if any(job.backbone.is_solved(head) for head in model.heads.values()):
        result = _solve_seed(job, folder, seed, model, items)
    else:
        result = _train_seed(job, run_folder, seed, model, items)
    # A seed with a result is never trained again, so its states are not needed.
    if run_folder.is_main:
        write_json(folder / RESULT, to_dict(result))
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    return result


def _report_unknown(job: FinetuneJob, name: str, items: Sequence[Item]) -> None:
    """Warns about training rows that the model cannot read."""
    # A vocabulary that was learned from these rows leaves out rare words on purpose.
    if job.config.encoder == "model":
        warn_about_unknown(f"{name}, train", job.start.tokenizer, labelled.unknown_share_of(items, job.start.tokenizer))


def _train_seed(
    job: FinetuneJob, run_folder: RunFolder, seed: int, model: SeedModel, items: Mapping[str, Items]
) -> SeedResult:
    """Trains through the loop and measures the best weights."""
    config = job.config
    folder = seed_folder(run_folder.path, seed)
    makers: dict[str, BatchMaker] = {}
    for name, head in model.heads.items():
        makers[name] = job.extension.batch_maker(head, items["train"][name], folder=run_folder.path)
    batches = ItemBatches(makers, items["train"], config.batch_size, seed, config.alpha)
    collapsed: dict[str, str] = {}

    def measure() -> dict[str, float]:
        for name, head in model.heads.items():
            job.extension.before_measuring(head, model.encoder, items["train"][name])
        return _measure(job, model, items["dev"], collapsed)

    run = PickingRun(
        folder,
        model.learner,
        packs=batches,
        measure=measure,
        config=replace(config.train, seed=seed),
        resume=run_folder.resume,
        interrupts=run_folder.interrupts,
        label=f"fine-tuning, seed {seed}",
        scale=partial(_rate_share, job),
        patience=config.patience,
        keep_last=config.pick == "last",
        head_state=lambda: HeadState(_configs(model.heads), dict(collapsed)),
        before_step=partial(_before_step, job, model.encoder, batches),
        needs_whole=_needs_whole(job),
    )
    run.go()
    best = read_best(folder)
    assert best is not None
    # Test rows are measured once, with the weights that were picked.
    load_best(folder, model.learner)
    warn_collapsed(seed, best.collapsed, rate=config.train.optim.rate, epochs=config.epochs)
    restore_configs(model.heads, best.configs)
    epochs = best.step * config.train.accumulate / batches.num_packs(0)
    return SeedResult(seed=seed, epochs=epochs, test=_test_scores(job, model, items["test"]), **asdict(best))


def _needs_whole(job: FinetuneJob) -> str:
    """Why ranks cannot share the weights of a run; empty if they can."""
    if len(job.data) > 1:
        return "ranks that learn several tasks have gradients for different heads"
    if job.config.transfer.unfreeze_every:
        return "layers are unfrozen one by one"
    if job.extension.record():
        return "compression changes whole weights"
    return ""


def _solve_seed(job: FinetuneJob, folder: Path, seed: int, model: SeedModel, items: dict[str, Items]) -> SeedResult:
    """Finds the weights without the loop and measures them."""
    ((name, head),) = model.heads.items()
    solve = job.backbone.solve
    assert solve is not None
    # Not needed afterwards, and large.
    training_items = items.pop("train")[name]
    solve(head, model.learner.encoder, training_items, tokenizer=job.start.tokenizer, config=job.config, seed=seed)
    values = _measure(job, model, items["dev"], {})
    keep(folder, model.learner, step=0, values=values, head_state=HeadState(_configs(model.heads), {}))
    best = read_best(folder)
    assert best is not None
    return SeedResult(seed=seed, epochs=0.0, test=_test_scores(job, model, items["test"]), **asdict(best))


def encode_part(job: FinetuneJob, heads: Mapping[str, Head], part: str) -> Items:
    """The rows of a part as an encoder reads them, for the tasks that have such rows."""
    items: dict[str, Sequence[Item]] = {}
    for name, head in heads.items():
        examples = job.data[name].examples
        if part in examples:
            items[name] = head.encode(
                examples[part], job.start.tokenizer, max_length=job.max_length, training=part == "train"
            )
    return items


def _measure(job: FinetuneJob, model: SeedModel, items: Items, collapsed: dict[str, str]) -> dict[str, float]:
    """Figures on the rows for picking; `picked` is the mean of the tasks' main ones.

    Leaves in `collapsed` the tasks that gave all rows the same answer.
    """
    figures: dict[str, float] = {}
    main_figures: list[float] = []
    for name, head in model.heads.items():
        rows = job.data[name].examples["dev"]
        # Tuned before scoring: a threshold is found on these rows.
        predictions = head.tune(predict_together(model.encoder, head, items[name]), rows)
        scorer = scorer_of(head)
        scores = scorer.score(predictions, rows)
        main_figures.append(scores[scorer.main_metric])
        prefix = f"{name}_" if len(model.heads) > 1 else ""
        for figure, value in scores.items():
            figures[f"{prefix}{figure}"] = value
        collapsed.pop(name, None)
        answer = same_answer(predictions, rows)
        if answer is not None:
            collapsed[name] = answer
    picked = sum(main_figures) / len(main_figures)
    return {PICKED: picked, **figures}


def _test_scores(job: FinetuneJob, model: SeedModel, items: Items) -> dict[str, dict[str, float]]:
    """Figures on the test rows, by task."""
    scores: dict[str, dict[str, float]] = {}
    for name, rows in items.items():
        head = model.heads[name]
        predictions = predict_together(model.encoder, head, rows)
        scores[name] = scorer_of(head).score(predictions, job.data[name].examples["test"])
    return scores


def _rate_share(job: FinetuneJob, name: str) -> float:
    """The share of the learning rate that a parameter of the learner gets."""
    share = rate_share(name, num_layers=job.start.num_blocks, decay=job.config.transfer.layer_decay)
    return share * job.extension.rate_share(name)


def _before_step(job: FinetuneJob, encoder: Encoder, batches: ItemBatches, progress: Progress) -> None:
    _unfreeze(job, encoder, batches, progress)
    job.extension.before_step(encoder, step=progress.step, steps=progress.steps)


def _unfreeze(job: FinetuneJob, encoder: Encoder, batches: ItemBatches, progress: Progress) -> None:
    every = job.config.transfer.unfreeze_every
    if every:
        epochs_done = progress.step * job.config.train.accumulate / batches.num_packs(0)
        unfreeze(encoder, num_layers=job.start.num_blocks, epochs_done=epochs_done, every=every)


def _configs(heads: Mapping[str, Head]) -> dict[str, dict[str, object]]:
    """The configs of the heads, as plain JSON values."""
    return {name: to_dict(head.config) for name, head in heads.items()}


def restore_configs(heads: Mapping[str, Head], configs: Mapping[str, Mapping[str, object]]) -> None:
    """Gives the heads back what was found on the rows for picking along with the best weights."""
    for name, values in configs.items():
        heads[name].config = from_dict(resolve(name).Config, values)
