"""Files of pairs and triplets -> the examples of `compare`.

In: tables with two texts and a label or a score, with two texts that belong together, or with columns `anchor`,
`positive`, `negative`. Out: examples of two or three texts. Their gold is a name, a number, or None if the columns
themselves say which texts are alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from firth.errors import BadInput
from firth.tasks import columns
from firth.tasks.columns import ColumnSettings
from firth.tasks.table_files import Rows, as_texts, read_rows
from firth.types import Example, Problem

TRIPLET = ("anchor", "positive", "negative")
"""Names of the columns of triplets; the first two are those of positive pairs."""

Kind = Literal["one", "number", "positives", "triplets"]
"""Pairs with a label, pairs with a score, pairs that belong together, or triplets."""


class TripletColumns(ColumnSettings, Protocol):
    """The fields of a config that say which columns are texts and labels."""

    @property
    def third_column(self) -> str: ...


def read(path: Path, config: TripletColumns, problems: list[Problem], *, labelled: bool) -> list[Example]:
    rows = read_rows(path)
    text_columns = _columns_without_label(rows, config, labelled=labelled)
    if text_columns:
        # The columns themselves say which texts are alike.
        return _read_unlabelled(rows, text_columns, problems)
    examples = []
    for example in columns.read(path, config, problems, labelled=labelled):
        if len(example.texts) == 2:
            examples.append(example)
        else:
            what = "one text where two are compared"
            problems.append(Problem(example.row, what, "name the second with `second_column=`"))
    if config.kind == "guess":
        return _with_scores(examples)
    return examples


def _read_unlabelled(rows: Rows, names: Sequence[str], problems: list[Problem]) -> list[Example]:
    """Pairs that belong together, or triplets."""
    examples = []
    for row, values in rows.take(names, problems):
        cells = [values[name] for name in names]
        texts = [cell.strip() for cell in cells if isinstance(cell, str) and cell.strip()]
        if len(texts) == len(cells):
            examples.append(Example(tuple(texts), None, row))
        else:
            problems.append(Problem(row, "an empty text", "fill it in or remove the row"))
    return examples


def has_scores(path: Path, config: TripletColumns) -> bool:
    """Whether a training file has scores. Those of another file are read as such, even if all are 0 or 1."""
    if config.kind != "guess":
        return False
    examples = read(path, config, [], labelled=True)
    return bool(examples) and kind_of(examples[0]) == "number"


def kind_of(example: Example) -> Kind:
    if len(example.texts) == 3:
        return "triplets"
    if example.gold is None:
        return "positives"
    if isinstance(example.gold, float):
        return "number"
    return "one"


def example(value: object, config: TripletColumns) -> Example:
    """A pair, a triplet, or a row with named columns."""
    given = value
    if isinstance(value, Mapping):
        rows = Rows(Path("An input"), list(value), ())
        names = _columns_without_label(rows, config, labelled=False)
        if not names:
            names, _ = columns.find_columns(rows, config, labelled=False, in_file=False)
        value = [value.get(name) for name in names]
    texts = as_texts(value)
    if texts is None or len(texts) not in (2, 3):
        # A file is read with the columns that were named for training.
        first = config.text_column or "first"
        second = config.second_column or "second"
        raise BadInput(
            f"An input must be two texts to compare; it is {given!r:.80}. Give both texts, or rows by `file=` with the "
            f"columns {first} and {second}."
        )
    return Example(texts)


def _columns_without_label(rows: Rows, config: TripletColumns, *, labelled: bool) -> tuple[str, ...]:
    """The text columns of a file whose rows need no label; none if there is a label to read."""
    all_columns = (config.text_column, config.second_column, config.third_column)
    named = tuple(name for name in all_columns if name)
    # What the user named comes first, then the usual names.
    triplet = named if config.third_column else TRIPLET
    pair = TRIPLET[:2]
    may_be_triplets = config.kind in ("guess", "triplets") and (config.third_column or not named)
    if may_be_triplets and rows.has_columns(triplet):
        return triplet
    may_be_positives = config.kind in ("guess", "positives") and not named
    if may_be_positives and rows.has_columns(pair):
        return pair
    if config.kind == "triplets" and labelled:
        raise BadInput(
            f"{rows.path} has no columns {', '.join(triplet)} but {rows.shown_columns}; name all three, with "
            "`text_column=`, `second_column=` and tasks.compare.third_column=NAME."
        )
    if config.kind in ("positives", "triplets"):
        texts, _ = columns.find_columns(rows, config, labelled=False)
        if len(texts) < 2:
            raise BadInput(
                f"{rows.path} has one column of texts ({texts[0]}), and pairs need two; name the other with "
                "`second_column=`, or call the two anchor and positive."
            )
        return texts
    return ()


def _with_scores(examples: list[Example]) -> list[Example]:
    """The rows with numbers as gold, if all labels are numbers and some are neither 0 nor 1."""
    try:
        scores = [float(example.gold) for example in examples if example.gold is not None]
    except ValueError:
        return examples
    if not scores or {*scores} <= {0.0, 1.0} or not np.isfinite(scores).all():
        return examples
    return [replace(example, gold=score) for example, score in zip(examples, scores, strict=True)]
