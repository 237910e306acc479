"""Whole fine-tuning runs: a model and labelled files in, a fine-tuned, measured and documented model out.

RUN/run.toml holds the numbers, RUN/source.json the files with their hashes, RUN/seed-K each seed's logs, states and
best weights, RUN/results.json all figures. The folder itself becomes the model of the seed that did best on the file
for picking. With several ranks only rank 0 writes.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint, Embedding, LightAdapter, head_for_transformers, make_head
from firth.config import from_dict, to_dict
from firth.convert.languages import LANGUAGE, LANGUAGES
from firth.data.items import BatchMaker, Item, ItemBatches
from firth.errors import BadConfig
from firth.files import read_json, write_json
from firth.finetuning import labelled
from firth.finetuning.collapse import same_answer, warn_collapsed
from firth.finetuning.figures import FinetuningSummary, card, summarise
from firth.finetuning.jobs import FinetuneJob, FinetuneRequest, resolve_job
from firth.finetuning.labelled import PARTS, texts_of
from firth.finetuning.picking import (
    BEST,
    BEST_FIGURES,
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
from firth.finetuning.transfer import adapt, auxiliary_goals, pretraining_heads, unfreeze
from firth.models import TEXT_LANGUAGE, language_of
from firth.nn.features import Features
from firth.nn.lora import merge_lora
from firth.run_folder import RunFolder
from firth.run_source import RESULTS
from firth.tasks import resolve, scorer_of
from firth.tasks.calibration import CALIBRATION, saved_calibration
from firth.tasks.task import Head
from firth.tensors import Encoder
from firth.tokenizers.unknown import warn_about_unknown
from firth.train.layer_rates import rate_share
from firth.train.loop import Learner, Progress
from firth.train.parallel import reseed
from firth.train.run import CHECKPOINTS
from firth.train.settings import OPTIMIZER
from firth.types import Prediction

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


def finetune(folder: RunFolder, request: FinetuneRequest, *, device: str | None = None) -> FinetuningSummary:
    """Trains, picks, measures and writes; returns what `results.json` holds."""
    out = folder.path
    job = resolve_job(folder, request, device=device)
    if folder.finished:
        folder.say_finished()
        return read_summary(out)
    _rehearse(job)
    folder.begin(job.source, job.config, leftovers=[RESULTS])
    folder.remove_leftovers((RESULT, BEST_FIGURES, BEST), below="seed-*")
    results: list[SeedResult] = []
    first_seed = job.config.train.seed
    for seed in range(first_seed, first_seed + job.source.seeds):
        results.append(_run_seed(job, folder, seed))
        if folder.is_main:
            _delete_other_weights(out, results)
    best = max(results, key=lambda result: result.picked_value)
    model = _build(job, best.seed)
    load_best(_seed_folder(out, best.seed), model.learner)
    _restore_configs(model.heads, best.configs)
    # Heads keep what they learn here from the training rows, such as the words that are known.
    for name, head in model.heads.items():
        head.before_training(job.data[name].examples["train"])
    job.extension.finish_encoder(model.encoder)
    temperatures = _calibrate(job, model)
    predictions = _predictions(job, model)
    summary = summarise(
        job.data,
        model.heads,
        results,
        best,
        predictions=predictions,
        source=job.source,
        temperatures=temperatures,
    )
    folder.wait_for_ranks()  # all have loaded the best weights, which are deleted now

    def write() -> None:
        checkpoints.save(out, _checkpoint(job, model, summary))
        write_json(out / RESULTS, summary)
        (_seed_folder(out, best.seed) / BEST).unlink()

    folder.on_main(write)
    return summary


def read_summary(out: Path) -> FinetuningSummary:
    """The summary of a finished run."""
    summary: FinetuningSummary = read_json(out / RESULTS)
    return summary


def _seed_folder(out: Path, seed: int) -> Path:
    return out / f"seed-{seed}"


# One seed


def _build(job: FinetuneJob, seed: int) -> SeedModel:
    """SeedModel and heads as a seed begins."""
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


def _rehearse(job: FinetuneJob) -> None:
    """Builds everything once and encodes one row, so that what fails does so before anything is written."""
    model = _build(job, job.config.train.seed)
    for name, head in model.heads.items():
        rows = job.data[name].examples["train"]
        head.before_training(rows)
        items = head.encode(rows[:1], job.start.tokenizer, max_length=job.max_length, training=True)
        head.batch(items)
    if not job.config.transfer.merge:
        _check_adapter(job, model)


def _check_adapter(job: FinetuneJob, model: SeedModel) -> None:
    """Raises if the low-rank matrices of LoRA could not be saved without the model they were made beside."""
    if not job.source.model or job.source.random:
        raise BadConfig("transfer.merge=false needs a model that the small folder belongs to; name one or merge.")
    checkpoint = Checkpoint(
        model.encoder, {}, job.start.tokenizer, tasks=model.heads, layout=job.start.layout or job.start.encoder_name
    )
    if head_for_transformers(checkpoint) is None:
        names = ", ".join(model.heads)
        raise BadConfig(f"transfer.merge=false is for heads that transformers has; {names} has another: merge it.")


def _run_seed(job: FinetuneJob, run_folder: RunFolder, seed: int) -> SeedResult:
    """Trains with one seed, or reads what an earlier process wrote; returns its figures."""
    folder = _seed_folder(run_folder.path, seed)
    is_done = (folder / RESULT).exists()
    run_folder.wait_for_ranks()  # all ranks look before rank 0 writes
    if is_done:
        return from_dict(SeedResult, read_json(folder / RESULT))
    if run_folder.is_main:
        folder.mkdir(parents=True, exist_ok=True)
    model = _build(job, seed)
    items = {part: _encode(job, model.heads, part) for part in PARTS}
    for name, head in model.heads.items():
        if seed == job.config.train.seed:  # all seeds read the same rows
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
    folder = _seed_folder(run_folder.path, seed)
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
    _restore_configs(model.heads, best.configs)
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
    training_items = items.pop("train")[name]  # not needed afterwards, and large
    solve(head, model.learner.encoder, training_items, tokenizer=job.start.tokenizer, config=job.config, seed=seed)
    values = _measure(job, model, items["dev"], {})
    keep(folder, model.learner, step=0, values=values, head_state=HeadState(_configs(model.heads), {}))
    best = read_best(folder)
    assert best is not None
    return SeedResult(seed=seed, epochs=0.0, test=_test_scores(job, model, items["test"]), **asdict(best))


def _encode(job: FinetuneJob, heads: Mapping[str, Head], part: str) -> Items:
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


def _restore_configs(heads: Mapping[str, Head], configs: Mapping[str, Mapping[str, object]]) -> None:
    """Gives the heads back what was found on the rows for picking along with the best weights."""
    for name, values in configs.items():
        heads[name].config = from_dict(resolve(name).Config, values)


# All seeds


def _delete_other_weights(out: Path, results: Sequence[SeedResult]) -> None:
    """Deletes the weights of all seeds but the best."""
    best = max(results, key=lambda result: result.picked_value)
    for result in results:
        if result is not best:
            (_seed_folder(out, result.seed) / BEST).unlink(missing_ok=True)


def _calibrate(job: FinetuneJob, model: SeedModel) -> dict[str, float]:
    """Calibrates the heads on the rows for picking; returns their temperatures."""
    temperatures: dict[str, float] = {}
    for name, items in _encode(job, model.heads, "dev").items():
        head = model.heads[name]
        predictions = predict_together(model.encoder, head, items)
        temperatures[name] = head.calibrate(predictions, job.data[name].examples["dev"])
    return temperatures


def _predictions(job: FinetuneJob, model: SeedModel) -> dict[str, dict[str, list[Prediction]]]:
    """What the kept model says about dev and test rows, by part and task."""
    predictions: dict[str, dict[str, list[Prediction]]] = {}
    for part in PARTS:
        if part == "train":
            continue
        predictions[part] = {}
        for name, items in _encode(job, model.heads, part).items():
            predictions[part][name] = predict_together(model.encoder, model.heads[name], items)
    return predictions


def _checkpoint(job: FinetuneJob, model: SeedModel, summary: FinetuningSummary) -> Checkpoint:
    """The fine-tuned model with its card."""
    encoder = model.encoder
    reader: Features | None = None
    heads_of_pretraining = pretraining_heads(model.learner)
    embedding = _embedding(model.heads)
    if isinstance(encoder, Features):
        # The encoder below the features did not change, so its own heads and vectors still fit.
        reader = encoder
        encoder = reader.encoder
        heads_of_pretraining = dict(job.start.goals or {})
        embedding = Embedding()
    transfer = job.config.transfer
    light = None
    if transfer.mode == "lora" and transfer.merge:
        merge_lora(encoder.cpu())
    elif transfer.mode == "lora":
        light = LightAdapter(str(Path(job.source.model).resolve()), transfer.lora)
    info: dict[str, object] = {
        "fine_tuned_from": Path(job.source.model).name or job.backbone.origin,
        "max_length": job.max_length,
        OPTIMIZER: job.config.train.optim.optimizer,
        TEXT_LANGUAGE: language_of(texts_of(job.data)),
        "figures": {name: task["figures"] for name, task in summary["tasks"].items()},
    }
    calibrated = {name: task["calibration"] for name, task in summary["tasks"].items() if "calibration" in task}
    if calibrated:
        info[CALIBRATION] = {name: saved_calibration(found) for name, found in calibrated.items()}
    # An encoder-decoder that was made of such a model has no language embeddings.
    if job.start.language and hasattr(encoder.config, "language"):
        info |= {LANGUAGES: list(job.start.languages), LANGUAGE: job.start.language}
    checkpoint = Checkpoint(
        encoder.cpu().eval(),
        heads_of_pretraining,
        job.start.tokenizer,
        info=info,
        embedding=embedding,
        tasks={name: head.cpu().eval() for name, head in model.heads.items()},
        feature_encoder=reader,
        adapter_width=transfer.adapter_width if transfer.mode == "adapters" else 0,
        prefix_length=transfer.prefix_length if transfer.mode == "prefix" else 0,
        light=light,
        layout=job.start.layout,
    )
    return replace(checkpoint, text=card(checkpoint, summary))


def _embedding(heads: Mapping[str, Head]) -> Embedding:
    """How `embed` makes vectors: as the task pools them that trained the encoder to compare them by cosine."""
    for head in heads.values():
        if head.embeds:
            return Embedding(head.embeds, normalise=True)
    return Embedding()
