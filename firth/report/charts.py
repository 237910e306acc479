"""Numbers in, inline SVG out: lines, bars and a histogram.

Pure functions: the same numbers give the same text. Colours are classes of the stylesheet (`style.py`), so that a chart
follows the page into dark mode. Colour is never the only sign: a dash, a dot or a word says the same.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from firth.report.axes import (
    Axis,
    Points,
    axis,
    log_axis,
    number,
    running_mean,
    shortened,
    spread_apart,
    text_width,
    thinned,
)
from firth.report.markup import Html, join, tag
from firth.report.svg import svg, text, widest

_FEW_POINTS = 40
"""A curve with at most this many points gets a dot at each of them."""
_LEGEND_SAMPLE = 26.0
"""Pixels a legend entry takes before its name: a piece of the line and a space."""


Range = tuple[float, float, float]
"""A place on the horizontal axis, and the lowest and the highest value there."""


class NumberFormat(Protocol):
    """Writes a value with at most `digits` digits."""

    def __call__(self, value: float, digits: int = ...) -> str: ...


def lines(
    series: Mapping[str, Points],
    *,
    x_label: str,
    y_label: str,
    references: Mapping[str, float] | None = None,
    ranges: Mapping[str, Sequence[Range]] | None = None,
    log_x: bool = False,
    percent: bool = False,
    smooth: bool = False,
    width: int = 400,
    height: int = 270,
) -> Html:
    """Named curves over horizontal reference lines. `smooth` draws a running mean over the faint raw values.

    `ranges` are vertical lines through points of a curve; one that is very long is cut.
    """
    curves = {name: _drawable(points, log_x) for name, points in series.items()}
    marks = {name: y for name, y in (references or {}).items() if _finite(y)}
    if not any(curves.values()):
        message = f"{y_label}: nothing recorded"
        return svg(message, width, 40, text(0, 24, message))

    x_axis = _x_axis(curves.values(), log_x=log_x, width=width)
    ends_of_ranges = _moderate_ends(curves.values(), (ranges or {}).values())
    y_axis = _y_axis(curves.values(), [*marks.values(), *ends_of_ranges], from_zero=percent)
    write: NumberFormat = _percent if percent else number
    ends = _end_values(curves, marks)
    end_width = widest(write(value, 3) for _, value in ends)
    legend, legend_height = _legend(list(curves), list(marks), width)
    frame = _Frame(
        left=_tick_room(y_axis, write),
        # Room for the longest end label.
        right=width - 14 - end_width,
        top=legend_height + 29,
        bottom=height - 42,
        x=x_axis,
        y=y_axis,
    )

    # From back to front: what comes later is drawn over what comes before.
    parts = [legend]
    parts += _grid_lines(frame, write, x_label=x_label, y_label=y_label)
    parts += _x_ticks(frame)
    for y in marks.values():
        parts.append(_horizontal(frame, y, "reference"))
    for index, (name, points) in enumerate(curves.items()):
        parts += _whiskers((ranges or {}).get(name, ()), frame, index)
        parts.append(_curve(points, frame, index, smooth=smooth))
    parts += _end_labels(frame, ends, write)
    summary = _spoken_ends(curves, marks, write)
    return svg(f"{y_label} by {x_label}: {summary}", width, height, *parts)


def bars(rows: Sequence[tuple[str, float]], *, maximum: float = 1.0, width: int = 370) -> Html:
    """Horizontal bars, one for each (label, value); with the maximum 1 the values are written as percentages."""
    write: NumberFormat = _percent if maximum == 1 else number
    # Labels left, bars in the middle, values right.
    room = min(widest(label for label, _ in rows), width * 0.45)
    start = room + 12
    end = width - 54
    row_height = 27
    parts = []
    spoken = []
    for index, (label, value) in enumerate(rows):
        y = index * row_height
        share = 0.0
        if _finite(value):
            share = min(max(value / maximum, 0.0), 1.0)
        # A bar of no length still shows where it starts.
        length = max((end - start) * share, 1.5)
        written = write(value, 3)
        parts += [
            text(room, y + 18, shortened(label, room), class_="word", anchor="end"),
            tag("rect", class_="track", x=start, y=y + 5, width=end - start, height=17, rx=3),
            tag("rect", class_="bar", x=start, y=y + 5, width=length, height=17, rx=3),
            text(end + 8, y + 18, written, class_="end"),
        ]
        spoken.append(f"{label} {written}")
    summary = ", ".join(spoken) or "no values"
    height = max(len(rows), 1) * row_height
    return svg(summary, width, height, *parts)


def histogram(
    edges: Sequence[float],
    counts: Sequence[float],
    *,
    x_label: str,
    y_label: str = "count",
    width: int = 400,
) -> Html:
    """One slot of equal width for each bin; the edges are written below, so uneven bins stay honest."""
    height = 230
    num_bins = len(counts)
    y_axis = axis(0, max([*counts, 1]), round_ends=True, count=4)
    frame = _Frame(
        left=_tick_room(y_axis, number),
        right=width - 24,
        top=29,
        bottom=height - 42,
        # Bin i lies between i and i + 1.
        x=Axis(0, max(num_bins, 1), ()),
        y=y_axis,
    )
    parts = _grid_lines(frame, number, x_label=x_label, y_label=y_label)
    for index, count in enumerate(counts):
        left, top = frame.place(index, count)
        right, bottom = frame.place(index + 1, 0)
        first_edge = number(edges[index])
        last_edge = number(edges[index + 1])
        title = tag("title", f"{first_edge} to {last_edge}: {count:,}")
        # A gap of 1.2 pixels between bars, and never an invisible bar.
        bar_width = max(right - left - 1.2, 0.4)
        bar = tag("rect", class_="bar", x=left + 0.6, y=top, width=bar_width, height=bottom - top)
        parts.append(tag("g", title, bar))
    parts += _edge_labels(frame, edges, num_bins)
    return svg(f"histogram of {x_label}: {sum(counts):,} in {num_bins} bins", width, height, *parts)


@dataclass(frozen=True)
class _Frame:
    """The rectangle that the curves are drawn in (pixels), and the axes along it."""

    left: float
    right: float
    top: float
    bottom: float
    x: Axis
    y: Axis

    def place(self, x: float, y: float) -> tuple[float, float]:
        """The pixel of a point in data coordinates; y grows upwards in the data and downwards in SVG."""
        across = self.left + (self.right - self.left) * self.x.at(x)
        down = self.bottom - (self.bottom - self.top) * self.y.at(y)
        return across, down


def _finite(value: float | None) -> bool:
    """Also False for the huge losses of a diverged run, which would flatten everything else."""
    return value is not None and abs(value) < 1e30


def _drawable(points: Points, log_x: bool) -> list[tuple[float, float]]:
    """The points that have a place in the chart, by ascending x."""
    kept = []
    for x, y in points:
        on_axis = x > 0 or not log_x
        if _finite(x) and _finite(y) and on_axis:
            kept.append((x, y))
    return sorted(kept)


def _x_axis(curves: Iterable[Points], *, log_x: bool, width: int) -> Axis:
    all_points = chain.from_iterable(curves)
    xs = [x for x, _ in all_points]
    low = min(xs)
    high = max(xs)
    if log_x:
        return log_axis(low, high)
    # A tick every 90 pixels leaves room for its number.
    return axis(low, high, count=width // 90)


def _y_axis(curves: Iterable[Points], marks: Iterable[float], *, from_zero: bool) -> Axis:
    all_points = chain.from_iterable(curves)
    ys = [y for _, y in all_points]
    ys += marks
    low = min(ys)
    if from_zero:
        low = min(low, 0.0)
    return axis(low, max(ys), round_ends=True)


def _moderate_ends(curves: Iterable[Points], ranges: Iterable[Sequence[Range]]) -> list[float]:
    """The ends of the ranges that are no wider than the curves are high; a wider one would flatten them."""
    ys = [y for _, y in chain.from_iterable(curves)]
    height = max(ys) - min(ys)
    ends = []
    for _, low, high in chain.from_iterable(ranges):
        if high - low <= height:
            ends += [low, high]
    return ends


def _tick_room(y_axis: Axis, write: NumberFormat) -> float:
    """The width of the numbers left of the frame."""
    return 14 + widest(write(tick) for tick in y_axis.ticks)


def _horizontal(frame: _Frame, value: float, class_: str) -> Html:
    """A line across the frame at a y value."""
    _, y = frame.place(frame.x.low, value)
    return tag("line", class_=class_, x1=frame.left, x2=frame.right, y1=y, y2=y)


def _grid_lines(frame: _Frame, write: NumberFormat, *, x_label: str, y_label: str) -> list[Html]:
    """The horizontal lines with their numbers, and the names of both axes."""
    parts = [
        text(0, frame.top - 15, y_label, class_="axis"),
        text(frame.right, frame.bottom + 36, x_label, class_="axis", anchor="end"),
    ]
    for tick in frame.y.ticks:
        _, y = frame.place(frame.x.low, tick)
        # Four pixels down centre the number on its line.
        parts.append(_horizontal(frame, tick, "rule"))
        parts.append(text(frame.left - 7, y + 4, write(tick), anchor="end"))
    return parts


def _x_ticks(frame: _Frame) -> list[Html]:
    parts = []
    for tick in frame.x.ticks:
        x, y = frame.place(tick, frame.y.low)
        parts.append(tag("line", class_="tick", x1=x, x2=x, y1=y, y2=y + 4))
        parts.append(text(x, y + 18, number(tick), anchor="middle"))
    return parts


def _end_values(curves: Mapping[str, Points], marks: Mapping[str, float]) -> list[tuple[str, float]]:
    """(stylesheet class, value) of every curve's last point and of every reference line."""
    ends = []
    for index, points in enumerate(curves.values()):
        if points:
            last_y = points[-1][1]
            ends.append((f"s{index}", last_y))
    for y in marks.values():
        ends.append(("reference", y))
    return ends


def _end_labels(frame: _Frame, ends: list[tuple[str, float]], write: NumberFormat) -> list[Html]:
    """The end values right of the frame, moved apart where they would overlap."""
    placed = []
    for class_, value in ends:
        _, y = frame.place(frame.x.low, value)
        placed.append((y, class_, value))
    placed.sort()
    heights = [y for y, _, _ in placed]
    heights = spread_apart(heights, 14, lowest=frame.bottom)
    parts = []
    for height, (_, class_, value) in zip(heights, placed, strict=True):
        written = write(value, 3)
        parts.append(text(frame.right + 8, height + 4, written, class_=f"end {class_}"))
    return parts


def _spoken_ends(curves: Mapping[str, Points], marks: Mapping[str, float], write: NumberFormat) -> str:
    """The chart in words, for screen readers."""
    spoken = []
    for name, points in curves.items():
        if points:
            last_y = points[-1][1]
            spoken.append(f"{name} ends at {write(last_y, 3)}")
    for name, y in marks.items():
        spoken.append(f"{name} is {write(y, 3)}")
    return ", ".join(spoken)


def _whiskers(ranges: Iterable[Range], frame: _Frame, index: int) -> list[Html]:
    """Vertical lines, as far as they are inside the frame."""
    parts = []
    for x, low, high in ranges:
        lowest = max(low, frame.y.low)
        highest = min(high, frame.y.high)
        if lowest < highest:
            across, bottom = frame.place(x, lowest)
            _, top = frame.place(x, highest)
            parts.append(tag("line", class_=f"range s{index}", x1=across, x2=across, y1=bottom, y2=top))
    return parts


def _curve(points: Points, frame: _Frame, index: int, *, smooth: bool) -> Html:
    """A curve and its dots: one at every point of a short curve, only the last of a long one."""
    if smooth and len(points) > 2 * _FEW_POINTS:
        smoothed = running_mean(points)
        parts = [
            _path(thinned(points), frame, class_=f"line faint s{index}"),
            _path(thinned(smoothed), frame, class_=f"line s{index}"),
        ]
    else:
        parts = [_path(thinned(points), frame, class_=f"line s{index}")]
    dotted = points if len(points) <= _FEW_POINTS else points[-1:]
    for x, y in dotted:
        across, down = frame.place(x, y)
        title = tag("title", f"{number(x)}: {number(y)}")
        dot = tag("circle", class_=f"dot s{index}", cx=across, cy=down, r=3)
        parts.append(tag("g", title, dot))
    return join(*parts)


def _path(points: Points, frame: _Frame, *, class_: str) -> Html:
    if not points:
        return Html()
    places = [frame.place(x, y) for x, y in points]
    corners = [f"{across:.1f} {down:.1f}" for across, down in places]
    return tag("path", d="M" + "L".join(corners), class_=class_)


def _legend(curves: list[str], marks: list[str], width: float) -> tuple[Html, float]:
    """Each name after a piece of its line, and the height of all that; a single curve needs no name."""
    entries = []
    if len(curves) > 1:
        entries += [(name, f"line s{i}") for i, name in enumerate(curves)]
    entries += [(name, "reference") for name in marks]
    if not entries:
        return Html(), 0.0
    parts = []
    x = 0.0
    y = 0.0
    for name, class_ in entries:
        name_width = text_width(name)
        if x and x + _LEGEND_SAMPLE + name_width > width:
            # The next line.
            x = 0.0
            y += 19
        sample = f"M{x:.1f} {y + 9:.1f}h20"
        parts.append(tag("path", class_=class_, d=sample))
        parts.append(text(x + _LEGEND_SAMPLE, y + 13, name, class_="word"))
        x += _LEGEND_SAMPLE + name_width + 20
    return join(*parts), y + 22


def _edge_labels(frame: _Frame, edges: Sequence[float], num_bins: int) -> list[Html]:
    """As many of a histogram's bin edges as fit below it."""
    names = []
    for edge in edges:
        name = f"{edge:,g}" if abs(edge) < 1e6 else number(edge, 3)
        names.append(name)
    slot_width = (frame.right - frame.left) / max(num_bins, 1)
    # Write every n-th edge, so that no two overlap.
    every = math.ceil((widest(names) + 8) / slot_width)
    parts = []
    for index in range(0, len(edges), every):
        x, y = frame.place(index, 0)
        parts.append(text(x, y + 18, names[index], anchor="middle"))
    return parts


def _percent(value: float, digits: int = 0) -> str:
    """A whole percentage for an axis (digits 0), otherwise one decimal."""
    if digits == 0 or not _finite(value):
        return f"{value * 100:.3g}%"
    return f"{value:.1%}"
