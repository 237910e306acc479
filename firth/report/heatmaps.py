"""Matrices in, inline SVG out: a heatmap with a word at every row and column, and a grid of small ones.

As in `charts.py` the same numbers give the same text, and colours are classes of the stylesheet.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from firth.report.axes import number, text_width
from firth.report.markup import Html, tag
from firth.report.svg import svg, text, widest

_SHADES = 12
"""Opacity levels of a small heatmap."""


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
    cell = 560 / max(len(columns), 1)
    cell = min(28.0, max(17.0, cell))
    left = widest((*tokens, y_label)) + 12
    top = widest(columns) + 38

    parts = [
        text(left - 8, top - 10, y_label, class_="axis", anchor="end"),
        text(left, 13, x_label, class_="axis"),
    ]
    for index, token in enumerate(tokens):
        middle = top + (index + 0.5) * cell
        parts.append(text(left - 8, middle + 4, token, class_="word", anchor="end"))
    for index, column in enumerate(columns):
        middle = left + (index + 0.5) * cell
        parts.append(_column_name(middle, top - 8, column))
    for (i, j), entry in np.ndenumerate(matrix):
        weight = float(entry)
        title = tag("title", f"{tokens[i]} → {columns[j]}: {number(weight, 3)}")
        opacity = max(weight, 0) / highest
        parts.append(_cell(left + j * cell, top + i * cell, cell - 1, title=title, opacity=opacity))
    width = left + cell * len(columns)
    height = top + cell * len(tokens)
    summary = f"{len(tokens)} by {len(columns)} heatmap, darkest {number(highest, 3)}"
    return svg(summary, width, height, *parts)


def _cell(x: float, y: float, side: float, *, title: Html, opacity: float) -> Html:
    """A square of a heatmap: the darker, the larger its value."""
    box = {"x": x, "y": y, "width": side, "height": side, "rx": 1.5}
    track = tag("rect", class_="track", **box)
    heat = tag("rect", class_="heat", fill_opacity=opacity, **box)
    return tag("g", title, track, heat)


def heatmaps(
    grid: Sequence[Sequence[ArrayLike]],
    *,
    row_label: str,
    column_label: str,
    chosen: tuple[int, int] | None = None,
) -> Html:
    """Small heatmaps of values from 0 to 1 in rows and columns, all on one scale; `chosen` gets a frame."""
    num_columns = max(map(len, grid), default=0)
    side = min(72.0, 780 / max(num_columns, 1))
    left = text_width(f"{row_label} {len(grid)}") + 10
    top = 24.0
    parts = []
    for column in range(num_columns):
        middle = left + (column + 0.5) * side - 2
        parts.append(text(middle, 15, str(column + 1), anchor="middle"))
    parts.append(text(left - 8, 15, column_label, anchor="end"))
    for row, matrices in enumerate(grid):
        y = top + row * side
        row_name = f"{row_label} {row + 1}"
        parts.append(text(left - 8, y + side / 2 + 2, row_name, anchor="end"))
        for column, matrix in enumerate(matrices):
            title = tag("title", f"{row_name}, {column_label} {column + 1}")
            frame_class = "frame chosen" if (row, column) == chosen else "frame"
            values = np.asarray(matrix, dtype=float)
            # Four pixels between neighbours.
            parts.append(_small(values, left + column * side, y, side - 4, title=title, frame_class=frame_class))
    summary = f"{len(grid)} by {num_columns} small heatmaps: {row_label} down, {column_label} across"
    width = left + num_columns * side
    height = top + len(grid) * side
    return svg(summary, width, height, *parts)


def _small(values: np.ndarray, x: float, y: float, side: float, *, title: Html, frame_class: str) -> Html:
    """One small heatmap in its frame."""
    box = {"x": x, "y": y, "width": side, "height": side, "rx": 2}
    track = tag("rect", class_="track", **box)
    frame = tag("rect", class_=frame_class, **box)
    cells = _shaded_cells(values, x, y, side)
    return tag("g", title, track, cells, frame)


def _column_name(x: float, y: float, name: str) -> Html:
    """A name above a column: a single character upright, a longer one turned."""
    if len(name) == 1:
        return text(x, y, name, class_="word", anchor="middle")
    turn = f"rotate(-90 {x:.1f} {y:.1f}) translate(0 4)"
    return text(x, y, name, class_="word", transform=turn)


def _shaded_cells(matrix: np.ndarray, x: float, y: float, side: float) -> Html:
    """A matrix of values from 0 to 1 as one path for each shade.

    Runs of equal cells in a row are merged: a hundred of these matrices stay a small file.
    """
    # The square root makes small weights visible.
    weights = np.clip(np.nan_to_num(matrix), 0, 1)
    levels = np.rint(np.sqrt(weights) * _SHADES)
    levels = levels.astype(int)
    runs: dict[int, list[str]] = {}
    for i, row in enumerate(levels):
        changes = np.flatnonzero(np.diff(row)) + 1
        borders = [0, *changes.tolist(), len(row)]
        for start, end in pairwise(borders):
            level = int(row[start])
            # Level 0 is the background.
            if level:
                rectangle = f"M{start} {i}h{end - start}v1h{start - end}z"
                runs.setdefault(level, []).append(rectangle)
    paths = []
    for level, rectangles in sorted(runs.items()):
        outline = "".join(rectangles)
        paths.append(tag("path", d=outline, fill_opacity=level / _SHADES))
    # The paths are in units of cells; this scales them to pixels.
    num_rows, num_columns = levels.shape
    cell_width = side / num_columns
    cell_height = side / num_rows
    transform = f"translate({x:.2f} {y:.2f}) scale({cell_width:.4f} {cell_height:.4f})"
    return tag("g", *paths, class_="heat", transform=transform, shape_rendering="crispEdges")
