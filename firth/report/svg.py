"""The pieces that all charts are made of: the drawing with its description for screen readers, and text in it."""

import math
from collections.abc import Iterable

from firth.report.axes import text_width
from firth.report.markup import Html, Value, tag


def svg(label: str, width: float, height: float, *parts: str) -> Html:
    """A drawing of this many pixels; `label` says in words what it shows."""
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


def text(x: float, y: float, content: str, *, class_: str = "", anchor: str | None = None, **more: Value) -> Html:
    """Text at a pixel; `anchor` is the end of the text that is there, `start` if it is not given."""
    return tag(
        "text",
        content,
        x=float(x),
        y=float(y),
        class_=class_ or None,
        text_anchor=anchor,
        **more,
    )


def widest(texts: Iterable[str]) -> float:
    """The width of the longest text in pixels; 0 if there is none."""
    return max(map(text_width, texts), default=0.0)
