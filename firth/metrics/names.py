"""Labels by name: accuracy, precision, recall and F1, Matthews; and the tables of scores that others fill too."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from firth.errors import BadInput

nan = float("nan")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table of scores; `support` counts the gold items."""

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, slots=True)
class Table:
    """A row for each label, the row of all decisions together, and the plain mean of the labels' rows."""

    rows: Mapping[str, Row]
    micro: Row
    macro: Row


def as_rows(table: Table) -> dict[str, Any]:
    """A table for reports: label, precision, recall, F1, support."""
    return {"per_label": [[name, row.precision, row.recall, row.f1, row.support] for name, row in table.rows.items()]}


def accuracy(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """The share of labels with the right name."""
    same_length(gold, predicted)
    return mean([str(g) == str(p) for g, p in zip(gold, predicted, strict=True)])


def confusion(gold: Sequence[Any], predicted: Sequence[Any], *, labels: Sequence[str] = ()) -> tuple[list[str], Any]:
    """Label names, and counts with a row for each gold and a column for each predicted label."""
    same_length(gold, predicted)
    names = list(labels) or sorted({*map(str, gold), *map(str, predicted)})
    index = {name: i for i, name in enumerate(names)}
    counts_TT = np.zeros((len(names), len(names)), np.int64)
    try:
        pairs = [(index[str(g)], index[str(p)]) for g, p in zip(gold, predicted, strict=True)]
    except KeyError as missing:
        raise BadInput(f"Label {missing} is not among the known labels ({', '.join(names)}).") from None
    np.add.at(counts_TT, tuple(np.array(pairs, np.int64).reshape(-1, 2).T), 1)
    return names, counts_TT


def f1(gold: Sequence[Any], predicted: Sequence[Any], *, labels: Sequence[str] = ()) -> Table:
    """One label an example: `.macro.f1`, `.micro.f1`, and `.rows[positive].f1` for the binary one."""
    names, counts_TT = confusion(gold, predicted, labels=labels)
    return table_of(names, counts_TT.diagonal(), counts_TT.sum(0), counts_TT.sum(1))


def multilabel_f1(gold: Sequence[Set[str]], predicted: Sequence[Set[str]], *, labels: Sequence[str] = ()) -> Table:
    """Any number of labels an example; `labels` adds those that nobody used to the macro mean."""
    same_length(gold, predicted)
    right = Counter(name for g, p in zip(gold, predicted, strict=True) for name in g & p)
    guessed, wanted = (Counter(name for names in side for name in names) for side in (predicted, gold))
    names = sorted({*labels, *guessed, *wanted})
    return table_of(names, *([count[name] for name in names] for count in (right, guessed, wanted)))


def exact_match(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """The share of examples whose whole answer (a set of labels, a list of tags) is right."""
    same_length(gold, predicted)
    return mean([g == p for g, p in zip(gold, predicted, strict=True)])


def matthews(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Matthews correlation, for two labels or more (Gorodkin 2004, R_K)."""
    counts_TT = confusion(gold, predicted)[1].astype(np.float64)
    wanted, guessed, total = counts_TT.sum(1), counts_TT.sum(0), counts_TT.sum()
    covariance = counts_TT.trace() * total - wanted @ guessed
    spread = (total**2 - wanted @ wanted) * (total**2 - guessed @ guessed)
    return float(covariance / np.sqrt(spread)) if spread else 0.0


def table_of(names: Sequence[str], right: Any, guessed: Any, wanted: Any) -> Table:
    rows = [row_of(*counts) for counts in zip(right, guessed, wanted, strict=True)]
    micro = row_of(sum(right), sum(guessed), sum(wanted))
    means = np.mean([(row.precision, row.recall, row.f1) for row in rows] or [(0.0, 0.0, 0.0)], 0).tolist()
    return Table(dict(zip(names, rows, strict=True)), micro, Row(means[0], means[1], means[2], micro.support))


def row_of(right: int, guessed: int, wanted: int) -> Row:
    def share(part: float, whole: float) -> float:
        return float(part / whole) if whole else 0.0

    return Row(share(right, guessed), share(right, wanted), share(2 * right, guessed + wanted), int(wanted))


def mean(values: Any) -> float:
    return float(np.mean(values)) if len(values) else nan


def same_length(gold: Any, predicted: Any) -> None:
    if len(gold) != len(predicted):
        raise BadInput(f"There are {len(predicted)} predictions for {len(gold)} examples; predict the same file again.")
