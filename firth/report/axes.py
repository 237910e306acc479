"""What charts measure with: axes with round ticks, short numbers, thinned curves, the width of a word."""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Points = Sequence[tuple[float, float]]

_FONT = 12.5
_MINUS = "\u2212"
_MOST_POINTS = 480


def number(value: float, digits: int = 4) -> str:
    """Short for an axis: 1500 -> 1.5k, 2000000 -> 2M, 0.00002 -> 2e-5."""
    if not math.isfinite(value):
        return "?" if math.isnan(value) else f"{_MINUS if value < 0 else ''}∞"
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.{max(digits, 3)}g}{letter}".replace("-", _MINUS)
    if 0 < abs(value) < 0.01:
        mantissa, _, power = f"{value:.{digits - 2}e}".partition("e")
        return f"{float(mantissa):g}e{int(power)}".replace("-", _MINUS)
    return f"{value:.{digits}g}".replace("-", _MINUS)


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, value: float) -> float:
        """Where a value lies, from 0 (low) to 1 (high)."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def axis(low: float, high: float, *, round_ends: bool = False, count: int = 5) -> Axis:
    """Ticks are multiples of 1, 2 or 5 times a power of ten; an axis that begins close to 0 begins at 0."""
    low = 0.0 if 0 < low < high / 10 else low
    if high - low <= 1e-9 * max(abs(high), abs(low)):
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next(m * power for m in (1, 2, 5, 10) if m * power * count >= (high - low) * (1 - 1e-9))
    first, last = low / step, high / step
    if round_ends:
        low, high = math.floor(first + 1e-9) * step, math.ceil(last - 1e-9) * step
        first, last = low / step, high / step
    return Axis(low, high, tuple(float(f"{i * step:.12g}") for i in range(_up(first), -_up(-last) + 1)))


def _up(value: float) -> int:
    return math.ceil(value - 1e-9)


def log_axis(low: float, high: float) -> Axis:
    high = high if high > low else low * 10
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    wide = math.log10(high / low) > 2
    ticks = [m * 10.0**p for p in powers for m in ((1,) if wide else (1, 2, 5))]
    return Axis(low, high, tuple(tick for tick in ticks if low <= tick <= high), log=True)


def thinned(points: Points) -> Points:
    """The lowest and the highest of every stretch, so that no spike is lost."""
    if len(points) <= _MOST_POINTS:
        return points
    size = math.ceil(2 * len(points) / _MOST_POINTS)
    stretches = [points[i : i + size] for i in range(0, len(points), size)]
    kept = {p for s in stretches for p in (min(s, key=lambda p: p[1]), max(s, key=lambda p: p[1]))}
    return sorted(kept | {points[0], points[-1]})


def running_mean(points: Points) -> Points:
    """Over a centred window of a thirtieth of the points, narrower towards the ends."""
    sums, reach = np.concatenate([[0.0], np.cumsum([y for _, y in points])]), max(1, len(points) // 60)
    means = []
    for i, (x, _) in enumerate(points):
        near = min(reach, i, len(points) - 1 - i)
        means.append((x, float(sums[i + near + 1] - sums[i - near]) / (2 * near + 1)))
    return means


def apart(heights: Sequence[float], gap: float, *, lowest: float) -> list[float]:
    """Ascending heights moved down until no two are closer than the gap, then up until all end by `lowest`."""
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + gap) if moved else height)
    for index in range(len(moved) - 1, -1, -1):
        moved[index] = min(moved[index], lowest - gap * (len(moved) - 1 - index))
    return moved


def text_width(text: str) -> float:
    """A fair guess, since nothing here can measure a font: wide East Asian characters take a whole em."""
    return _FONT * sum(1.04 if unicodedata.east_asian_width(c) in "WF" else 0.62 for c in text)


def shortened(text: str, room: float) -> str:
    while text and text_width(text) > room + 0.1:
        text = text[:-2] + "…" if len(text) > 2 else ""
    return text
