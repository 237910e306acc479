"""What gold and predicted labels of `classify` are worth: figures and tables, by the kind of label."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from firth import metrics
from firth.tasks.task import Details, Labels


def usual(golds: Sequence[Any], labels: Labels, *, kind: str) -> Any:
    """What someone says who never reads: the mean, or the most frequent name, set of names, or name of each group."""
    if kind == "number":
        return float(np.mean(golds))
    groups = zip(*golds, strict=True) if len(labels) > 1 else [golds]
    names = tuple(_most_frequent(group) for group in groups)
    return names if len(labels) > 1 else names[0]


def _most_frequent(values: Iterable[Any]) -> Any:
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))


def figures(
    gold: Sequence[Any], guessed: Sequence[Any], labels: Labels, *, kind: str, positive: str
) -> dict[str, float]:
    """Of numbers correlations, of sets of names micro and macro F1, of one name accuracy and more, for each group."""
    if kind == "number":
        found = {"pearson": metrics.pearson(gold, guessed), "spearman": metrics.spearman(gold, guessed)}
        return found | {"mean_error": float(np.mean(np.abs(np.subtract(gold, guessed))))}
    if kind == "many":
        (names,) = labels.values()
        sets = [set(g) for g in gold], [set(g) for g in guessed]
        table = metrics.multilabel_f1(*sets, labels=names)
        return {"micro_f1": table.micro.f1, "macro_f1": table.macro.f1, "exact_match": metrics.exact_match(*sets)}
    if len(labels) == 1:
        return _one_group(gold, guessed, positive)
    groups = {
        name: _one_group([g[i] for g in gold], [g[i] for g in guessed], positive) for i, name in enumerate(labels)
    }
    means = {key: float(np.mean([f[key] for f in groups.values()])) for key in ("accuracy", "macro_f1")}
    return means | {f"{name}_{key}": v for name, f in groups.items() for key, v in f.items()}


def _one_group(gold: Sequence[str], guessed: Sequence[str], positive: str) -> dict[str, float]:
    table = metrics.f1(gold, guessed)
    found = {"accuracy": metrics.accuracy(gold, guessed), "macro_f1": table.macro.f1}
    if positive:
        row = table.rows.get(positive)
        found["f1"] = row.f1 if row else 0.0
    return found | {"matthews": metrics.matthews(gold, guessed)}


def tables(gold: Sequence[Any], guessed: Sequence[Any], labels: Labels, *, kind: str) -> Details:
    """The confusion of one group of names, and a row for each name; of numbers and several groups nothing."""
    if kind == "number" or len(labels) > 1:
        return {}
    (names,) = labels.values()
    if kind == "many":
        table = metrics.multilabel_f1([set(g) for g in gold], [set(g) for g in guessed], labels=names)
        return {"per_label": metrics.as_rows(table)}
    known, counts_TT = metrics.confusion(gold, guessed, labels=names)
    rows = metrics.as_rows(metrics.f1(gold, guessed, labels=names))
    return {"confusion": {"labels": known, "counts": counts_TT.tolist()}, "per_label": rows}
