"""Labels of `classify` as numbers that a head learns, and its scores as labels again.

A label is one name for each label column (kind=one), any of several names (kind=many), or a number. The scores of all
names lie side by side, column after column. Shapes: E examples, G label columns, T names of all columns.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from firth.tasks.classify_scores import Names
from firth.tasks.task import Labels, index_of
from firth.types import Prediction


def names_by_group(gold: str | Names, *, kind: str) -> list[set[str]]:
    """The names that a row has in each label column."""
    if isinstance(gold, str):
        return [{gold}]
    if kind == "many":
        return [set(gold)]
    return [{name} for name in gold]


def balanced_weights(golds: Sequence[str | Names], labels: Labels, *, kind: str) -> list[float]:
    """A weight for each name, with which all names of a label column count alike; their mean over the rows is 1."""
    weights: list[float] = []
    for group, names in enumerate(labels.values()):
        counts: Counter[str] = Counter()
        for gold in golds:
            counts.update(names_by_group(gold, kind=kind)[group])
        total = sum(counts.values())
        for name in names:
            weights.append(total / (len(names) * max(counts[name], 1)))
    return weights


# Labels -> targets


def number_targets(golds: Sequence[float], *, centre: float, scale: float) -> Tensor:
    """E standardised numbers."""
    golds_E = np.array(golds, np.float64)
    values_E = (golds_E - centre) / scale
    return torch.from_numpy(values_E).float()


def many_targets(golds: Sequence[Names], labels: Labels) -> Tensor:
    """E x T: 1 for each name that a row has."""
    (names,) = labels.values()
    index = index_of(names)
    targets_ET = torch.zeros(len(golds), len(names))
    for row, gold in enumerate(golds):
        columns = [index[name] for name in gold]
        targets_ET[row, columns] = 1
    return targets_ET


def one_targets(golds: Sequence[str | Names], labels: Labels) -> Tensor:
    """E x G: the index of a row's name within each label column."""
    indices = [index_of(names) for names in labels.values()]
    rows = []
    for gold in golds:
        names = (gold,) if isinstance(gold, str) else gold
        rows.append([index[name] for index, name in zip(indices, names, strict=True)])
    return torch.tensor(rows)


# Scores -> labels


def decide_many(scores_T: np.ndarray, labels: Labels, *, threshold: float) -> Prediction:
    """The names whose probability is above the threshold; the confidence is that of all these choices together."""
    (names,) = labels.values()
    probabilities_T = 1 / (1 + np.exp(-scores_T.astype(np.float64)))
    probabilities = dict(zip(names, probabilities_T.tolist(), strict=True))
    chosen = tuple(name for name in names if probabilities[name] > threshold)
    confidence = 1.0
    for name, probability in probabilities.items():
        confidence *= probability if name in chosen else 1 - probability
    return Prediction(chosen, confidence, probabilities)


def decide_one(scores_T: np.ndarray, labels: Labels, slices: Sequence[slice]) -> Prediction:
    """The likeliest name of each label column; `slices` are the columns' parts of the scores."""
    has_groups = len(labels) > 1
    chosen = []
    confidence = 1.0
    probabilities: dict[str, float] = {}
    for (group, names), part in zip(labels.items(), slices, strict=True):
        # A softmax within the group.
        group_T = scores_T[part]
        probabilities_T = np.exp(group_T - group_T.max(), dtype=np.float64)
        probabilities_T /= probabilities_T.sum()
        chosen.append(names[int(probabilities_T.argmax())])
        confidence *= float(probabilities_T.max())
        for name, probability in zip(names, probabilities_T.tolist(), strict=True):
            shown = f"{group}={name}" if has_groups else name
            probabilities[shown] = probability
    label = tuple(chosen) if has_groups else chosen[0]
    return Prediction(label, confidence, probabilities)
