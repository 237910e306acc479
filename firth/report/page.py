"""Parts in, one self-contained HTML page out: it asks nothing of the network and runs no script.

Plain strings are text and are escaped; only what these functions and `charts` return is markup.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firth.report.markup import Html, join, tag
from firth.report.style import CSS

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it; plain strings are paragraphs."""

    heading: str
    parts: tuple[str, ...]

    @property
    def anchor(self) -> str:
        return re.sub(r"\W+", "-", self.heading.lower()).strip("-") or "section"


def section(heading: str, *parts: str) -> Section:
    return Section(heading, parts)


def page(title: str, sections: Sequence[Section], *, kind: str = "", head: Sequence[Html] = ()) -> Html:
    """The whole file; `head` stands between the title and the links to the sections."""
    links = [tag("a", part.heading, href=f"#{part.anchor}") for part in sections]
    top = tag("header", tag("p", kind, class_="kind") if kind else "", tag("h1", title), *head)
    nav = tag("nav", *links, aria_label="Sections") if links else ""
    foot = tag("footer", "Made by firth. This page is complete in itself: it loads nothing and runs no script.")
    body = tag("body", tag("main", top, nav, *map(_section, sections)), foot)
    meta = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("link", rel="icon", href="data:,"),
    ]
    head_element = tag("head", *meta, tag("title", title), tag("style", Html(CSS)))
    return join(Html("<!DOCTYPE html>\n"), tag("html", head_element, body, lang="en"), "\n")


def _section(part: Section) -> Html:
    below = [text if isinstance(text, Html) else paragraph(text) for text in part.parts if text]
    return tag("section", tag("h2", part.heading), *below, id=part.anchor)


def paragraph(text: str) -> Html:
    return tag("p", text)


def verdict(sentence: str, remarks: Sequence[str] = (), *, good: bool) -> Html:
    """The one sentence to take away; a sign says it as well as the colour."""
    points = tag("ul", *(tag("li", remark) for remark in remarks)) if remarks else ""
    stroke = tag("path", d="M3 10.5l5 5 9-11" if good else "M10 2v10M10 17v.1")
    sign = tag("svg", stroke, viewBox="0 0 20 20", aria_hidden="true")
    return tag("div", tag("strong", sign, sentence), points, class_="verdict" if good else "verdict warn")


def notice(text: str) -> Html:
    return tag("div", tag("b", "Note: "), text, class_="notice")


def tiles(facts: Mapping[str, Any]) -> Html:
    """Names with their values, large."""
    return tag("dl", *(_tile(name, show(value)) for name, value in facts.items()), class_="tiles")


def _tile(name: str, value: str) -> Html:
    return tag("div", tag("dt", sentence_case(name)), tag("dd", value), class_="long" if len(value) > 12 else None)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Html:
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in columns)))
    body = tag("tbody", *(tag("tr", *(tag("td", show(value)) for value in row)) for row in rows))
    return tag("div", tag("table", head, body), class_="roll", tabindex="0")


def figure(svg: Html, caption: str = "", *, heading: str = "", narrow: Html | None = None, roll: bool = False) -> Html:
    """A chart with its caption. `narrow` replaces it on a phone; with `roll` it keeps its size and scrolls sideways."""
    if narrow is not None:
        svg = join(tag("div", svg, class_="only-wide"), tag("div", narrow, class_="only-narrow"))
    if roll:
        svg = tag("div", svg, class_="roll", tabindex="0")
    title = tag("h3", heading) if heading else ""
    return tag("figure", title, svg, tag("figcaption", caption) if caption else "")


def grid(*parts: Html) -> Html:
    """Parts side by side where there is room, one below the other where there is not."""
    return tag("div", *parts, class_="grid")


def card(*parts: str) -> Html:
    return tag("div", *parts, class_="card")


def fold(summary: str, *parts: str) -> Html:
    """Parts shown on request."""
    return tag("details", tag("summary", summary), *parts)


def show(value: Any) -> str:
    """A value for reading: 33401856 -> 33.4M, 12345 -> 12,345, 0.12345 -> 0.1235; words stay as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    if not math.isfinite(value):
        return str(value)
    for size, letter in ((1e9, "B"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def sentence_case(name: str) -> str:
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]
