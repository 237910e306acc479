"""Minimises a smooth function of many numbers from its gradient: L-BFGS (Liu & Nocedal 1989).

In: a function that gives value and gradient, and a starting point. Out: the best point found. With `l1` the sum of
absolute values is added and kept exact by OWL-QN (Andrew & Gao 2007): many numbers end at zero. If the curvatures of
the numbers differ by orders of magnitude, as those of frequent and rare features do, `scale` saves most iterations.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

MEMORY = 6
"""Steps from which the curvature is estimated."""
PERIOD = 10
"""The gain is judged over this many iterations."""
MOST_HALVINGS = 30
"""How often the line search halves its step before it gives up."""
_SUFFICIENT_DECREASE = 1e-4  # Armijo's constant

Function = Callable[[np.ndarray], tuple[float, np.ndarray]]
Report = Callable[[int, float], None]


class _Step(NamedTuple):
    """A step of the past, called s and y in the paper, with their product."""

    step: np.ndarray
    gradient_change: np.ndarray
    curvature: float


class _Point(NamedTuple):
    """A point that the line search accepted."""

    x: np.ndarray
    value: float
    gradient: np.ndarray


def minimise(
    function: Function,
    x: np.ndarray,
    *,
    l1: float = 0.0,
    iterations: int = 100,
    tolerance: float = 1e-5,
    scale: np.ndarray | float = 1.0,
    report: Report = lambda iteration, value: None,
) -> np.ndarray:
    """Stops after `iterations`, or when the last ones gained less than `tolerance` of the value.

    `scale` is about the inverse curvature of each number, up to a common factor.
    """
    smooth, gradient = function(x)
    value = smooth + l1 * float(np.abs(x).sum())
    steps: deque[_Step] = deque(maxlen=MEMORY)
    history = [value]
    for iteration in range(1, iterations + 1):
        slope = _pseudo_gradient(x, gradient, l1) if l1 else gradient
        direction = -_times_inverse_curvature(slope, steps, scale)
        if l1:
            # OWL-QN: only numbers for which the direction goes downhill are moved.
            direction[direction * slope >= 0] = 0.0
        found = _search(function, x, value, slope=slope, direction=direction, l1=l1, first=not steps)
        if found is None:
            break
        step = found.x - x
        gradient_change = found.gradient - gradient
        curvature = float(step @ gradient_change)
        # Without clearly positive curvature the step would spoil the estimate.
        if curvature > 1e-10 * float(gradient_change @ gradient_change):
            steps.append(_Step(step, gradient_change, curvature))
        x = found.x
        value = found.value
        gradient = found.gradient
        history.append(value)
        report(iteration, value)
        least_fall = tolerance * abs(value)
        if len(history) > PERIOD and history[-1 - PERIOD] - value < least_fall:
            break
    return x


def _pseudo_gradient(x: np.ndarray, gradient: np.ndarray, l1: float) -> np.ndarray:
    """The steepest slope where the absolute value has a corner."""
    at_zero = np.sign(gradient) * np.maximum(np.abs(gradient) - l1, 0.0)
    elsewhere = gradient + l1 * np.sign(x)
    return np.asarray(np.where(x == 0, at_zero, elsewhere))


def _times_inverse_curvature(slope: np.ndarray, steps: deque[_Step], scale: np.ndarray | float) -> np.ndarray:
    """The slope times the inverse curvature as the last steps estimate it: the two-loop recursion."""
    # From the newest step to the oldest, then back; between them the curvature is `scale` alone.
    result = slope.copy()
    shares: list[float] = []
    for past in reversed(steps):
        share = float(past.step @ result) / past.curvature
        shares.append(share)
        result -= share * past.gradient_change
    result *= scale
    if steps:
        last = steps[-1]
        result *= last.curvature / float(last.gradient_change @ (scale * last.gradient_change))
    for past, share in zip(steps, reversed(shares), strict=True):
        correction = share - float(past.gradient_change @ result) / past.curvature
        result += correction * past.step
    return result


def _search(
    function: Function,
    x: np.ndarray,
    value: float,
    *,
    slope: np.ndarray,
    direction: np.ndarray,
    l1: float,
    first: bool,
) -> _Point | None:
    """Halves the step until it gains enough; with l1 no number may cross zero. None if nothing can be gained."""
    if not np.any(slope) or float(slope @ direction) >= 0:
        return None
    rate = 1.0
    if first:
        # No curvature is known yet, so the first step has length 1.
        rate = 1.0 / float(np.sqrt(direction @ direction))
    side = None
    if l1:
        # The orthant to stay in: that of the point, or of the downhill direction from zero.
        side = np.where(x == 0, -np.sign(slope), np.sign(x))
    for _ in range(MOST_HALVINGS):
        candidate = x + rate * direction
        if side is not None:
            candidate[candidate * side < 0] = 0.0
        new_value, gradient = function(candidate)
        if l1:
            new_value = new_value + l1 * float(np.abs(candidate).sum())
        # Armijo's condition: the value must fall by a share of what the slope promises.
        if new_value <= value + _SUFFICIENT_DECREASE * float(slope @ (candidate - x)):
            return _Point(candidate, new_value, gradient)
        rate /= 2
    return None
