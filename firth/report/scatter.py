"""Words on a plane: vectors in, a picture out.

The plane is spanned by the first two principal components, the directions in which the vectors differ most.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firth.errors import BadInput, Unsupported, install
from firth.files import atomic_file, write_bytes
from firth.report.axes import text_width
from firth.report.markup import Html, tag

_FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "SimHei", "PingFang SC")
"""Fonts for PNG files, tried in this order for each character."""
_SVG_FONT = "font: 13px system-ui, 'Noto Sans', 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif"
_MARGIN = 28.0
_LINE_HEIGHT = 15.0

_Box = tuple[float, float, float]
"""Left, right and baseline of a label, in pixels."""


def plane(vectors: np.ndarray) -> np.ndarray:
    """Rows projected on their first two principal components; a component's largest entry is positive."""
    centred = vectors - vectors.mean(0)
    _, _, components = np.linalg.svd(centred, full_matrices=False)
    # Vectors of one dimension have a single component; the other coordinate is 0.
    num_missing = max(2 - len(components), 0)
    missing = np.zeros((num_missing, vectors.shape[1]))
    axes = np.concatenate([components[:2], missing])
    # The sign of a component is arbitrary: fix it, so that the picture is the same on every machine.
    largest = np.abs(axes).argmax(1)
    signs = np.sign(axes[np.arange(2), largest])
    signs = np.where(signs == 0, 1, signs)
    return np.asarray(centred @ (axes * signs[:, None]).T)


def write_map(path: Path, words: Sequence[str], vectors: np.ndarray) -> None:
    """Draws the words where their vectors lie, as SVG or PNG according to the suffix of `path`."""
    if len(words) < 2:
        raise BadInput("A map needs at least two words.")
    points = plane(vectors)
    suffix = path.suffix.lower()
    if suffix == ".svg":
        write_bytes(path, svg(words, points).encode())
    elif suffix == ".png":
        _write_png(path, words, points)
    else:
        raise BadInput(f"{path} is neither .svg nor .png; choose one of these endings.")


def svg(words: Sequence[str], points: np.ndarray, *, width: int = 720, height: int = 540) -> Html:
    """The picture as SVG. Both axes have one scale, so that distances can be compared by eye."""
    lowest = points.min(0)
    widest_range = float(np.ptp(points, axis=0).max())
    spread = max(widest_range, 1e-12)
    # The longest word may be at the right end.
    text_room = max(map(text_width, words)) + 10
    across_room = width - 2 * _MARGIN - text_room
    down_room = height - 2 * _MARGIN
    scale = min(across_room / spread, down_room / spread)
    parts = [tag("rect", width=width, height=height, fill="#ffffff")]
    taken: list[_Box] = []
    for word, (x, y) in zip(words, (points - lowest) * scale, strict=True):
        across = _MARGIN + float(x)
        down = height - _MARGIN - float(y)
        baseline = _free_baseline(across + 8, down + 4, text_width(word), taken)
        parts.append(tag("circle", cx=across, cy=down, r=3.5, fill="#0072b2"))
        parts.append(tag("text", word, x=across + 8, y=baseline, fill="#1c2024"))
    return tag(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        aria_label=f"{len(words)} words on the plane in which their vectors differ most",
        style=_SVG_FONT,
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
    )


def _free_baseline(left: float, down: float, width: float, taken: list[_Box]) -> float:
    """A baseline near `down` where a text of this width covers no other; adds the text to `taken`."""
    step = 0
    while _overlaps(left, down, width, taken):
        # Alternately above and below, half a line further each time.
        step += 1
        down += _LINE_HEIGHT * step * (-1) ** step / 2
    taken.append((left, left + width, down))
    return down


def _overlaps(left: float, down: float, width: float, taken: list[_Box]) -> bool:
    for other_left, other_right, other_down in taken:
        same_line = abs(other_down - down) < _LINE_HEIGHT
        if same_line and left < other_right and other_left < left + width:
            return True
    return False


def _write_png(path: Path, words: Sequence[str], points: np.ndarray) -> None:
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.font_manager import fontManager
    except ImportError:
        raise Unsupported(f"A .png map needs matplotlib; run {install('plot')}, or write an .svg.") from None
    # matplotlib warns at every word about a font that is not installed.
    installed = fontManager.get_font_names()
    fonts = [name for name in _FONTS if name in installed]
    with rc_context({"font.family": fonts}), atomic_file(path) as file:
        figure = Figure(figsize=(9, 6.75), layout="constrained")
        axes = figure.add_subplot(aspect="equal", xticks=[], yticks=[])
        axes.scatter(points[:, 0], points[:, 1], s=14, color="#0072b2")
        for word, (x, y) in zip(words, points, strict=True):
            axes.annotate(word, (x, y), xytext=(6, 3), textcoords="offset points")
        figure.savefig(file, format="png", dpi=120)
