"""Text and attributes in, escaped HTML or SVG out.

Only `Html` counts as markup: a plain string becomes text, whatever it holds. What comes out is also well-formed XML.
"""

import html
import re

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_EMPTY = frozenset({"meta", "link", "path", "rect", "line", "circle"})

Value = str | float | None


class Html(str):
    """Markup that is already escaped."""

    __slots__ = ()


def escape(text: str) -> Html:
    """The text as markup; characters that no page may hold become U+FFFD."""
    return text if isinstance(text, Html) else Html(html.escape(_FORBIDDEN.sub("\ufffd", text)))


def join(*parts: str) -> Html:
    return Html("".join(map(escape, parts)))


def tag(name: str, /, *children: str, **attributes: Value) -> Html:
    """One element. `stroke_width=2` is written stroke-width="2", `class_` is class, and None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_plain(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{written}/>" if name in _EMPTY else f"<{name}{written}>{join(*children)}</{name}>")


def _plain(value: str | float) -> str:
    """Two decimals are enough for a coordinate and keep the file small and the same everywhere."""
    if isinstance(value, str):
        return escape(value)
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
