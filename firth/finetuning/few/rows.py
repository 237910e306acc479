"""Labelled rows of a request in memory, parts of them as files, and folds for cross-validation."""

import json
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path

from firth import rng
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


def table_request(request: FinetuneRequest, rows: Labelled, files: dict[str, Path]) -> FinetuneRequest:
    """The request with files of `write_table` in place of the user's."""
    options = {key: value for key, value in request.options.items() if key not in COLUMNS}
    for key in ("metric", "positive"):
        # A preset may have said these.
        options[key] = getattr(rows.config, key)
    options |= {"text_column": "text", "label_columns": ["label"]}
    if len(rows.examples["train"][0].texts) > 1:
        options["second_column"] = "second"
    paths = {part: [str(path)] for part, path in files.items()}
    return replace(request, files=paths, options=options, seeds=1)


def folds(examples: Sequence[Example], count: int, *, seed: int) -> list[list[int]]:
    """The rows in so many parts: of each label about the same number in all, the same text never in two."""
    order = rng.permutation(rng.key(seed, "folds"), len(examples)).tolist()
    dealt: dict[Hashable, int] = {}
    """How many texts of each label were dealt."""
    fold_of: dict[tuple[str, ...], int] = {}
    parts: list[list[int]] = [[] for _ in range(count)]
    for row in order:
        example = examples[row]
        if example.texts not in fold_of:
            turn = dealt.get(example.gold, 0)
            dealt[example.gold] = turn + 1
            fold_of[example.texts] = turn % count
        parts[fold_of[example.texts]].append(row)
    return [sorted(part) for part in parts]
