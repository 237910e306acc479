"""Models measured on labelled files: a fine-tuned one, or one whose task needs no training, and a file in; figures
out."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint, make_head, only_task
from firth.config import from_dict
from firth.encoders.bag import Bag
from firth.finetuning import labelled
from firth.finetuning.labelled import Labelled
from firth.finetuning.rank_predictions import predict_together
from firth.finetuning.writer_start import with_way
from firth.run_source import SOURCE, CompressionSource, FinetuningSource, Source, SourceFile, TuningSource, read_source
from firth.tasks import resolve, scorer_of
from firth.tasks.calibration import error_of, is_calibrated
from firth.tasks.columns import with_columns
from firth.tasks.task import Examples, Head, Items
from firth.tokenizers.unknown import warn_about_unknown

log = logging.getLogger(__name__)

PART = "data"
"""What the file is called among the parts of `Labelled`."""


def evaluate(
    model: Path,
    data: Path,
    *,
    task_name: str = "",
    options: Mapping[str, object] | None = None,
    skip_bad: bool = False,
    language: str = "",
) -> dict[str, float]:
    """A fine-tuned model's figures on a labelled file, read as its training files were, or with other columns.

    `language` is that of the file, where a model with language embeddings was fine-tuned in another.

    A model that was not fine-tuned can do tasks that need no training. What such a task tunes, it tunes on the file.
    """
    checkpoint = checkpoints.load(model)
    if language:
        checkpoint = checkpoints.set_language(checkpoint, language)
    is_untrained = bool(task_name) and task_name not in checkpoint.tasks
    if is_untrained:
        head, rows = _untrained(checkpoint, data, task_name, options or {})
    else:
        task_name, head = only_task(checkpoint, model, task_name)
        config = with_columns(head.config, options or {})
        rows = labelled.read(task_name, config, {PART: data}, labels=head.labels, model=str(model))
    if not skip_bad:
        labelled.refuse_bad(rows, {PART: data})
    warn_if_trained_on(model, data, labelled.rows_sha256(task_name, rows.config, data))
    examples = rows.examples[PART]
    items = _encode(checkpoint, head, data, examples)
    predictions = predict_together(checkpoint.feature_encoder or checkpoint.encoder, head, items)
    if is_untrained:
        predictions = head.tune(predictions, examples)
    # The figures come in the order in which they are printed.
    figures: dict[str, float] = {"rows": len(items)}
    if skip_bad:
        figures["skipped"] = rows.num_skipped[PART]
    figures |= scorer_of(head).score(predictions, examples)
    if is_calibrated(predictions, examples):
        figures["calibration_error"] = error_of(predictions, examples)
    return figures


def _encode(checkpoint: Checkpoint, head: Head, data: Path, examples: Examples) -> Items:
    """The rows as the model reads them; warns about what is cut and what is unknown."""
    tokenizer = checkpoint.tokenizer
    # Texts are cut as they were in fine-tuning.
    max_length = int(checkpoint.info.get("max_length", checkpoint.encoder.max_positions))
    items = head.encode(examples, tokenizer, max_length=max_length, training=False)
    labelled.report_cuts(str(data), items)
    if not isinstance(checkpoint.encoder, Bag):
        warn_about_unknown(str(data), tokenizer, labelled.unknown_share_of(items, tokenizer))
    return items


def _untrained(
    checkpoint: Checkpoint, data: Path, task_name: str, options: Mapping[str, object]
) -> tuple[Head, Labelled]:
    """A head for a task that needs no training, and the rows."""
    task = resolve(task_name)
    config = from_dict(task.Config, task.untrained_options(options))
    rows = labelled.read(task_name, config, {PART: data})
    head = make_head(task_name, with_way(rows.config, checkpoint.goals), checkpoint.encoder, labels=rows.labels)
    head.start_from(checkpoint.goals)
    head.calibrate_prompt(checkpoint.encoder, checkpoint.tokenizer)
    return head, rows


def warn_if_trained_on(model: Path, data: Path, digest: str) -> None:
    """Warns if a run is measured on a file that it learned from, whatever the file is called now."""
    if not (model / SOURCE).exists():
        return
    source = read_source(model)
    known_parts = {part for part, file in _labelled_files(source) if file.sha256 == digest}
    picked = "picked its settings on" if isinstance(source, TuningSource) else "picked its epochs on"
    for part, use in (("train", "was trained on"), ("dev", picked)):
        if part in known_parts:
            log.warning(f"{data} holds the rows that {model} {use}, so these figures flatter it.")


def _labelled_files(source: Source) -> Iterator[tuple[str, SourceFile]]:
    """The files of rows that a run has seen, each after its part; a compression was only measured on `data`."""
    if isinstance(source, FinetuningSource):
        for files in source.files.values():
            yield from files.items()
    elif isinstance(source, TuningSource | CompressionSource):
        yield from source.files.items()
