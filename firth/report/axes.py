"""Measuring tools for charts: axes with round ticks, short numbers, thinned curves, estimated text widths.

In: plain numbers and labels. Out: plain numbers and labels; the SVG itself is written in `charts.py`.
"""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Points = Sequence[tuple[float, float]]
"""(x, y) pairs."""

_FONT_SIZE = 12.5
"""Pixels; the stylesheet sets the same size for text in charts."""
_MINUS = "\u2212"
_MOST_POINTS = 480
"""A curve with more points than this is thinned before it is drawn."""
_TOLERANCE = 1e-9
"""Ticks this close to an end (in steps) count as lying on it, in spite of rounding."""


def number(value: float, digits: int = 4) -> str:
    """Short for an axis: 1500 -> 1.5k, 2000000 -> 2M, 0.00002 -> 2e-5."""
    if math.isnan(value):
        return "?"
    if math.isinf(value):
        sign = _MINUS if value < 0 else ""
        return f"{sign}∞"
    text = _plain_number(value, digits)
    return text.replace("-", _MINUS)


def _plain_number(value: float, digits: int) -> str:
    """The same with an ASCII minus sign; the value is finite."""
    # Below three digits, 123456 would become 1.2e+02k.
    precision = max(digits, 3)
    # Rounded before the unit is chosen: 999.6 is 1k, not 1e+03.
    rounded = float(f"{value:.{precision}g}")
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(rounded) >= size:
            return f"{rounded / size:.{precision}g}{letter}"
    if 0 < abs(value) < 0.01:
        mantissa, _, power = f"{value:.{digits - 2}e}".partition("e")
        return f"{float(mantissa):g}e{int(power)}"
    return f"{value:.{digits}g}"


@dataclass(frozen=True)
class Axis:
    """A range of values and the ticks on it."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, value: float) -> float:
        """The position of a value, from 0 (low) to 1 (high)."""
        if self.log:
            whole = math.log(self.high / self.low)
            return math.log(value / self.low) / whole
        return (value - self.low) / (self.high - self.low)


def axis(low: float, high: float, *, round_ends: bool = False, count: int = 5) -> Axis:
    """A linear axis with at most about `count` intervals.

    Ticks are multiples of 1, 2 or 5 times a power of ten. An axis that begins close to 0 begins at 0. With
    `round_ends` the axis is extended to the next tick on both sides.
    """
    if 0 < low < high / 10:
        low = 0.0
    if high - low <= _TOLERANCE * max(abs(high), abs(low)):
        # A single value: make room on both sides of it.
        low = low - (abs(low) / 2 or 0.5)
        high = high + (abs(high) / 2 or 0.5)
    step = _tick_step(high - low, count)
    first = low / step
    last = high / step
    if round_ends:
        low = math.floor(first + _TOLERANCE) * step
        high = math.ceil(last - _TOLERANCE) * step
        first = low / step
        last = high / step
    first_tick = math.ceil(first - _TOLERANCE)
    last_tick = math.floor(last + _TOLERANCE)
    ticks = []
    for multiple in range(first_tick, last_tick + 1):
        # Twelve digits drop the rounding error of the product: 0.3, not 0.30000000000000004.
        rounded = f"{multiple * step:.12g}"
        ticks.append(float(rounded))
    return Axis(low, high, tuple(ticks))


def _tick_step(span: float, count: int) -> float:
    """The smallest of 1, 2, 5 or 10 times a power of ten that covers the span in `count` steps."""
    power = 10.0 ** math.floor(math.log10(span / count))
    for multiple in (1, 2, 5):
        step = multiple * power
        if step * count >= span * (1 - _TOLERANCE):
            return step
    return 10 * power


def log_axis(low: float, high: float) -> Axis:
    """A logarithmic axis (low > 0): ticks at powers of ten, and at 2 and 5 times them on a short axis."""
    if high <= low:
        high = low * 10
    is_long = math.log10(high / low) > 2
    multiples = (1,) if is_long else (1, 2, 5)
    first_power = math.floor(math.log10(low))
    last_power = math.ceil(math.log10(high))
    ticks = []
    for power in range(first_power, last_power + 1):
        for multiple in multiples:
            tick = multiple * 10.0**power
            if low <= tick <= high:
                ticks.append(tick)
    return Axis(low, high, tuple(ticks), log=True)


def thinned(points: Points) -> Points:
    """At most about 480 points: the lowest and the highest of every stretch, so that no spike is lost."""
    if len(points) <= _MOST_POINTS:
        return points

    def height(point: tuple[float, float]) -> float:
        return point[1]

    # Two points are kept of each stretch.
    size = math.ceil(2 * len(points) / _MOST_POINTS)
    kept = {points[0], points[-1]}
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        kept.add(min(stretch, key=height))
        kept.add(max(stretch, key=height))
    return sorted(kept)


def running_mean(points: Points) -> Points:
    """The mean over a centred window of a thirtieth of the points, narrower towards the ends."""
    heights = [y for _, y in points]
    # The sum of a window is the difference of two cumulative sums.
    sums_so_far = np.cumsum(heights)
    sums = np.concatenate([[0.0], sums_so_far])
    half_window = max(1, len(points) // 60)
    means = []
    for i, (x, _) in enumerate(points):
        distance_to_end = len(points) - 1 - i
        half = min(half_window, i, distance_to_end)
        first = i - half
        end = i + half + 1
        window_sum = float(sums[end] - sums[first])
        means.append((x, window_sum / (end - first)))
    return means


def spread_apart(heights: Sequence[float], gap: float, *, lowest: float) -> list[float]:
    """Moves ascending y coordinates (0 is the top) until no two are closer than the gap.

    First all are moved down as far as needed, then up until the last one is at `lowest` or above.
    """
    moved: list[float] = []
    for height in heights:
        if moved:
            height = max(height, moved[-1] + gap)
        moved.append(height)
    for index in reversed(range(len(moved))):
        below = len(moved) - 1 - index
        limit = lowest - gap * below
        moved[index] = min(moved[index], limit)
    return moved


def text_width(text: str) -> float:
    """An estimate in pixels, because no font can be measured here: wide East Asian characters take a whole em."""
    ems = []
    for character in text:
        is_wide = unicodedata.east_asian_width(character) in "WF"
        ems.append(1.04 if is_wide else 0.62)
    return _FONT_SIZE * sum(ems)


def shortened(text: str, room: float) -> str:
    """The text cut to `room` pixels, with an ellipsis where something was cut."""
    while text and text_width(text) > room + 0.1:
        if len(text) <= 2:
            return ""
        # Drop the ellipsis of the last round and one more character.
        text = text[:-2] + "…"
    return text
