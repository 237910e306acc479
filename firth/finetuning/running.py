"""Whole fine-tuning runs: a model and labelled files in, a fine-tuned, measured and documented model out.

RUN/run.toml holds the numbers, RUN/source.json the files with their hashes, RUN/seed-K each seed's logs, states and
best weights, RUN/results.json all figures. The folder itself becomes the model of the seed that did best on the file
for picking. With several ranks only rank 0 writes.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint, Embedding, LightAdapter
from firth.convert.languages import LANGUAGE, LANGUAGES
from firth.files import read_json, write_json
from firth.finetuning.figures import FinetuningSummary, card, summarise
from firth.finetuning.job_config import FinetuneRequest
from firth.finetuning.jobs import FinetuneJob, resolve_job
from firth.finetuning.labelled import PARTS, texts_of
from firth.finetuning.picking import (
    BEST,
    BEST_FIGURES,
    RESULT,
    SeedResult,
    load_best,
)
from firth.finetuning.rank_predictions import predict_together
from firth.finetuning.seeds import SeedModel, build_model, encode_part, rehearse, restore_configs, run_seed, seed_folder
from firth.finetuning.transfer import pretraining_heads, settings_without_effect
from firth.models import TEXT_LANGUAGE, language_of
from firth.nn.features import Features
from firth.nn.lora import merge_lora
from firth.run_folder import RunFolder
from firth.run_source import RESULTS
from firth.tasks.calibration import CALIBRATION, saved_calibration
from firth.tasks.task import Head
from firth.train.settings import OPTIMIZER
from firth.types import Prediction

log = logging.getLogger(__name__)


def finetune(folder: RunFolder, request: FinetuneRequest, *, device: str | None = None) -> FinetuningSummary:
    """Trains, picks, measures and writes; returns what `results.json` holds."""
    out = folder.path
    job = resolve_job(folder, request, device=device)
    if folder.finished:
        folder.say_finished()
        return read_summary(out)
    if not folder.begun:
        for sentence in settings_without_effect(job.config.transfer):
            log.warning(sentence)
    rehearse(job)
    folder.begin(job.source, job.config, leftovers=[RESULTS])
    folder.remove_leftovers((RESULT, BEST_FIGURES, BEST), below="seed-*")
    results: list[SeedResult] = []
    first_seed = job.config.train.seed
    for seed in range(first_seed, first_seed + job.source.seeds):
        results.append(run_seed(job, folder, seed))
        if folder.is_main:
            _delete_other_weights(out, results)
    best = max(results, key=lambda result: result.picked_value)
    model = build_model(job, best.seed)
    load_best(seed_folder(out, best.seed), model.learner)
    restore_configs(model.heads, best.configs)
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
    # All ranks have loaded the best weights, which are deleted now.
    folder.wait_for_ranks()

    def write() -> None:
        checkpoints.save(out, _checkpoint(job, model, summary))
        write_json(out / RESULTS, summary)
        (seed_folder(out, best.seed) / BEST).unlink()

    folder.on_main(write)
    return summary


def read_summary(out: Path) -> FinetuningSummary:
    """The summary of a finished run."""
    summary: FinetuningSummary = read_json(out / RESULTS)
    return summary


def _delete_other_weights(out: Path, results: Sequence[SeedResult]) -> None:
    """Deletes the weights of all seeds but the best."""
    best = max(results, key=lambda result: result.picked_value)
    for result in results:
        if result is not best:
            (seed_folder(out, result.seed) / BEST).unlink(missing_ok=True)


def _calibrate(job: FinetuneJob, model: SeedModel) -> dict[str, float]:
    """Calibrates the heads on the rows for picking; returns their temperatures.

    Rows that were learned from say nothing about how sure a model should be of others, so they calibrate none.
    """
    temperatures: dict[str, float] = {}
    for name, items in encode_part(job, model.heads, "dev").items():
        if job.data[name].learned_from:
            continue
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
        for name, items in encode_part(job, model.heads, part).items():
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
    info = _info(job, summary)
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


def _info(job: FinetuneJob, summary: FinetuningSummary) -> dict[str, object]:
    """Where the model comes from, for `firth.json`."""
    figures: dict[str, object] = {}
    calibrated: dict[str, object] = {}
    for name, task in summary["tasks"].items():
        figures[name] = task["figures"]
        if "calibration" in task:
            calibrated[name] = saved_calibration(task["calibration"])
    info: dict[str, object] = {
        "fine_tuned_from": Path(job.source.model).name or job.backbone.origin,
        "max_length": job.max_length,
        OPTIMIZER: job.config.train.optim.optimizer,
        TEXT_LANGUAGE: language_of(texts_of(job.data)),
        "figures": figures,
    }
    if calibrated:
        info[CALIBRATION] = calibrated
    return info


def _embedding(heads: Mapping[str, Head]) -> Embedding:
    """How `embed` makes vectors: as the task pools them that trained the encoder to compare them by cosine."""
    for head in heads.values():
        if head.embeds:
            return Embedding(head.embeds, normalise=True)
    return Embedding()
