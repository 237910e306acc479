"""Labelled rows of a request in memory, and parts of them as files."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from firth.files import write_bytes
from firth.finetuning import labelled
from firth.finetuning.jobs import FinetuneRequest, first_config
from firth.finetuning.labelled import Labelled
from firth.types import Example

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


def write_table(path: Path, examples: Sequence[Example]) -> None:
    """Examples with one label each as lines of JSON with the columns text, second and label."""
    lines = []
    for example in examples:
        row = dict(zip(("text", "second"), example.texts, strict=False))
        row["label"] = example.gold
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, "".join(lines).encode("utf-8", "replace"))


def table_options(examples: Sequence[Example]) -> dict[str, object]:
    """The options that say how a file of `write_table` is read."""
    options: dict[str, object] = {"text_column": "text", "label_columns": ["label"]}
    if len(examples[0].texts) > 1:
        options["second_column"] = "second"
    return options


def table_request(request: FinetuneRequest, rows: Labelled, files: dict[str, Path]) -> FinetuneRequest:
    """The request with files of `write_table` in place of the user's."""
    options = {key: value for key, value in request.options.items() if key not in COLUMNS}
    for key in ("metric", "positive"):
        # A preset may have said these.
        options[key] = getattr(rows.config, key)
    options |= table_options(rows.examples["train"])
    paths = {part: [str(path)] for part, path in files.items()}
    return replace(request, files=paths, options=options, seeds=1)
