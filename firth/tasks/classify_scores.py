"""Figures and tables of `classify`, by the kind of its labels.

In: gold and predicted labels. Out: of numbers correlations, of sets of names micro and macro F1, of one name (for each
of several label columns) accuracy, F1 and more.
"""

from collections.abc import Sequence

import numpy as np

from firth import metrics
from firth.tasks.task import Details, Figures, Labels, most_frequent

Names = tuple[str, ...]


def number_figures(gold: Sequence[float], predicted: Sequence[float]) -> Figures:
    errors = np.abs(np.subtract(gold, predicted))
    return {
        "pearson": metrics.pearson(gold, predicted),
        "spearman": metrics.spearman(gold, predicted),
        "mean_error": float(np.mean(errors)),
    }


def many_figures(gold: Sequence[Names], predicted: Sequence[Names], labels: Labels) -> Figures:
    """Of any number of names for each row."""
    (names,) = labels.values()
    gold_sets = [set(row) for row in gold]
    predicted_sets = [set(row) for row in predicted]
    table = metrics.multilabel_f1(gold_sets, predicted_sets, labels=names)
    return {
        "micro_f1": table.micro.f1,
        "macro_f1": table.macro.f1,
        "exact_match": metrics.exact_match(gold_sets, predicted_sets),
    }


def one_figures(gold: Sequence[str], predicted: Sequence[str], *, positive: str) -> Figures:
    """Of one name for each row; with a `positive` name also its F1."""
    table = metrics.f1(gold, predicted)
    figures = {"accuracy": metrics.accuracy(gold, predicted), "macro_f1": table.macro.f1}
    if positive:
        # Neither gold nor predictions may have the name.
        row = table.rows.get(positive)
        figures["f1"] = row.f1 if row else 0.0
    figures["matthews"] = metrics.matthews(gold, predicted)
    return figures


def grouped_figures(gold: Sequence[Names], predicted: Sequence[Names], labels: Labels, *, positive: str) -> Figures:
    """Of one name for each label column: the means over the columns, and each column's own figures."""
    # A label is a tuple with one name for each column.
    by_group: dict[str, dict[str, float]] = {}
    for column, group in enumerate(labels):
        gold_names = [row[column] for row in gold]
        predicted_names = [row[column] for row in predicted]
        by_group[group] = one_figures(gold_names, predicted_names, positive=positive)
    figures: dict[str, float] = {}
    for key in ("accuracy", "macro_f1"):
        values = [group_figures[key] for group_figures in by_group.values()]
        figures[key] = float(np.mean(values))
    for group, group_figures in by_group.items():
        for key, value in group_figures.items():
            figures[f"{group}_{key}"] = value
    return figures


def many_details(gold: Sequence[Names], predicted: Sequence[Names], names: Names) -> Details:
    gold_sets = [set(row) for row in gold]
    predicted_sets = [set(row) for row in predicted]
    table = metrics.multilabel_f1(gold_sets, predicted_sets, labels=names)
    return {"per_label": metrics.as_rows(table)}


def one_details(gold: Sequence[str], predicted: Sequence[str], names: Names) -> Details:
    known, counts_TT = metrics.confusion(gold, predicted, labels=names)
    table = metrics.f1(gold, predicted, labels=names)
    return {
        "confusion": {"labels": known, "counts": counts_TT.tolist()},
        "per_label": metrics.as_rows(table),
    }


def most_frequent_names(golds: Sequence[Names]) -> Names:
    """The most frequent name of each label column."""
    columns = zip(*golds, strict=True)
    return tuple(most_frequent(column) for column in columns)
