"""A table of pairs -> those that belong together, for `mine_triplets`.

Without a column of labels or scores all rows belong together. Labels 0 and 1 say which do; for other scores the user
gives a threshold.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from firth.console import counted
from firth.errors import BadConfig, BadInput
from firth.finetuning import labelled
from firth.finetuning.labelled import Labelled
from firth.tasks import glue
from firth.tasks.compare import CompareConfig
from firth.tasks.table_files import Rows, read_rows
from firth.types import Problem

log = logging.getLogger(__name__)

PART = "train"
"""What the file is called among the parts of `Labelled`."""


def read_pairs(
    path: Path,
    *,
    text_column: str = "",
    second_column: str = "",
    score_column: str = "",
    min_score: float | None = None,
) -> list[tuple[str, str]]:
    """The pairs of a table that belong together: with a label of 1, a score of at least `min_score`, or neither.

    Columns with well-known names need not be given.
    """
    config = CompareConfig(kind="positives", text_column=text_column, second_column=second_column)
    data = labelled.read("compare", config, {PART: path})
    _tell_of_bad_rows(path, data)
    examples = data.examples[PART]
    rows = _with_all_keys(read_rows(path))
    column = score_column or _known_score_column(rows, without=(text_column, second_column))
    if not column:
        if min_score is not None:
            raise BadConfig(f"{path} has no column of scores for `min_score=`; name it with `score_column=`.")
        return [(row.texts[0], row.texts[1]) for row in examples]
    scores = _scores(rows, column)
    least = _least_score(path, column, scores, min_score)
    # A row without a score is one that nobody judged.
    kept = [row for row in examples if scores.get(row.row, -math.inf) >= least]
    if not kept and min_score is None:
        raise BadInput(
            f"{path} has no pair with a '{column}' of 1, so none belongs together; add some, or name another column "
            "with `score_column=`."
        )
    if not kept:
        raise BadInput(f"{path} has no pair with a '{column}' of at least {least:g}; lower `min_score=`.")
    log.info(f"{len(kept):,} of {counted(len(examples), 'pair')} have a '{column}' of at least {least:g} and are used.")
    return [(row.texts[0], row.texts[1]) for row in kept]


def _tell_of_bad_rows(path: Path, data: Labelled) -> None:
    """Warns of rows that were left out."""
    bad = [problem for problem in data.problems[PART] if problem.bad]
    if bad:
        first = bad[0]
        rows = counted(data.num_skipped[PART], "row")
        log.warning(f"{path}: {rows} left out, the first of them row {first.row}: {first.what}; {first.remedy}.")


def _with_all_keys(rows: Rows) -> Rows:
    """The same rows, with the keys of all JSON objects as columns: the first one may be a row that nobody judged."""
    columns = dict.fromkeys(rows.columns)
    for _, fields in rows.lines:
        if isinstance(fields, Mapping):
            columns.update(dict.fromkeys(fields))
    return replace(rows, columns=list(columns))


def _known_score_column(rows: Rows, *, without: Sequence[str]) -> str:
    """The first column with a well-known name of labels or scores; empty if there is none."""
    for name in glue.LABELS:
        if name in rows.columns and name not in without:
            return name
    return ""


def _scores(rows: Rows, column: str) -> Mapping[int, float]:
    """The score of each row that has one, by the row's number; raises if one is no number, or none has one."""
    problems: list[Problem] = []
    scores: dict[int, float] = {}
    for number, values in rows.take([column], problems):
        cell = str(values[column]).strip()
        if not cell:
            continue
        try:
            scores[number] = _finite(cell)
        except ValueError:
            raise BadInput(
                f"{rows.path}, row {number}: the '{column}' is '{cell:.40}', and only numbers say how well two texts "
                f"belong together; keep the rows that do in a file without the column '{column}'."
            ) from None
    if not scores:
        raise BadInput(f"{rows.path}: the column '{column}' is empty; name another with `score_column=`.")
    return scores


def _finite(cell: str) -> float:
    score = float(cell)
    if not math.isfinite(score):
        raise ValueError
    return score


def _least_score(path: Path, column: str, scores: Mapping[int, float], min_score: float | None) -> float:
    """The lowest score with which two texts belong together; raises if it is neither given nor obvious."""
    if min_score is not None:
        return min_score
    if {*scores.values()} <= {0.0, 1.0}:
        return 1.0
    lowest = min(scores.values())
    highest = max(scores.values())
    raise BadInput(
        f"{path} has scores from {lowest:g} to {highest:g} in its column '{column}', and pairs with low ones do not "
        f"belong together; say from which score on they do, such as `min_score={(lowest + highest) / 2:g}`."
    )
