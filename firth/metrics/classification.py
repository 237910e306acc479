"""Labels by name: accuracy, precision, recall and F1, Matthews correlation; and the score tables other metrics fill."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set, Sized
from dataclasses import dataclass

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


def as_rows(table: Table) -> list[list[str | float]]:
    """A table for reports: label, precision, recall, F1, support."""
    lines: list[list[str | float]] = []
    for name, row in table.rows.items():
        lines.append([name, row.precision, row.recall, row.f1, row.support])
    return lines


def accuracy(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """The share of labels with the right name."""
    same_length(gold, predicted)
    is_right = []
    for gold_label, predicted_label in zip(gold, predicted, strict=True):
        is_right.append(str(gold_label) == str(predicted_label))
    return mean(is_right)


def confusion(
    gold: Sequence[object],
    predicted: Sequence[object],
    *,
    labels: Sequence[str] = (),
) -> tuple[list[str], np.ndarray]:
    """Label names, and counts with a row for each gold and a column for each predicted label."""
    same_length(gold, predicted)
    # Labels are compared by name: 1 and "1" are the same label.
    gold_names = list(map(str, gold))
    predicted_names = list(map(str, predicted))
    names = list(labels) or sorted({*gold_names, *predicted_names})
    index = {name: i for i, name in enumerate(names)}
    pairs: list[tuple[int, int]] = []
    try:
        for gold_name, predicted_name in zip(gold_names, predicted_names, strict=True):
            pairs.append((index[gold_name], index[predicted_name]))
    except KeyError as missing:
        raise BadInput(f"Label {missing} is not among the known labels ({', '.join(names)}).") from None
    # The shape is given, because there may be no examples.
    pairs_N2 = np.array(pairs, np.int64).reshape(-1, 2)
    counts_TT = np.zeros((len(names), len(names)), np.int64)
    np.add.at(counts_TT, (pairs_N2[:, 0], pairs_N2[:, 1]), 1)
    return names, counts_TT


def f1(gold: Sequence[object], predicted: Sequence[object], *, labels: Sequence[str] = ()) -> Table:
    """F1 for one label per example.

    The result has `.macro.f1`, `.micro.f1`, and `.rows[positive].f1` for the binary one.
    """
    names, counts_TT = confusion(gold, predicted, labels=labels)
    num_right_T = counts_TT.diagonal()
    num_predicted_T = counts_TT.sum(0)
    num_gold_T = counts_TT.sum(1)
    return table_of(names, num_right_T, num_predicted_T, num_gold_T)


def multilabel_f1(gold: Sequence[Set[str]], predicted: Sequence[Set[str]], *, labels: Sequence[str] = ()) -> Table:
    """F1 for any number of labels per example; `labels` adds those that nobody used to the macro mean."""
    same_length(gold, predicted)
    num_right: Counter[str] = Counter()
    num_predicted: Counter[str] = Counter()
    num_gold: Counter[str] = Counter()
    for gold_labels, predicted_labels in zip(gold, predicted, strict=True):
        num_right.update(gold_labels & predicted_labels)
        num_predicted.update(predicted_labels)
        num_gold.update(gold_labels)
    return count_table(num_right, num_predicted, num_gold, labels=labels)


def exact_match(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """The share of examples whose whole answer (a set of labels, a list of tags) is right."""
    same_length(gold, predicted)
    is_right = [g == p for g, p in zip(gold, predicted, strict=True)]
    return mean(is_right)


def matthews(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Matthews correlation, for two labels or more (Gorodkin 2004, R_K)."""
    _, counts = confusion(gold, predicted)
    counts_TT = counts.astype(np.float64)
    gold_T = counts_TT.sum(1)
    predicted_T = counts_TT.sum(0)
    total = counts_TT.sum()
    # Covariance and variances of the two labellings, each times total squared.
    covariance = counts_TT.trace() * total - gold_T @ predicted_T
    gold_variance = total**2 - gold_T @ gold_T
    predicted_variance = total**2 - predicted_T @ predicted_T
    variances = gold_variance * predicted_variance
    if not variances:
        return 0.0
    return float(covariance / np.sqrt(variances))


def count_table(
    num_right: Counter[str],
    num_predicted: Counter[str],
    num_gold: Counter[str],
    *,
    labels: Iterable[str] = (),
) -> Table:
    """The table of counts by label, the labels in alphabetical order."""
    names = sorted({*labels, *num_predicted, *num_gold})
    right = [num_right[name] for name in names]
    predicted = [num_predicted[name] for name in names]
    gold = [num_gold[name] for name in names]
    return table_of(names, right, predicted, gold)


def table_of(
    names: Sequence[str],
    num_right: Iterable[int] | np.ndarray,
    num_predicted: Iterable[int] | np.ndarray,
    num_gold: Iterable[int] | np.ndarray,
) -> Table:
    """The table of counts, one of each kind for each name."""
    rows: dict[str, Row] = {}
    scores: list[tuple[float, float, float]] = []
    for name, right, predicted, gold in zip(names, num_right, num_predicted, num_gold, strict=True):
        row = row_of(right, predicted, gold)
        rows[name] = row
        scores.append((row.precision, row.recall, row.f1))
    # Micro: all decisions together. Macro: every label weighs the same.
    micro = row_of(sum(num_right), sum(num_predicted), sum(num_gold))
    if not scores:
        return Table(rows, micro, Row(0.0, 0.0, 0.0, micro.support))
    precision, recall, f1 = np.mean(scores, 0).tolist()
    return Table(rows, micro, Row(precision, recall, f1, micro.support))


def row_of(right: int, predicted: int, gold: int) -> Row:
    """Precision, recall and F1 of these counts; 0 where there is nothing to divide by."""
    precision = _share(right, predicted)
    recall = _share(right, gold)
    f1 = _share(2 * right, predicted + gold)
    return Row(precision, recall, f1, int(gold))


def _share(part: float, whole: float) -> float:
    if not whole:
        return 0.0
    return float(part / whole)


def mean(values: Sequence[float] | np.ndarray) -> float:
    """The mean; nan over nothing."""
    if not len(values):
        return nan
    return float(np.mean(values))


def same_length(gold: Sized, predicted: Sized) -> None:
    """Raises BadInput unless there is one prediction for each example."""
    if len(gold) != len(predicted):
        raise BadInput(f"There are {len(predicted)} predictions for {len(gold)} examples; predict the same file again.")
