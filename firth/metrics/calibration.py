"""Whether probabilities are calibrated: confidences and whether each answer was right in; errors and thresholds out.

The expected calibration error and temperature scaling are those of Guo et al. 2017 (On Calibration of Modern Neural
Networks, equations 3 and 9).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from firth.metrics.classification import mean, nan, same_length

BINS = 15
"""Intervals of equal width that the calibration error compares in, as in the paper."""
PRIOR_DEVIATION = 0.7
"""Standard deviation of the temperature's logarithm before any row is seen. Without it, a few rows that are all right
would make the model infinitely confident."""
_LOWEST = math.log(0.05)
_HIGHEST = math.log(20.0)
"""The logarithms of the temperatures that are searched."""
_GOLDEN = (math.sqrt(5) - 1) / 2
"""The share of an interval that golden-section search keeps in a step."""
_SEARCH_STEPS = 60
"""Steps of the search, after which the interval is as short as the rounding of floats."""


@dataclass(frozen=True)
class ReliabilityBin:
    """The answers whose confidence lies in one interval."""

    low: float
    high: float
    count: int
    confidence: float
    """Their mean confidence; nan without answers."""
    accuracy: float
    """The share of them that is right; nan without answers."""


@dataclass(frozen=True)
class AbstainThreshold:
    """Answers below this confidence are left to a person, so that the others reach a wanted precision."""

    wanted: float
    above: float
    answered: float
    """The share of the rows that is still answered."""
    precision: float
    """The share of these answers that is right."""


def reliability(confidences: ArrayLike, right: ArrayLike, *, bins: int = BINS) -> list[ReliabilityBin]:
    """The answers in intervals of equal width; the diagram of a calibrated model has accuracy equal to confidence."""
    confidence = np.asarray(confidences, np.float64)
    is_right = np.asarray(right, bool)
    same_length(confidence, is_right)
    places = np.clip((confidence * bins).astype(int), 0, bins - 1)
    found = []
    for place in range(bins):
        members = places == place
        interval = ReliabilityBin(
            low=place / bins,
            high=(place + 1) / bins,
            count=int(members.sum()),
            confidence=mean(confidence[members]),
            accuracy=mean(is_right[members]),
        )
        found.append(interval)
    return found


def calibration_error(confidences: ArrayLike, right: ArrayLike, *, bins: int = BINS) -> float:
    """The mean distance of confidence and accuracy over the intervals, weighted by their answers; nan without any."""
    found = reliability(confidences, right, bins=bins)
    total = sum(each.count for each in found)
    if not total:
        return nan
    weighted_distances = []
    for each in found:
        if each.count:
            distance = abs(each.confidence - each.accuracy)
            weighted_distances.append(each.count * distance)
    return sum(weighted_distances) / total


def best_temperature(log_probabilities: ArrayLike, gold: ArrayLike) -> float:
    """The divisor of the scores that makes the gold labels most likely.

    `log_probabilities` is E x T (any scores whose softmax are the probabilities), `gold` the index of each row's label.
    """
    scores_ET = np.asarray(log_probabilities, np.float64)
    gold_E = np.asarray(gold, np.int64)
    rows_E = np.arange(len(gold_E))

    def cost(log_temperature: float) -> float:
        scaled_ET = scores_ET / math.exp(log_temperature)
        highest_E1 = scaled_ET.max(1, keepdims=True)
        powers_ET = np.exp(scaled_ET - highest_E1)
        totals_E = np.log(powers_ET.sum(1)) + highest_E1[:, 0]
        gold_scores_E = scaled_ET[rows_E, gold_E]
        negative_likelihood = float((totals_E - gold_scores_E).sum())
        # The temperature has a log-normal prior around 1.
        prior = 0.5 * (log_temperature / PRIOR_DEVIATION) ** 2
        return negative_likelihood + prior

    return math.exp(_lowest_point(cost))


def _lowest_point(cost: Callable[[float], float]) -> float:
    """The minimum of a function with one valley, by golden-section search."""
    low = _LOWEST
    high = _HIGHEST
    first = high - _GOLDEN * (high - low)
    second = low + _GOLDEN * (high - low)
    for _ in range(_SEARCH_STEPS):
        if cost(first) < cost(second):
            high = second
        else:
            low = first
        first = high - _GOLDEN * (high - low)
        second = low + _GOLDEN * (high - low)
    return (low + high) / 2


def at_temperature(probabilities: ArrayLike, temperature: float) -> np.ndarray:
    """Probabilities (E x T) as they would be if the scores were divided by this temperature."""
    probabilities_ET = np.asarray(probabilities, np.float64)
    # No logarithm of 0.
    positive_ET = np.maximum(probabilities_ET, 1e-300)
    log_ET = np.log(positive_ET) / temperature
    highest_E1 = log_ET.max(1, keepdims=True)
    powers_ET = np.exp(log_ET - highest_E1)
    totals_E1 = powers_ET.sum(1, keepdims=True)
    return np.asarray(powers_ET / totals_E1)


def abstain_threshold(confidences: ArrayLike, right: ArrayLike, wanted: float) -> AbstainThreshold | None:
    """The lowest confidence above which answers have the wanted precision; None if no threshold has it.

    Precision is estimated with one wrong and one right answer more than there are (Laplace), so that a threshold above
    which only few answers lie is not trusted.
    """
    confidence = np.asarray(confidences, np.float64)
    is_right = np.asarray(right, bool)
    same_length(confidence, is_right)
    if not len(confidence):
        return None
    order = np.argsort(-confidence, kind="stable")
    counts = np.arange(1, len(order) + 1)
    num_right = np.cumsum(is_right[order])
    # Answers of equal confidence are given together or not at all.
    sorted_confidence = confidence[order]
    differs_from_next = sorted_confidence[1:] != sorted_confidence[:-1]
    is_last = np.append(differs_from_next, True)
    precisions = (num_right + 1) / (counts + 2)
    reaches = (precisions >= wanted) & is_last
    if not reaches.any():
        return None
    place = int(np.flatnonzero(reaches)[-1])
    return AbstainThreshold(
        wanted=wanted,
        above=float(sorted_confidence[place]),
        answered=float(counts[place] / len(order)),
        precision=float(num_right[place] / counts[place]),
    )


def answered_above(confidences: ArrayLike, right: ArrayLike, above: float) -> tuple[float, float]:
    """The share of rows with at least this confidence, and the share of them that is right; nan without any."""
    is_answered = np.asarray(confidences, np.float64) >= above
    is_right = np.asarray(right, bool)
    return mean(is_answered), mean(is_right[is_answered])
