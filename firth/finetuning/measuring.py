"""Models measured on labelled files: in go a fine-tuned one, or one whose task needs no training, and a file; out come
figures."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firth import checkpoint as checkpoints
from firth.checkpoint import make_head, only_task
from firth.config import from_dict
from firth.errors import BadConfig
from firth.files import sha256
from firth.finetuning import labelled
from firth.run_folder import SOURCE, FinetuningSource, read_source
from firth.tasks import resolve, scorer_of
from firth.tasks.predicting import predict

log = logging.getLogger(__name__)


def evaluate(
    model: Path,
    data: Path,
    *,
    task_name: str = "",
    options: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
) -> dict[str, Any]:
    """A fine-tuned model's figures on a labelled file, read as its training files were.

    A model that was not fine-tuned can do tasks that need no training; what such a task finds, it finds on the file.
    """
    checkpoint = checkpoints.load(model)
    untrained = bool(task_name) and task_name not in checkpoint.tasks
    if options and not untrained:
        raise BadConfig(f"{model} remembers its task's settings; leave out {', '.join(options)}.")
    if untrained:
        kind = resolve(task_name)
        config = from_dict(kind.Config, kind.untrained_options(options or {}))
        read = labelled.read(task_name, config, {"data": data})
        task = make_head(task_name, read.config, checkpoint.encoder, labels=read.labels)
    else:
        task_name, task = only_task(checkpoint, model, task_name)
        read = labelled.read(task_name, task.config, {"data": data}, labels=task.labels)
    if not skip_bad:
        labelled.refuse_bad(read, {"data": data})
    _tell_of_familiar(model, data)
    length = int(checkpoint.info.get("max_length", checkpoint.encoder.max_positions))
    items = task.encode(read.examples["data"], checkpoint.tokenizer, max_length=length, training=False)
    labelled.tell_of_cuts(str(data), items)
    predictions = predict(checkpoint.reader or checkpoint.encoder, task, items)
    predictions = task.tune(predictions, read.examples["data"]) if untrained else predictions
    skipped = {"skipped": read.num_skipped["data"]} if skip_bad else {}
    return {"rows": len(items), **skipped, **scorer_of(task).score(predictions, read.examples["data"])}


def _tell_of_familiar(model: Path, data: Path) -> None:
    """Says so where a run is measured on a file that it learned from, whatever the file is called now."""
    source = read_source(model) if (model / SOURCE).exists() else None
    if not isinstance(source, FinetuningSource):
        return
    digest = sha256(data)
    files = [item for parts in source.files.values() for item in parts.items()]
    known = {part for part, file in files if file.sha256 == digest}
    for part, what in (("train", "was trained on"), ("dev", "picked its epochs on")):
        if part in known:
            log.warning(f"{data} holds the rows that {model} {what}, so these figures flatter it.")
