"""Named points in, inline SVG out: a dot and its name for each, with both axes."""

from collections.abc import Mapping
from dataclasses import dataclass

from firth.report.axes import axis, number, text_width
from firth.report.markup import Html, tag

_LEFT = 52.0
_RIGHT = 18.0
_TOP = 30.0
_BOTTOM = 44.0
_LINE = 15.0
"""Pixels between two names."""


@dataclass(frozen=True)
class _Label:
    left: float
    right: float
    down: float


def points(named: Mapping[str, tuple[float, float]], *, x_label: str, y_label: str, width: int = 640) -> Html:
    """The points with their names beside them; the first one, which the others are compared with, has a ring."""
    height = 400
    if not named:
        return tag("p", "nothing recorded")
    xs = [x for x, _ in named.values()]
    ys = [y for _, y in named.values()]
    x_axis = axis(min(xs), max(xs), round_ends=True)
    y_axis = axis(min(ys), max(ys), round_ends=True)
    room = max(text_width(name) for name in named) + 12
    right = width - _RIGHT - room

    bottom = height - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (right - _LEFT) * x_axis.at(x)
        down = bottom - (bottom - _TOP) * y_axis.at(y)
        return across, down

    parts = [
        tag("text", y_label, x=0, y=14, class_="axis"),
        tag("text", x_label, x=right, y=height - 6, class_="axis", text_anchor="end"),
    ]
    for tick in y_axis.ticks:
        _, down = place(x_axis.low, tick)
        parts.append(tag("line", class_="rule", x1=_LEFT, x2=right, y1=down, y2=down))
        parts.append(tag("text", number(tick), x=_LEFT - 7, y=down + 4, text_anchor="end"))
    for tick in x_axis.ticks:
        across, _ = place(tick, y_axis.low)
        parts.append(tag("text", number(tick), x=across, y=bottom + 18, text_anchor="middle"))
    spoken = []
    taken: list[_Label] = []
    for index, (name, (x, y)) in enumerate(named.items()):
        across, down = place(x, y)
        parts.append(tag("circle", class_="dot s0", cx=across, cy=down, r=4))
        if index == 0:
            parts.append(tag("circle", class_="line s0", cx=across, cy=down, r=8))
        left = across + 11
        wanted = _Label(left, left + text_width(name), down + 4)
        label = _free(wanted, taken)
        taken.append(label)
        parts.append(tag("text", name, x=label.left, y=label.down, class_="word"))
        spoken.append(f"{name}: {number(x)}, {number(y)}")
    return tag(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        aria_label=f"{y_label} by {x_label}: {', '.join(spoken)}",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        style=f"max-width:{width * 1.25:.0f}px",
    )


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
