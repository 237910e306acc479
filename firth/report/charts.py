"""Numbers in, inline SVG out: lines, bars, histogram, heatmap and a grid of small heatmaps.

Pure functions: the same numbers give the same text. Colours are classes of the stylesheet (`style.py`), so that a chart
follows the page into dark mode; what colour says is always said by a dash, a dot or a word too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from firth.report.axes import Axis, Points, apart, axis, log_axis, number, running_mean, shortened, text_width, thinned
from firth.report.markup import Html, Value, join, tag

_LEVELS = 12
_FEW_POINTS = 40


def lines(
    series: Mapping[str, Points],
    *,
    x_label: str,
    y_label: str,
    references: Mapping[str, float] | None = None,
    log_x: bool = False,
    percent: bool = False,
    smooth: bool = False,
    width: int = 400,
    height: int = 270,
) -> Html:
    """Named curves over horizontal reference lines. `smooth` draws a running mean over the faint raw values."""
    curves = {name: _drawable(points, log_x) for name, points in series.items()}
    marks = {name: y for name, y in (references or {}).items() if _finite(y)}
    xs = [x for points in curves.values() for x, _ in points]
    ys = [y for points in curves.values() for _, y in points] + list(marks.values())
    if not xs:
        return _svg(nothing := f"{y_label}: nothing recorded", width, 40, _text(0, 24, nothing))
    write = _percent if percent else number
    x_axis = log_axis(min(xs), max(xs)) if log_x else axis(min(xs), max(xs), count=width // 90)
    y_axis = axis(min([*ys, 0.0] if percent else ys), max(ys), round_ends=True)
    ends = [(f"s{i}", points[-1][1]) for i, points in enumerate(curves.values()) if points]
    ends += [("reference", y) for y in marks.values()]
    right = width - 14 - max(text_width(write(value, 3)) for _, value in ends)
    legend, top = _legend(list(curves), list(marks), width)
    frame = _Frame(_room(y_axis, write), right, top + 29, height - 42, x=x_axis, y=y_axis)
    parts = [legend, *_rules(frame, write, y_label, x_label)]
    for tick in x_axis.ticks:
        x, y = frame.place(tick, y_axis.low)
        parts += [
            tag("line", class_="tick", x1=x, x2=x, y1=y, y2=y + 4),
            _text(x, y + 18, number(tick), anchor="middle"),
        ]
    parts += [_rule(frame, y, "reference") for y in marks.values()]
    parts += [_curve(points, frame, index, smooth=smooth) for index, points in enumerate(curves.values())]
    says = [f"{name} ends at {write(points[-1][1], 3)}" for name, points in curves.items() if points]
    says += [f"{name} is {write(y, 3)}" for name, y in marks.items()]
    parts += _end_labels(frame, ends, write)
    return _svg(f"{y_label} by {x_label}: {', '.join(says)}", width, height, *parts)


def bars(rows: Sequence[tuple[str, float]], *, maximum: float = 1.0, width: int = 370) -> Html:
    """Horizontal bars, one for each (label, value); with the maximum 1 the values are written as percentages."""
    write = _percent if maximum == 1 else number
    room = min(max((text_width(label) for label, _ in rows), default=0.0), width * 0.45)
    start, end, step = room + 12, width - 54, 27
    parts = []
    for index, (label, value) in enumerate(rows):
        y, share = index * step, min(max(value / maximum, 0.0), 1.0) if _finite(value) else 0.0
        parts += [
            _text(room, y + 18, shortened(label, room), class_="word", anchor="end"),
            tag("rect", class_="track", x=start, y=y + 5, width=end - start, height=17, rx=3),
            tag("rect", class_="bar", x=start, y=y + 5, width=max((end - start) * share, 1.5), height=17, rx=3),
            _text(end + 8, y + 18, write(value, 3), class_="end"),
        ]
    says = ", ".join(f"{label} {write(value, 3)}" for label, value in rows)
    return _svg(says or "no values", width, max(len(rows), 1) * step, *parts)


def histogram(
    edges: Sequence[float], counts: Sequence[float], *, x_label: str, y_label: str = "count", width: int = 400
) -> Html:
    """One slot of equal width for each bin; the edges are written below, so uneven bins stay honest."""
    height, bins = 230, len(counts)
    y_axis = axis(0, max([*counts, 1]), round_ends=True, count=4)
    frame = _Frame(_room(y_axis, number), width - 24, 29, height - 42, x=Axis(0, max(bins, 1), ()), y=y_axis)
    parts = _rules(frame, number, y_label, x_label)
    for index, count in enumerate(counts):
        (x, y), (end, foot) = frame.place(index, count), frame.place(index + 1, 0)
        title = tag("title", f"{number(edges[index])} to {number(edges[index + 1])}: {count:,}")
        box = {"x": x + 0.6, "y": y, "width": max(end - x - 1.2, 0.4), "height": foot - y}
        parts.append(tag("g", title, tag("rect", class_="bar", **box)))
    names = [f"{edge:,g}" if abs(edge) < 1e6 else number(edge, 3) for edge in edges]
    slot = (frame.right - frame.left) / max(bins, 1)
    for index in range(0, len(edges), math.ceil((max(map(text_width, names)) + 8) / slot)):
        x, y = frame.place(index, 0)
        parts.append(_text(x, y + 18, names[index], anchor="middle"))
    return _svg(f"histogram of {x_label}: {sum(counts):,} in {bins} bins", width, height, *parts)


def heatmap(
    tokens: Sequence[str], weights: Any, *, columns: Sequence[str] | None = None, x_label: str = "", y_label: str = ""
) -> Html:
    """A matrix with a word at every row and column (the rows' own where `columns` is left out)."""
    matrix, across = np.nan_to_num(np.asarray(weights, dtype=float)), tokens if columns is None else columns
    highest = float(matrix.max(initial=0)) or 1.0
    cell = min(28.0, max(17.0, 560 / max(len(across), 1)))
    longest = max(map(text_width, across), default=0.0)
    left = max(map(text_width, [*tokens, y_label])) + 12
    top = longest + 38
    parts = [_text(left - 8, top - 10, y_label, class_="axis", anchor="end"), _text(left, 13, x_label, class_="axis")]
    for index, token in enumerate(tokens):
        parts.append(_text(left - 8, top + (index + 0.5) * cell + 4, token, class_="word", anchor="end"))
    for index, token in enumerate(across):
        x, y = left + (index + 0.5) * cell, top - 8
        turn = None if len(token) == 1 else f"rotate(-90 {x:.1f} {y:.1f}) translate(0 4)"
        parts.append(_text(x, y, token, class_="word", anchor=None if turn else "middle", transform=turn))
    for (i, j), weight in np.ndenumerate(matrix):
        title = tag("title", f"{tokens[i]} → {across[j]}: {number(float(weight), 3)}")
        box = {"x": left + j * cell, "y": top + i * cell, "width": cell - 1, "height": cell - 1, "rx": 1.5}
        heat = tag("rect", class_="heat", fill_opacity=max(float(weight), 0) / highest, **box)
        parts.append(tag("g", title, tag("rect", class_="track", **box), heat))
    width, height = left + cell * len(across), top + cell * len(tokens)
    return _svg(f"{len(tokens)} by {len(across)} heatmap, darkest {number(highest, 3)}", width, height, *parts)


def heatmaps(
    grid: Sequence[Sequence[Any]], *, row_label: str, column_label: str, chosen: tuple[int, int] | None = None
) -> Html:
    """Small heatmaps of values from 0 to 1 in rows and columns, all on one scale; `chosen` gets a frame."""
    most = max(map(len, grid), default=0)
    side = min(72.0, 780 / max(most, 1))
    left, top = text_width(f"{row_label} {len(grid)}") + 10, 24.0
    parts = [_text(left + (i + 0.5) * side - 2, 15, str(i + 1), anchor="middle") for i in range(most)]
    parts.append(_text(left - 8, 15, column_label, anchor="end"))
    for row, matrices in enumerate(grid):
        y = top + row * side
        parts.append(_text(left - 8, y + side / 2 + 2, f"{row_label} {row + 1}", anchor="end"))
        for column, matrix in enumerate(matrices):
            x, kind = left + column * side, "frame chosen" if (row, column) == chosen else "frame"
            title = tag("title", f"{row_label} {row + 1}, {column_label} {column + 1}")
            ground, frame = (
                tag("rect", class_=name, x=x, y=y, width=side - 4, height=side - 4, rx=2) for name in ("track", kind)
            )
            parts.append(tag("g", title, ground, _shades(np.asarray(matrix, dtype=float), x, y, side - 4), frame))
    says = f"{len(grid)} by {most} small heatmaps: {row_label} down, {column_label} across"
    return _svg(says, left + most * side, top + len(grid) * side, *parts)


@dataclass(frozen=True)
class _Frame:
    """Where the curves lie, and the axes that say so."""

    left: float
    right: float
    top: float
    bottom: float
    x: Axis
    y: Axis

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = self.left + (self.right - self.left) * self.x.at(x)
        return across, self.bottom - (self.bottom - self.top) * self.y.at(y)


def _finite(value: float | None) -> bool:
    """Also turns away the numbers of a run that blew up, which would flatten everything else."""
    return value is not None and abs(value) < 1e30


def _drawable(points: Points, log_x: bool) -> list[tuple[float, float]]:
    return sorted((x, y) for x, y in points if _finite(x) and _finite(y) and (x > 0 or not log_x))


def _room(y_axis: Axis, write: Any) -> float:
    """What the numbers left of the frame take up."""
    return 14 + max(text_width(write(tick)) for tick in y_axis.ticks)


def _rule(frame: _Frame, value: float, kind: str) -> Html:
    _, y = frame.place(frame.x.low, value)
    return tag("line", class_=kind, x1=frame.left, x2=frame.right, y1=y, y2=y)


def _rules(frame: _Frame, write: Any, y_label: str, x_label: str) -> list[Html]:
    """The horizontal lines with their numbers, and the names of both axes."""
    parts = [_text(0, frame.top - 15, y_label, class_="axis")]
    parts.append(_text(frame.right, frame.bottom + 36, x_label, class_="axis", anchor="end"))
    for tick in frame.y.ticks:
        _, y = frame.place(frame.x.low, tick)
        parts += [_rule(frame, tick, "rule"), _text(frame.left - 7, y + 4, write(tick), anchor="end")]
    return parts


def _end_labels(frame: _Frame, ends: list[tuple[str, float]], write: Any) -> list[Html]:
    placed = sorted((frame.place(frame.x.low, value)[1], kind, value) for kind, value in ends)
    heights = apart([y for y, _, _ in placed], 14, lowest=frame.bottom)
    return [
        _text(frame.right + 8, y + 4, write(value, 3), class_=f"end {kind}")
        for y, (_, kind, value) in zip(heights, placed, strict=True)
    ]


def _curve(points: Points, frame: _Frame, index: int, *, smooth: bool) -> Html:
    parts = [_path(thinned(points), frame, class_=f"line s{index}")]
    if smooth and len(points) > 2 * _FEW_POINTS:
        parts = [_path(thinned(points), frame, class_=f"line faint s{index}")]
        parts += [_path(thinned(running_mean(points)), frame, class_=f"line s{index}")]
    for x, y in points if len(points) <= _FEW_POINTS else points[-1:]:
        title = tag("title", f"{number(x)}: {number(y)}")
        across, down = frame.place(x, y)
        parts.append(tag("g", title, tag("circle", class_=f"dot s{index}", cx=across, cy=down, r=3)))
    return join(*parts)


def _path(points: Points, frame: _Frame, **attributes: Value) -> Html:
    places = [frame.place(x, y) for x, y in points]
    return tag("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places), **attributes) if places else Html()


def _legend(curves: list[str], marks: list[str], width: float) -> tuple[Html, float]:
    """Names beside a piece of their line, and the height this takes; a single curve needs none."""
    named = [(name, f"line s{i}") for i, name in enumerate(curves) if len(curves) > 1]
    parts, x, y = [], 0.0, 0.0
    for name, kind in named + [(name, "reference") for name in marks]:
        if x and x + 26 + text_width(name) > width:
            x, y = 0.0, y + 19
        parts += [tag("path", class_=kind, d=f"M{x:.1f} {y + 9:.1f}h20"), _text(x + 26, y + 13, name, class_="word")]
        x += 26 + text_width(name) + 20
    return join(*parts), y + 22 if parts else 0.0


def _shades(matrix: np.ndarray, x: float, y: float, side: float) -> Html:
    """A matrix as one path for each shade, runs of equal cells merged: a hundred of these stay small."""
    levels = np.rint(np.sqrt(np.clip(np.nan_to_num(matrix), 0, 1)) * _LEVELS).astype(int)
    runs: dict[int, list[str]] = {}
    for i, row in enumerate(levels):
        cuts = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), len(row)]
        for start, end in pairwise(cuts):
            if end > start and row[start]:
                runs.setdefault(int(row[start]), []).append(f"M{start} {i}h{end - start}v1h{start - end}z")
    scale = f"translate({x:.2f} {y:.2f}) scale({side / levels.shape[1]:.4f} {side / levels.shape[0]:.4f})"
    paths = [tag("path", d="".join(run), fill_opacity=level / _LEVELS) for level, run in sorted(runs.items())]
    return tag("g", *paths, class_="heat", transform=scale, shape_rendering="crispEdges")


def _svg(label: str, width: float, height: float, *parts: str) -> Html:
    wide, high = math.ceil(width), math.ceil(height)
    size: dict[str, Value] = {"viewBox": f"0 0 {wide} {high}", "width": wide, "height": high}
    size["style"] = f"max-width:{wide * 1.25:.0f}px"  # a small chart in a wide card is not blown up
    return tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", role="img", aria_label=label, **size)


def _text(x: float, y: float, text: str, *, class_: str = "", anchor: str | None = None, **more: Value) -> Html:
    return tag("text", text, x=float(x), y=float(y), class_=class_ or None, text_anchor=anchor, **more)


def _percent(value: float, digits: int = 0) -> str:
    """A whole percentage for an axis (digits 0), otherwise one decimal."""
    return f"{value * 100:.3g}%" if not digits or not _finite(value) else f"{value:.1%}"
