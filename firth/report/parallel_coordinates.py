"""Rows of settings in, one chart of parallel coordinates out (Inselberg 1985): a vertical axis for each setting.

Every row is a line over all axes. The best row is drawn over the others, wider and in another colour.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firth.report.axes import number
from firth.report.markup import Html, tag
from firth.report.svg import svg, text

WIDTH = 860.0
HEIGHT = 300.0
_TOP = 44.0
_BOTTOM = HEIGHT - 34.0
_SIDE = 60.0

Row = Mapping[str, object]


@dataclass(frozen=True)
class SettingAxis:
    """The axis of one setting."""

    x: float
    heights: Mapping[object, float]
    """Where each value is on it, counted from the top."""


def parallel_coordinates(rows: Sequence[Row], *, best: int) -> Html:
    """The chart; `best` is the index of the row to point out. All rows have the same keys, which name the axes."""
    names = list(rows[0])
    gap = (WIDTH - 2 * _SIDE) / max(1, len(names) - 1)
    axes: dict[str, SettingAxis] = {}
    parts: list[Html] = []
    for index, name in enumerate(names):
        values = [row[name] for row in rows]
        axes[name] = SettingAxis(_SIDE + index * gap, _heights(values))
        parts += _drawn_axis(name, axes[name])
    for index, row in enumerate(rows):
        if index != best:
            parts.append(_line(row, axes, class_="line s0 faint"))
    # The best row lies over all others.
    best_row = rows[best]
    parts.append(_line(best_row, axes, class_="line s1"))
    spoken = ", ".join(f"{name} {_written(best_row[name])}" for name in names)
    return svg(f"{len(rows)} trials; the best: {spoken}", WIDTH, HEIGHT, *parts)


def _heights(values: Sequence[object]) -> dict[object, float]:
    """Where each value is on its axis: numbers in proportion, low ones at the bottom; names at equal distances."""
    different = sorted(set(values), key=_order)
    numbers = [value for value in different if isinstance(value, int | float)]
    if len(different) == 1:
        shares = [0.5]
    elif len(numbers) == len(different):
        lowest = numbers[0]
        reach = numbers[-1] - lowest
        shares = [(value - lowest) / reach for value in numbers]
    else:
        last = len(different) - 1
        shares = [rank / last for rank in range(len(different))]
    heights: dict[object, float] = {}
    for value, share in zip(different, shares, strict=True):
        heights[value] = _BOTTOM - share * (_BOTTOM - _TOP)
    return heights


def _order(value: object) -> tuple[int, float, str]:
    """Numbers by size, before names in alphabetical order."""
    if isinstance(value, int | float):
        return 0, float(value), ""
    return 1, 0.0, str(value)


def _drawn_axis(name: str, axis: SettingAxis) -> list[Html]:
    """An axis with its name above, and its lowest and highest value."""
    # The top of a picture has the lowest height.
    from_top = sorted(axis.heights, key=lambda value: axis.heights[value])
    parts = [
        tag("line", class_="rule", x1=axis.x, x2=axis.x, y1=_TOP, y2=_BOTTOM),
        text(axis.x, 18, name, class_="axis", anchor="middle"),
        text(axis.x, _TOP - 10, _written(from_top[0]), anchor="middle"),
    ]
    if len(from_top) > 1:
        parts.append(text(axis.x, _BOTTOM + 20, _written(from_top[-1]), anchor="middle"))
    return parts


def _line(row: Row, axes: Mapping[str, SettingAxis], *, class_: str) -> Html:
    points = []
    for name, axis in axes.items():
        height = axis.heights[row[name]]
        points.append(f"{axis.x:.1f},{height:.1f}")
    return tag("polyline", points=" ".join(points), class_=class_)


def _written(value: object) -> str:
    if isinstance(value, int | float):
        return number(value, 3)
    return str(value)
