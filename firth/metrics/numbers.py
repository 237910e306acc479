"""Numbers against numbers, or against yes and no: correlations, ROC, the best threshold."""

from collections.abc import Callable
from typing import Any

import numpy as np

from firth.metrics.names import nan, same_length


def pearson(x: Any, y: Any) -> float:
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    same_length(a, b)
    if len(a) < 2 or (a == a[0]).all() or (b == b[0]).all():
        return nan
    a, b = a - a.mean(), b - b.mean()
    return float(np.clip((a / np.linalg.norm(a)) @ (b / np.linalg.norm(b)), -1, 1))


def spearman(x: Any, y: Any) -> float:
    """Pearson correlation of the ranks; ties share their mean rank."""
    return pearson(_ranks(x), _ranks(y))


def roc_auc(positive: Any, scores: Any) -> float:
    """How likely a positive example scores above a negative one; a tie counts half (Mann-Whitney)."""
    is_positive, ranks = np.asarray(positive, bool), _ranks(scores)
    same_length(is_positive, ranks)
    num = int(is_positive.sum())
    pairs = num * (len(ranks) - num)
    return float((ranks[is_positive].sum() - num * (num + 1) / 2) / pairs) if pairs else nan


def best_accuracy(positive: Any, scores: Any) -> tuple[float, float]:
    """The best accuracy of `score >= threshold`, and the threshold (the middle of the gap; lowest of equals)."""
    return _best(positive, scores, lambda right, guessed, wanted, n: (n - guessed - wanted + 2 * right) / n)


def best_f1(positive: Any, scores: Any) -> tuple[float, float]:
    """The best F1 of `score >= threshold`, and the threshold."""
    return _best(positive, scores, lambda right, guessed, wanted, n: 2 * right / np.maximum(guessed + wanted, 1))


def _ranks(values: Any) -> np.ndarray:
    array = np.asarray(values, np.float64)
    _, group, sizes = np.unique(array, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(sizes) - (sizes - 1) / 2
    return np.where(np.isnan(array), nan, mean_ranks[group])


def _best(positive: Any, scores: Any, measure: Callable[..., Any]) -> tuple[float, float]:
    is_positive, values = np.asarray(positive, bool), np.asarray(scores, np.float64)
    same_length(is_positive, values)
    if not len(values):
        return nan, nan
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    above, below = ordered[:-1], ordered[1:]
    middles = np.where((middle := below + (above - below) / 2) > below, middle, above)
    thresholds = np.concatenate([[ordered[0] + 1], middles, ordered[-1:]])
    right = np.concatenate([[0], np.cumsum(is_positive[order])])
    figures = measure(right, np.arange(len(values) + 1), right[-1], len(values)).astype(np.float64)
    figures[1:-1][above == below] = -1  # a threshold cannot part equal scores
    best = len(figures) - 1 - int(figures[::-1].argmax())
    return float(figures[best]), float(thresholds[best])
