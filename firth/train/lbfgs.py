"""Minimises a smooth function of many numbers from its gradient: L-BFGS (Liu & Nocedal 1989).

In: a function that gives value and gradient, and a starting point. Out: the best point found. With `l1` the sum of
absolute values is added and kept exact by OWL-QN (Andrew & Gao 2007): many numbers end at zero. Where the curvatures of
the numbers differ by orders, as those of frequent and rare features do, `scale` says so and saves most iterations.
"""

from collections import deque
from collections.abc import Callable

import numpy as np

MEMORY = 6
"""Steps remembered to know the curvature by."""
PERIOD = 10
"""The gain is judged over this many iterations."""
_ENOUGH = 1e-4  # Armijo's constant

Function = Callable[[np.ndarray], tuple[float, np.ndarray]]
Report = Callable[[int, float], None]


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
    steps: deque[tuple[np.ndarray, np.ndarray, float]] = deque(maxlen=MEMORY)
    history = [value]
    for iteration in range(1, iterations + 1):
        slope = _pseudo_gradient(x, gradient, l1) if l1 else gradient
        direction = -_curved(slope, steps, scale)
        if l1:
            direction[direction * slope >= 0] = 0.0
        found = _search(function, x, value, slope=slope, direction=direction, l1=l1, first=not steps)
        if found is None:
            break
        nearer, value, new_gradient = found
        step, change = nearer - x, new_gradient - gradient
        if (curvature := float(step @ change)) > 1e-10 * float(change @ change):
            steps.append((step, change, curvature))
        x, gradient = nearer, new_gradient
        history.append(value)
        report(iteration, value)
        if len(history) > PERIOD and history[-1 - PERIOD] - value < tolerance * abs(value):
            break
    return x


def _pseudo_gradient(x: np.ndarray, gradient: np.ndarray, l1: float) -> np.ndarray:
    """The steepest slope where the absolute value has a corner."""
    at_zero = np.sign(gradient) * np.maximum(np.abs(gradient) - l1, 0.0)
    return np.asarray(np.where(x == 0, at_zero, gradient + l1 * np.sign(x)))


def _curved(
    slope: np.ndarray, steps: deque[tuple[np.ndarray, np.ndarray, float]], scale: np.ndarray | float
) -> np.ndarray:
    """The slope times the inverse curvature that the last steps tell of (the two-loop recursion)."""
    result, shares = slope.copy(), []
    for step, change, curvature in reversed(steps):
        shares.append(float(step @ result) / curvature)
        result -= shares[-1] * change
    result *= scale
    if steps:
        _, change, curvature = steps[-1]
        result *= curvature / float(change @ (scale * change))
    for (step, change, curvature), share in zip(steps, reversed(shares), strict=True):
        result += (share - float(change @ result) / curvature) * step
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
) -> tuple[np.ndarray, float, np.ndarray] | None:
    """Halves the step until it gains enough; with l1 no number may cross zero. None where nothing is to be gained."""
    if not np.any(slope) or float(slope @ direction) >= 0:
        return None
    rate = 1.0 / float(np.sqrt(direction @ direction)) if first else 1.0
    side = np.where(x == 0, -np.sign(slope), np.sign(x)) if l1 else None
    for _ in range(30):
        nearer = x + rate * direction
        if side is not None:
            nearer[nearer * side < 0] = 0.0
        smooth, gradient = function(nearer)
        new = smooth + l1 * float(np.abs(nearer).sum()) if l1 else smooth
        if new <= value + _ENOUGH * float(slope @ (nearer - x)):
            return nearer, new, gradient
        rate /= 2
    return None
