"""Means with intervals in, inline SVG out: a dot for each mean and a line for its range."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from firth.report.axes import axis, number, shortened, text_width
from firth.report.markup import Html, tag
from firth.report.svg import svg, text

_ROW = 24.0
"""Pixels between two rows."""
_FOOT = 26.0
"""Pixels below the rows, for the numbers of the axis."""


@dataclass(frozen=True)
class Dot:
    """A named mean and its range, which may be infinite if it is not known."""

    name: str
    mean: float
    low: float
    high: float


def dots(rows: Sequence[Dot], *, width: int = 520) -> Html:
    """One row a dot, in the order given; a mean without a known range is a dot alone."""
    ends: list[float] = []
    for row in rows:
        ends += filter(math.isfinite, (row.low, row.high, row.mean))
    if not ends:
        return tag("p", "nothing recorded")
    scale = axis(min(ends), max(ends), round_ends=True)
    widest_name = max(text_width(row.name) for row in rows)
    room = min(widest_name + 10, width * 0.4)
    left = room + 14
    right = width - 60.0

    def across(value: float) -> float:
        return left + (right - left) * scale.at(value)

    height = len(rows) * _ROW + _FOOT
    parts = []
    for tick in scale.ticks:
        x = across(tick)
        parts.append(tag("line", class_="rule", x1=x, x2=x, y1=0, y2=height - _FOOT))
        parts.append(text(x, height - 8, number(tick), anchor="middle"))
    spoken = []
    for index, row in enumerate(rows):
        y = index * _ROW + _ROW / 2
        name = shortened(row.name, room)
        parts.append(text(room, y + 4, name, class_="word", anchor="end"))
        if math.isfinite(row.low) and math.isfinite(row.high):
            low = across(row.low)
            high = across(row.high)
            parts.append(tag("line", class_="line s0", x1=low, x2=high, y1=y, y2=y))
        mean = across(row.mean)
        parts.append(tag("circle", class_="dot s0", cx=mean, cy=y, r=4))
        written = number(row.mean, 3)
        parts.append(text(right + 8, y + 4, written, class_="end"))
        spoken.append(f"{row.name} {written}")
    return svg(", ".join(spoken), width, height, *parts)
