"""Words on a plane: vectors in, a picture out. The plane is that in which they differ most (principal components)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firth.errors import BadInput, Unsupported
from firth.files import atomic_file, write_bytes
from firth.report.axes import text_width
from firth.report.markup import Html, tag

_FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "SimHei", "PingFang SC")
_MARGIN, _LINE = 28.0, 15.0


def plane(vectors: np.ndarray) -> np.ndarray:
    """Rows projected on their first two principal components; a component's largest entry is positive."""
    centred = vectors - vectors.mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    axes = np.concatenate([axes[:2], np.zeros((max(2 - len(axes), 0), vectors.shape[1]))])
    signs = np.sign(axes[np.arange(2), np.abs(axes).argmax(1)])
    return np.asarray(centred @ (axes * np.where(signs == 0, 1, signs)[:, None]).T)


def write_map(path: Path, words: Sequence[str], vectors: np.ndarray) -> None:
    """The words where their vectors lie, as SVG or PNG by the ending of `path`."""
    if len(words) < 2:
        raise BadInput("A map needs at least two words.")
    points = plane(vectors)
    if path.suffix.lower() == ".svg":
        write_bytes(path, svg(words, points).encode())
    elif path.suffix.lower() == ".png":
        _png(path, words, points)
    else:
        raise BadInput(f"{path} is neither .svg nor .png; choose one of these endings.")


def svg(words: Sequence[str], points: np.ndarray, *, width: int = 720, height: int = 540) -> Html:
    """Both axes have one scale, so that distances can be compared by eye."""
    low, spread = points.min(0), max(float(np.ptp(points, axis=0).max()), 1e-12)
    room = max(map(text_width, words)) + 10
    scale = min((width - 2 * _MARGIN - room) / spread, (height - 2 * _MARGIN) / spread)
    shown, taken = [], list[tuple[float, float, float]]()
    for word, (x, y) in zip(words, (points - low) * scale, strict=True):
        across, down = _MARGIN + float(x), height - _MARGIN - float(y)
        text_down = _free(across + 8, down + 4, text_width(word), taken)
        shown += [
            tag("circle", cx=across, cy=down, r=3.5, fill="#0072b2"),
            tag("text", word, x=across + 8, y=text_down, fill="#1c2024"),
        ]
    ground = tag("rect", width=width, height=height, fill="#ffffff")
    style = "font: 13px system-ui, 'Noto Sans', 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif"
    label = f"{len(words)} words on the plane in which their vectors differ most"
    size: dict[str, str | float] = {"viewBox": f"0 0 {width} {height}", "width": width, "height": height}
    return tag(
        "svg", ground, *shown, xmlns="http://www.w3.org/2000/svg", role="img", aria_label=label, style=style, **size
    )


def _free(left: float, down: float, width: float, taken: list[tuple[float, float, float]]) -> float:
    """A height near `down` where a text of this width covers no other."""
    step = 0
    while any(abs(y - down) < _LINE and left < right and start < left + width for start, right, y in taken):
        step += 1
        down += _LINE * step * (-1) ** step / 2
    taken.append((left, left + width, down))
    return down


def _png(path: Path, words: Sequence[str], points: np.ndarray) -> None:
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.font_manager import fontManager
    except ImportError:
        raise Unsupported("A .png map needs matplotlib: pip install 'firth[plot]', or write an .svg.") from None
    fonts = [name for name in _FONTS if name in fontManager.get_font_names()]  # of others it complains at every word
    with rc_context({"font.family": fonts}), atomic_file(path) as file:
        figure = Figure(figsize=(9, 6.75), layout="constrained")
        axes = figure.add_subplot(aspect="equal", xticks=[], yticks=[])
        axes.scatter(points[:, 0], points[:, 1], s=14, color="#0072b2")
        for word, (x, y) in zip(words, points, strict=True):
            axes.annotate(word, (x, y), xytext=(6, 3), textcoords="offset points")
        figure.savefig(file, format="png", dpi=120)
