"""Scores of several seeds -> means and differences with intervals.

Student's t, because there are few seeds. Where two systems were scored with the same seeds, the difference is taken
seed by seed. Several claims of one study are tested together: Holm's correction (1979) keeps the chance of any false
verdict below the level.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

LEVEL = 0.05
"""The chance of a false verdict."""
SMALLEST_ERROR = 1e-9
"""A standard error below this comes from the rounding of floats: scores have six digits."""


@dataclass(frozen=True)
class Interval:
    """A mean, and the range that holds the true one with the probability 1 - level."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def is_known(self) -> bool:
        """Whether there are enough seeds for a range."""
        return self.count > 1


def mean_interval(scores: Sequence[float], *, level: float = LEVEL) -> Interval:
    """The mean of some scores; with a single one, the range is everything."""
    mean = statistics.fmean(scores)
    count = len(scores)
    if count < 2:
        return Interval(mean, -math.inf, math.inf, count)
    half = _standard_error(scores) * t_quantile(1 - level / 2, count - 1)
    return Interval(mean, mean - half, mean + half, count)


def p_value(differences: Sequence[float]) -> float:
    """The two-sided probability of a mean this far from 0 if there were no difference."""
    count = len(differences)
    if count < 2:
        return 1.0
    mean = statistics.fmean(differences)
    error = _standard_error(differences)
    if not error:
        # Equal differences, such as one row of a small set: only their sign says something (sign test).
        return 1.0 if abs(mean) < SMALLEST_ERROR else 2.0 ** (1 - count)
    return 2 * (1 - t_probability(abs(mean) / error, count - 1))


def _standard_error(values: Sequence[float]) -> float:
    """That of their mean; 0 if they are equal but for rounding."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    return error if error >= SMALLEST_ERROR else 0.0


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values after Holm's correction, in the order given."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        scaled = min(1.0, p_values[index] * (len(p_values) - rank))
        largest = max(largest, scaled)
        corrected[index] = largest
    return corrected


Outcome = Literal["holds", "reversed", "undecided"]


def outcome(difference: float, corrected_p: float, *, level: float = LEVEL) -> Outcome:
    """What a difference says about the claim that it is above 0."""
    if corrected_p >= level:
        return "undecided"
    return "holds" if difference > 0 else "reversed"


_POINTS = 20_001
"""Points of the numerical integral of Student's density."""


def t_probability(t: float, freedom: int) -> float:
    """The probability that a value of Student's distribution is below t."""
    # With x = tan(angle) * sqrt(freedom) the whole axis becomes a finite range, and the density a power of the cosine.
    angle = math.atan(t / math.sqrt(freedom))
    angles = np.linspace(-math.pi / 2, math.pi / 2, _POINTS)
    weights = np.cos(angles) ** (freedom - 1)
    below = np.linspace(-math.pi / 2, angle, _POINTS)
    return _area(np.cos(below) ** (freedom - 1), below) / _area(weights, angles)


def _area(heights: np.ndarray, places: np.ndarray) -> float:
    """The integral by trapezoids."""
    widths = np.diff(places)
    return float(((heights[1:] + heights[:-1]) / 2 * widths).sum())


@cache
def t_quantile(probability: float, freedom: int) -> float:
    """The value that a value of Student's distribution is below with this probability, by bisection.

    A page has hundreds of intervals of the same few numbers of seeds, so values are kept.
    """
    low = -1e4
    high = 1e4
    for _ in range(100):
        middle = (low + high) / 2
        if t_probability(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2
