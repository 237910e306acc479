"""A file of inputs for a fine-tuned model: rows like those it was trained on, or plain lines."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firth.checkpoint import Checkpoint, only_task
from firth.corpus.readers import read_texts
from firth.errors import BadInput
from firth.files import ending
from firth.tasks import reader_of
from firth.tasks.task import Reader
from firth.types import Example, Problem

log = logging.getLogger(__name__)


def read_inputs(checkpoint: Checkpoint, path: Path, task: str = "") -> list[Example]:
    """One example a row; labels are not needed. In plain text a line is a text, and a tab parts the texts of a pair."""
    _, goal = only_task(checkpoint, "This model", task)
    reader = reader_of(goal)
    if ending(path) not in reader.endings:
        return [_example(reader, line, f"{path}, line {number}") for number, line in enumerate(read_texts(path), 1)]
    problems: list[Problem] = []
    examples = list(reader.read(path, problems, labelled=False))
    for problem in sorted(problems, key=lambda problem: not problem.bad):
        told = f"{path}, row {problem.row}: {problem.what}; {problem.remedy}."
        if problem.bad:
            raise BadInput(told)
        log.warning(told)
    return examples


def tell_of_long(model: Any, texts: Sequence[str]) -> None:
    """Says so where a model's folder asks to cut texts that are to be embedded; without, long ones go in windows."""
    limit = model.checkpoint.embedding.max_length
    blocks = (texts[start : start + 1000] for start in range(0, len(texts), 1000)) if limit else ()
    room = limit - model.tokenizer.vocab.frame.size() if limit else 0
    if cut := sum(len(ids) > room for block in blocks for ids in model.tokenizer.ids_batch(list(block))):
        log.warning(
            f"{cut:,} of {len(texts):,} texts are longer than the {limit:,} tokens this model reads and are cut."
        )


def _example(reader: Reader, line: str, where: str) -> Example:
    try:
        return reader.example(line.split("\t") if "\t" in line else line)
    except BadInput as error:
        raise BadInput(f"{where}: {error} (A table's name must end in {' or '.join(reader.endings)}.)") from None
