"""Numbers in, inline SVG out: lines, bars, histogram, heatmap and a grid of small heatmaps.

Pure functions: the same numbers give the same text. Colours are classes of the stylesheet (`style.py`), so that a chart
follows the page into dark mode. Colour is never the only sign: a dash, a dot or a word says the same.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

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
from firth.report.markup import Html, Value, join, tag

_SHADES = 12
"""Opacity levels of a small heatmap."""
_FEW_POINTS = 40
"""A curve with at most this many points gets a dot at each of them."""
_LEGEND_SAMPLE = 26.0
"""Pixels a legend entry takes before its name: a piece of the line and a space."""


Range = tuple[float, float, float]
"""A place on the horizontal axis, and the lowest and the highest value there."""


class NumberFormat(Protocol):
    """Writes a value in at most so many digits."""

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
        return _svg(message, width, 40, _text(0, 24, message))

    x_axis = _x_axis(curves.values(), log_x=log_x, width=width)
    ends_of_ranges = _moderate_ends(curves.values(), (ranges or {}).values())
    y_axis = _y_axis(curves.values(), [*marks.values(), *ends_of_ranges], from_zero=percent)
    write: NumberFormat = _percent if percent else number
    ends = _end_values(curves, marks)
    end_width = _widest(write(value, 3) for _, value in ends)
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
    return _svg(f"{y_label} by {x_label}: {summary}", width, height, *parts)


def bars(rows: Sequence[tuple[str, float]], *, maximum: float = 1.0, width: int = 370) -> Html:
    """Horizontal bars, one for each (label, value); with the maximum 1 the values are written as percentages."""
    write: NumberFormat = _percent if maximum == 1 else number
    # Labels left, bars in the middle, values right.
    room = min(_widest(label for label, _ in rows), width * 0.45)
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
            _text(room, y + 18, shortened(label, room), class_="word", anchor="end"),
            tag("rect", class_="track", x=start, y=y + 5, width=end - start, height=17, rx=3),
            tag("rect", class_="bar", x=start, y=y + 5, width=length, height=17, rx=3),
            _text(end + 8, y + 18, written, class_="end"),
        ]
        spoken.append(f"{label} {written}")
    summary = ", ".join(spoken) or "no values"
    height = max(len(rows), 1) * row_height
    return _svg(summary, width, height, *parts)


def histogram(
    edges: Sequence[float], counts: Sequence[float], *, x_label: str, y_label: str = "count", width: int = 400
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
    return _svg(f"histogram of {x_label}: {sum(counts):,} in {num_bins} bins", width, height, *parts)


def heatmap(
    tokens: Sequence[str],
    weights: ArrayLike,
    *,
    columns: Sequence[str] | None = None,
    x_label: str = "",
    y_label: str = "",
) -> Html:
    """A matrix with a word at every row and column (the rows' own where `columns` is left out)."""
    if columns is None:
        columns = tokens
    matrix = np.nan_to_num(np.asarray(weights, dtype=float))
    highest = float(matrix.max(initial=0)) or 1.0
    # Cells shrink with the number of columns, but stay large enough for a word next to each.
    cell = min(28.0, max(17.0, 560 / max(len(columns), 1)))
    left = _widest((*tokens, y_label)) + 12
    top = _widest(columns) + 38

    parts = [
        _text(left - 8, top - 10, y_label, class_="axis", anchor="end"),
        _text(left, 13, x_label, class_="axis"),
    ]
    for index, token in enumerate(tokens):
        middle = top + (index + 0.5) * cell
        parts.append(_text(left - 8, middle + 4, token, class_="word", anchor="end"))
    for index, column in enumerate(columns):
        middle = left + (index + 0.5) * cell
        parts.append(_column_name(middle, top - 8, column))
    for (i, j), entry in np.ndenumerate(matrix):
        weight = float(entry)
        title = tag("title", f"{tokens[i]} → {columns[j]}: {number(weight, 3)}")
        box = {
            "x": left + j * cell,
            "y": top + i * cell,
            "width": cell - 1,
            "height": cell - 1,
            "rx": 1.5,
        }
        track = tag("rect", class_="track", **box)
        heat = tag("rect", class_="heat", fill_opacity=max(weight, 0) / highest, **box)
        parts.append(tag("g", title, track, heat))
    width = left + cell * len(columns)
    height = top + cell * len(tokens)
    return _svg(f"{len(tokens)} by {len(columns)} heatmap, darkest {number(highest, 3)}", width, height, *parts)


def heatmaps(
    grid: Sequence[Sequence[ArrayLike]], *, row_label: str, column_label: str, chosen: tuple[int, int] | None = None
) -> Html:
    """Small heatmaps of values from 0 to 1 in rows and columns, all on one scale; `chosen` gets a frame."""
    num_columns = max(map(len, grid), default=0)
    side = min(72.0, 780 / max(num_columns, 1))
    left = text_width(f"{row_label} {len(grid)}") + 10
    top = 24.0
    parts = []
    for column in range(num_columns):
        middle = left + (column + 0.5) * side - 2
        parts.append(_text(middle, 15, str(column + 1), anchor="middle"))
    parts.append(_text(left - 8, 15, column_label, anchor="end"))
    for row, matrices in enumerate(grid):
        y = top + row * side
        parts.append(_text(left - 8, y + side / 2 + 2, f"{row_label} {row + 1}", anchor="end"))
        for column, matrix in enumerate(matrices):
            x = left + column * side
            title = tag("title", f"{row_label} {row + 1}, {column_label} {column + 1}")
            frame_class = "frame chosen" if (row, column) == chosen else "frame"
            # Four pixels between neighbours.
            box = {"x": x, "y": y, "width": side - 4, "height": side - 4, "rx": 2}
            track = tag("rect", class_="track", **box)
            frame = tag("rect", class_=frame_class, **box)
            cells = _shaded_cells(np.asarray(matrix, dtype=float), x, y, side - 4)
            parts.append(tag("g", title, track, cells, frame))
    summary = f"{len(grid)} by {num_columns} small heatmaps: {row_label} down, {column_label} across"
    return _svg(summary, left + num_columns * side, top + len(grid) * side, *parts)


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
    ys = [y for points in curves for _, y in points]
    height = max(ys) - min(ys)
    ends = []
    for _, low, high in chain.from_iterable(ranges):
        if high - low <= height:
            ends += [low, high]
    return ends


def _widest(texts: Iterable[str]) -> float:
    """The width of the longest text in pixels; 0 if there is none."""
    return max(map(text_width, texts), default=0.0)


def _tick_room(y_axis: Axis, write: NumberFormat) -> float:
    """The width of the numbers left of the frame."""
    return 14 + _widest(write(tick) for tick in y_axis.ticks)


def _horizontal(frame: _Frame, value: float, class_: str) -> Html:
    """A line across the frame at a y value."""
    _, y = frame.place(frame.x.low, value)
    return tag("line", class_=class_, x1=frame.left, x2=frame.right, y1=y, y2=y)


def _grid_lines(frame: _Frame, write: NumberFormat, *, x_label: str, y_label: str) -> list[Html]:
    """The horizontal lines with their numbers, and the names of both axes."""
    parts = [
        _text(0, frame.top - 15, y_label, class_="axis"),
        _text(frame.right, frame.bottom + 36, x_label, class_="axis", anchor="end"),
    ]
    for tick in frame.y.ticks:
        _, y = frame.place(frame.x.low, tick)
        # Four pixels down centre the number on its line.
        parts.append(_horizontal(frame, tick, "rule"))
        parts.append(_text(frame.left - 7, y + 4, write(tick), anchor="end"))
    return parts


def _x_ticks(frame: _Frame) -> list[Html]:
    parts = []
    for tick in frame.x.ticks:
        x, y = frame.place(tick, frame.y.low)
        parts.append(tag("line", class_="tick", x1=x, x2=x, y1=y, y2=y + 4))
        parts.append(_text(x, y + 18, number(tick), anchor="middle"))
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
        parts.append(_text(frame.right + 8, height + 4, write(value, 3), class_=f"end {class_}"))
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
        parts.append(tag("path", class_=class_, d=f"M{x:.1f} {y + 9:.1f}h20"))
        parts.append(_text(x + _LEGEND_SAMPLE, y + 13, name, class_="word"))
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
    every = math.ceil((_widest(names) + 8) / slot_width)
    parts = []
    for index in range(0, len(edges), every):
        x, y = frame.place(index, 0)
        parts.append(_text(x, y + 18, names[index], anchor="middle"))
    return parts


def _column_name(x: float, y: float, name: str) -> Html:
    """A name above a column: a single character upright, a longer one turned."""
    if len(name) == 1:
        return _text(x, y, name, class_="word", anchor="middle")
    turn = f"rotate(-90 {x:.1f} {y:.1f}) translate(0 4)"
    return _text(x, y, name, class_="word", transform=turn)


def _shaded_cells(matrix: np.ndarray, x: float, y: float, side: float) -> Html:
    """A matrix of values from 0 to 1 as one path for each shade.

    Runs of equal cells in a row are merged: a hundred of these matrices stay a small file.
    """
    # The square root makes small weights visible.
    shares = np.sqrt(np.clip(np.nan_to_num(matrix), 0, 1))
    levels = np.rint(shares * _SHADES).astype(int)
    runs: dict[int, list[str]] = {}
    for i, row in enumerate(levels):
        changes = np.flatnonzero(np.diff(row)) + 1
        borders = [0, *changes.tolist(), len(row)]
        for start, end in pairwise(borders):
            level = int(row[start]) if end > start else 0
            # Level 0 is the background.
            if level:
                rectangle = f"M{start} {i}h{end - start}v1h{start - end}z"
                runs.setdefault(level, []).append(rectangle)
    paths = []
    for level, rectangles in sorted(runs.items()):
        paths.append(tag("path", d="".join(rectangles), fill_opacity=level / _SHADES))
    # The paths are in units of cells; this scales them to pixels.
    num_rows, num_columns = levels.shape
    transform = f"translate({x:.2f} {y:.2f}) scale({side / num_columns:.4f} {side / num_rows:.4f})"
    return tag("g", *paths, class_="heat", transform=transform, shape_rendering="crispEdges")


def _svg(label: str, width: float, height: float, *parts: str) -> Html:
    wide = math.ceil(width)
    high = math.ceil(height)
    # A small chart in a wide card is not blown up.
    style = f"max-width:{wide * 1.25:.0f}px"
    return tag(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        aria_label=label,
        viewBox=f"0 0 {wide} {high}",
        width=wide,
        height=high,
        style=style,
    )


def _text(x: float, y: float, text: str, *, class_: str = "", anchor: str | None = None, **more: Value) -> Html:
    return tag(
        "text",
        text,
        x=float(x),
        y=float(y),
        class_=class_ or None,
        text_anchor=anchor,
        **more,
    )


def _percent(value: float, digits: int = 0) -> str:
    """A whole percentage for an axis (digits 0), otherwise one decimal."""
    if digits == 0 or not _finite(value):
        return f"{value * 100:.3g}%"
    return f"{value:.1%}"
