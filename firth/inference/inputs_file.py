"""A file of inputs for a fine-tuned model in, examples out: rows like those it was trained on, or plain lines."""

import logging
from collections.abc import Mapping
from pathlib import Path

from firth.checkpoint import Checkpoint, only_task
from firth.corpus.small_files import read_texts
from firth.errors import BadInput
from firth.files import ending
from firth.tasks import resolve
from firth.tasks.columns import with_columns
from firth.tasks.task import Reader
from firth.types import Example, Problem

log = logging.getLogger(__name__)


def read_inputs(
    checkpoint: Checkpoint,
    path: Path,
    task: str = "",
    *,
    columns: Mapping[str, object] | None = None,
) -> list[Example]:
    """One example for each row; labels are not needed. `columns` names those that differ from the training file's.

    In plain text each line is a text, and a tab separates the texts of a pair.
    """
    _, head = only_task(checkpoint, "This model", task)
    reader = resolve(head.name).reader(with_columns(head.config, columns or {}))
    # A file without the ending of a table is plain text.
    if ending(path) not in reader.endings:
        examples = []
        for number, line in enumerate(read_texts(path), 1):
            examples.append(_line_example(reader, line, f"{path}, line {number}"))
        return examples
    problems: list[Problem] = []
    examples = list(reader.read(path, problems, labelled=False))
    # Errors come before warnings, so that nothing is shown before an error.
    for problem in sorted(problems, key=lambda problem: not problem.bad):
        message = f"{path}, row {problem.row}: {problem.what}; {problem.remedy}."
        if problem.bad:
            raise BadInput(message)
        log.warning(message)
    if not examples:
        raise BadInput(f"{path} has a header at most and no row; give it one input a row.")
    return examples


def _line_example(reader: Reader, line: str, where: str) -> Example:
    """A line of plain text as an example; `where` names it in an error."""
    value: str | list[str] = line
    if "\t" in line:
        value = line.split("\t")
    try:
        return reader.example(value)
    except BadInput as error:
        raise BadInput(f"{where}: {error} (A table's name must end in {' or '.join(reader.endings)}.)") from None
