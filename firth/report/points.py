"""Named points in, inline SVG out: a dot and its name for each, with both axes."""

from collections.abc import Mapping
from dataclasses import dataclass

from firth.report.axes import axis, number, text_width
from firth.report.markup import Html, tag
from firth.report.svg import svg, text, widest

_LEFT = 52.0
_RIGHT = 18.0
_TOP = 30.0
_BOTTOM = 44.0
_LINE = 15.0
"""Pixels between two names."""
_HEIGHT = 400


@dataclass(frozen=True)
class _Label:
    """The place of a name, in pixels."""

    left: float
    right: float
    down: float
    """Its baseline."""


def points(
    named: Mapping[str, tuple[float, float]], *, x_label: str, y_label: str, reference: str = "", width: int = 640
) -> Html:
    """The points with their names beside them; `reference` names the one that the others are compared with: a ring."""
    if not named:
        return tag("p", "nothing recorded")
    xs = [x for x, _ in named.values()]
    ys = [y for _, y in named.values()]
    x_axis = axis(min(xs), max(xs), round_ends=True)
    y_axis = axis(min(ys), max(ys), round_ends=True)
    # The name of the last point is right of it.
    room = widest(named) + 12
    right = width - _RIGHT - room
    bottom = _HEIGHT - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (right - _LEFT) * x_axis.at(x)
        down = bottom - (bottom - _TOP) * y_axis.at(y)
        return across, down

    parts = [
        text(0, 14, y_label, class_="axis"),
        text(right, _HEIGHT - 6, x_label, class_="axis", anchor="end"),
    ]
    for tick in y_axis.ticks:
        _, down = place(x_axis.low, tick)
        parts.append(tag("line", class_="rule", x1=_LEFT, x2=right, y1=down, y2=down))
        parts.append(text(_LEFT - 7, down + 4, number(tick), anchor="end"))
    for tick in x_axis.ticks:
        across, _ = place(tick, y_axis.low)
        parts.append(text(across, bottom + 18, number(tick), anchor="middle"))
    spoken = []
    taken: list[_Label] = []
    for name, (x, y) in named.items():
        across, down = place(x, y)
        parts.append(tag("circle", class_="dot s0", cx=across, cy=down, r=4))
        if name == reference:
            parts.append(tag("circle", class_="line s0", cx=across, cy=down, r=8))
        label = _free(_beside(name, across, down), taken)
        taken.append(label)
        parts.append(text(label.left, label.down, name, class_="word"))
        spoken.append(f"{name}: {number(x)}, {number(y)}")
    return svg(f"{y_label} by {x_label}: {', '.join(spoken)}", width, _HEIGHT, *parts)


def _beside(name: str, across: float, down: float) -> _Label:
    """The place of a name right of its dot."""
    left = across + 11
    return _Label(left, left + text_width(name), down + 4)


def _free(wanted: _Label, taken: list[_Label]) -> _Label:
    """The label, moved up or down until it covers no other."""
    label = wanted
    step = 0
    while any(_overlap(label, other) for other in taken):
        step += 1
        # Alternately above and below, a line further each time.
        shift = _LINE * ((step + 1) // 2) * (-1) ** step
        label = _Label(wanted.left, wanted.right, wanted.down + shift)
    return label


def _overlap(first: _Label, second: _Label) -> bool:
    is_same_line = abs(first.down - second.down) < _LINE - 1
    return is_same_line and first.left < second.right and second.left < first.right
