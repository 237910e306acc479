"""Rows of settings in, one chart of parallel coordinates out (Inselberg 1985): a vertical axis for each setting.

Every row is a line over all axes. The best row is drawn over the others, wider and in another colour.
"""

from collections.abc import Mapping, Sequence

from firth.report.axes import number
from firth.report.markup import Html, tag
from firth.report.svg import svg, text

WIDTH = 860.0
HEIGHT = 300.0
_TOP = 44.0
_BOTTOM = HEIGHT - 34.0
_SIDE = 60.0

Row = Mapping[str, object]


def parallel_coordinates(rows: Sequence[Row], *, best: int) -> Html:
    """The chart; `best` is the index of the row to point out. All rows have the same keys, which name the axes."""
    names = list(rows[0])
    gap = (WIDTH - 2 * _SIDE) / max(1, len(names) - 1)
    places: dict[str, dict[object, float]] = {}
    parts: list[Html] = []
    for index, name in enumerate(names):
        x = _SIDE + index * gap
        places[name] = _heights([row[name] for row in rows])
        parts += _axis(name, x, places[name])
    order = [index for index in range(len(rows)) if index != best] + [best]
    for index in order:
        parts.append(_line(rows[index], names, places, gap=gap, is_best=index == best))
    spoken = ", ".join(f"{name} {_written(rows[best][name])}" for name in names)
    return svg(f"{len(rows)} trials; the best: {spoken}", WIDTH, HEIGHT, *parts)


def _heights(values: Sequence[object]) -> dict[object, float]:
    """Where each value is on its axis: numbers in proportion, low ones at the bottom; names at equal distances."""
    different = sorted(set(values), key=_order)
    numbers = [value for value in different if isinstance(value, int | float)]
    heights: dict[object, float] = {}
    for rank, value in enumerate(different):
        share = 0.5
        if len(different) > 1:
            share = rank / (len(different) - 1)
            if len(numbers) == len(different) and isinstance(value, int | float):
                share = (value - numbers[0]) / (numbers[-1] - numbers[0])
        heights[value] = _BOTTOM - share * (_BOTTOM - _TOP)
    return heights


def _order(value: object) -> tuple[int, float, str]:
    """Numbers by size, before names in alphabetical order."""
    if isinstance(value, int | float):
        return 0, float(value), ""
    return 1, 0.0, str(value)


def _axis(name: str, x: float, heights: Mapping[object, float]) -> list[Html]:
    """An axis with its name above, and its lowest and highest value."""
    ends = sorted(heights.items(), key=lambda entry: entry[1])
    parts = [
        tag("line", class_="rule", x1=x, x2=x, y1=_TOP, y2=_BOTTOM),
        text(x, 18, name, class_="axis", anchor="middle"),
        text(x, _TOP - 10, _written(ends[0][0]), anchor="middle"),
    ]
    if len(ends) > 1:
        parts.append(text(x, _BOTTOM + 20, _written(ends[-1][0]), anchor="middle"))
    return parts


def _line(
    row: Row, names: Sequence[str], places: Mapping[str, Mapping[object, float]], *, gap: float, is_best: bool
) -> Html:
    points = []
    for index, name in enumerate(names):
        points.append(f"{_SIDE + index * gap:.1f},{places[name][row[name]]:.1f}")
    return tag("polyline", points=" ".join(points), class_="line s1" if is_best else "line s0 faint")


def _written(value: object) -> str:
    return number(value, 3) if isinstance(value, int | float) else str(value)
