"""Numbers against numbers, or against yes and no: correlations, ROC AUC, the best threshold."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from firth.metrics.classification import nan, same_length

_Score = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]
"""(true positives, predicted positives, all positives, examples) -> score, for many thresholds at once."""


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Pearson correlation; nan for fewer than two values or a constant side."""
    a = np.asarray(x, np.float64)
    b = np.asarray(y, np.float64)
    same_length(a, b)
    if len(a) < 2:
        return nan
    if (a == a[0]).all() or (b == b[0]).all():
        return nan
    unit_a = _unit(a - a.mean())
    unit_b = _unit(b - b.mean())
    # Rounding may leave the range.
    return float(np.clip(unit_a @ unit_b, -1, 1))


def _unit(vector: np.ndarray) -> np.ndarray:
    """The vector of length 1 in the same direction."""
    return np.asarray(vector / np.linalg.norm(vector))


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Pearson correlation of the ranks; ties share their mean rank."""
    return pearson(_ranks(x), _ranks(y))


def roc_auc(positive: ArrayLike, scores: ArrayLike) -> float:
    """The probability that a positive example scores above a negative one; a tie counts half (Mann-Whitney U)."""
    is_positive = np.asarray(positive, bool)
    ranks = _ranks(scores)
    same_length(is_positive, ranks)
    num_positive = int(is_positive.sum())
    num_negative = len(ranks) - num_positive
    num_pairs = num_positive * num_negative
    if not num_pairs:
        return nan
    # U is the rank sum of the positives minus the lowest one possible, 1 + 2 + ... + n.
    lowest_sum = num_positive * (num_positive + 1) / 2
    rank_sum = ranks[is_positive].sum()
    return float((rank_sum - lowest_sum) / num_pairs)


def best_accuracy(positive: ArrayLike, scores: ArrayLike) -> tuple[float, float]:
    """The best accuracy of `score >= threshold`, and the threshold (the middle of the gap; lowest of equals)."""

    def accuracy(right: np.ndarray, predicted: np.ndarray, num_positive: int, num_examples: int) -> np.ndarray:
        # Neither predicted nor positive; right ones were taken off twice.
        true_negatives = num_examples - predicted - num_positive + right
        return np.asarray((right + true_negatives) / num_examples)

    return _best_threshold(positive, scores, accuracy)


def best_f1(positive: ArrayLike, scores: ArrayLike) -> tuple[float, float]:
    """The best F1 of `score >= threshold`, and the threshold."""

    def f1(right: np.ndarray, predicted: np.ndarray, num_positive: int, num_examples: int) -> np.ndarray:
        return np.asarray(2 * right / np.maximum(predicted + num_positive, 1))

    return _best_threshold(positive, scores, f1)


def _ranks(values: ArrayLike) -> np.ndarray:
    """Ranks from 1 on; ties share their mean rank, and nan has the rank nan."""
    array = np.asarray(values, np.float64)
    _, group, sizes = np.unique(array, return_inverse=True, return_counts=True)
    last_ranks = np.cumsum(sizes)
    mean_ranks = last_ranks - (sizes - 1) / 2
    return np.where(np.isnan(array), nan, mean_ranks[group])


def _best_threshold(positive: ArrayLike, scores: ArrayLike, measure: _Score) -> tuple[float, float]:
    """The highest score over all thresholds, and the lowest threshold that reaches it."""
    is_positive = np.asarray(positive, bool)
    values = np.asarray(scores, np.float64)
    same_length(is_positive, values)
    num_examples = len(values)
    if not num_examples:
        return nan, nan
    # Candidate i calls the i examples with the highest values positive, from none to all.
    order = np.argsort(-values, kind="stable")
    descending = values[order]
    thresholds = _thresholds(descending)
    num_predicted = np.arange(num_examples + 1)
    num_right = np.concatenate([[0], np.cumsum(is_positive[order])])
    num_positive = num_right[-1]
    figures = measure(num_right, num_predicted, num_positive, num_examples).astype(np.float64)
    # A threshold cannot lie between equal values.
    is_tie = descending[:-1] == descending[1:]
    figures[1:-1][is_tie] = -1
    # The last maximum has the lowest threshold.
    best = num_examples - int(figures[::-1].argmax())
    return float(figures[best]), float(thresholds[best])


def _thresholds(descending: np.ndarray) -> np.ndarray:
    """Above all values, in the middle of every gap, and at the lowest value."""
    above = descending[:-1]
    below = descending[1:]
    middle = below + (above - below) / 2
    # Between neighbouring floats the middle is rounded to one of them; it must not be the lower one.
    middle = np.where(middle > below, middle, above)
    return np.concatenate([[descending[0] + 1], middle, descending[-1:]])
