"""Text and attributes in, escaped HTML or SVG out.

Only `Html` counts as markup: a plain string becomes text, whatever it holds. What comes out is also well-formed XML.
"""

import html
import re

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Control characters, lone surrogates and noncharacters: not allowed in HTML or XML."""
_EMPTY = frozenset({"meta", "link", "path", "rect", "line", "circle"})
"""Elements without children, written as `<name/>`."""

Value = str | float | None
"""The value of an attribute; None leaves the attribute out."""


class Html(str):
    """Markup that is already escaped."""

    __slots__ = ()


def escape(text: str) -> Html:
    """The text as markup; characters that no page may hold become U+FFFD."""
    if isinstance(text, Html):
        return text
    allowed = _FORBIDDEN.sub("\ufffd", text)
    return Html(html.escape(allowed))


def join(*parts: str) -> Html:
    """All parts one after another, each escaped unless it is markup."""
    return Html("".join(map(escape, parts)))


def tag(name: str, /, *children: str, **attributes: Value) -> Html:
    """One element. `stroke_width=2` is written stroke-width="2", `class_` is class, and None leaves one out."""
    written = ""
    for key, value in attributes.items():
        if value is not None:
            # `class` is a Python keyword, and names with hyphens are no Python names.
            attribute = key.rstrip("_").replace("_", "-")
            written += f' {attribute}="{_attribute_text(value)}"'
    if name in _EMPTY:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def _attribute_text(value: str | float) -> str:
    """Floats have two decimals: enough for a coordinate, a small file and the same text on every machine."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)
