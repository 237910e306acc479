"""The labelled rows of a request, and the same request for other files of rows."""

from dataclasses import replace
from pathlib import Path

from firth.finetuning import labelled
from firth.finetuning.few.table import table_options
from firth.finetuning.job_config import FinetuneRequest, first_config
from firth.finetuning.labelled import Labelled

COLUMNS = ("preset", "text_column", "second_column", "label_columns", "label_names")
"""The options that say how a user's file is read; the files here have their own columns."""


def read_labelled(request: FinetuneRequest) -> Labelled:
    """The training rows, read as the run will read them."""
    ((name, config),) = first_config(request).tasks.items()
    files = {"train": Path(request.files["train"][0])}
    rows = labelled.read(name, config, files)
    if not request.skip_bad:
        labelled.refuse_bad(rows, files)
    return rows


def table_request(request: FinetuneRequest, rows: Labelled, files: dict[str, Path]) -> FinetuneRequest:
    """The request with files of `write_table` in place of the user's own."""
    options = {key: value for key, value in request.options.items() if key not in COLUMNS}
    for key in ("metric", "positive"):
        # A preset may have set these.
        options[key] = getattr(rows.config, key)
    options |= table_options(rows.examples["train"])
    paths = {part: [str(path)] for part, path in files.items()}
    return replace(request, files=paths, options=options, seeds=1)
