"""Parts in, one self-contained HTML page out: it loads nothing over the network and runs no script.

Plain strings are text and are escaped; only what these functions and `charts` return is markup.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firth.report.markup import Html, join, tag
from firth.report.style import CSS

_CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""A browser refuses scripts and requests even if some text were to smuggle them in."""
_LONG_VALUE = 12
"""A tile's value with more characters than this is set in smaller type."""


@dataclass(frozen=True)
class Section:
    """A heading and the parts below it; plain strings are paragraphs."""

    heading: str
    parts: tuple[str, ...]

    @property
    def anchor(self) -> str:
        """The section's id, which links of the page point to."""
        words = re.sub(r"\W+", "-", self.heading.lower())
        return words.strip("-") or "section"


def section(heading: str, *parts: str) -> Section:
    return Section(heading, parts)


def page(title: str, sections: Sequence[Section], *, kind: str = "", head: Sequence[Html] = ()) -> Html:
    """The whole file; `head` comes between the title and the links to the sections."""
    document = tag("html", _head(title), _body(title, sections, kind=kind, head=head), lang="en")
    return join(Html("<!DOCTYPE html>\n"), document, "\n")


def _head(title: str) -> Html:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_CONTENT_POLICY),
        # An empty icon, because a browser would ask the server for one.
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Html(CSS)),
    )


def _body(title: str, sections: Sequence[Section], *, kind: str, head: Sequence[Html]) -> Html:
    parts: list[str] = []
    if kind:
        parts.append(tag("p", kind, class_="kind"))
    parts.append(tag("h1", title))
    main: list[str] = [tag("header", *parts, *head)]
    if sections:
        links = [tag("a", part.heading, href=f"#{part.anchor}") for part in sections]
        main.append(tag("nav", *links, aria_label="Sections"))
    for part in sections:
        main.append(_section(part))
    footer = tag("footer", "Made by firth. This page is complete in itself: it loads nothing and runs no script.")
    return tag("body", tag("main", *main), footer)


def _section(part: Section) -> Html:
    below = []
    for text in part.parts:
        if isinstance(text, Html) and text:
            below.append(text)
        elif text:
            below.append(paragraph(text))
    return tag("section", tag("h2", part.heading), *below, id=part.anchor)


def paragraph(text: str) -> Html:
    return tag("p", text)


def verdict(sentence: str, remarks: Sequence[str] = (), *, good: bool) -> Html:
    """The one sentence to take away; a sign says the same as the colour."""
    if good:
        box_class = "verdict"
        check_mark = "M3 10.5l5 5 9-11"
        stroke = tag("path", d=check_mark)
    else:
        box_class = "verdict warn"
        exclamation_mark = "M10 2v10M10 17v.1"
        stroke = tag("path", d=exclamation_mark)
    sign = tag("svg", stroke, viewBox="0 0 20 20", aria_hidden="true")
    parts = [tag("strong", sign, sentence)]
    if remarks:
        points = [tag("li", remark) for remark in remarks]
        parts.append(tag("ul", *points))
    return tag("div", *parts, class_=box_class)


def notice(text: str) -> Html:
    """A warning in a box."""
    return tag("div", tag("b", "Note: "), text, class_="notice")


def tiles(facts: Mapping[str, object]) -> Html:
    """Names with their values in large type."""
    parts = [_tile(name, show(value)) for name, value in facts.items()]
    return tag("dl", *parts, class_="tiles")


def _tile(name: str, value: str) -> Html:
    size_class = "long" if len(value) > _LONG_VALUE else None
    return tag("div", tag("dt", sentence_case(name)), tag("dd", value), class_=size_class)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Html:
    """A table that scrolls sideways where it is too wide."""
    names = [tag("th", name, scope="col") for name in columns]
    lines = []
    for row in rows:
        cells = [tag("td", show(value)) for value in row]
        lines.append(tag("tr", *cells))
    head = tag("thead", tag("tr", *names))
    body = tag("tbody", *lines)
    return tag("div", tag("table", head, body), class_="roll", tabindex="0")


def figure(svg: Html, caption: str = "", *, heading: str = "", narrow: Html | None = None, roll: bool = False) -> Html:
    """A chart with its caption. `narrow` replaces it on a phone; with `roll` it keeps its size and scrolls sideways."""
    if narrow is not None:
        # The stylesheet shows one of the two.
        wide_screen = tag("div", svg, class_="only-wide")
        narrow_screen = tag("div", narrow, class_="only-narrow")
        svg = join(wide_screen, narrow_screen)
    if roll:
        svg = tag("div", svg, class_="roll", tabindex="0")
    parts = []
    if heading:
        parts.append(tag("h3", heading))
    parts.append(svg)
    if caption:
        parts.append(tag("figcaption", caption))
    return tag("figure", *parts)


def grid(*parts: Html) -> Html:
    """Parts side by side on a wide screen, one below the other on a narrow one."""
    return tag("div", *parts, class_="grid")


def card(*parts: str) -> Html:
    """Parts in a box."""
    return tag("div", *parts, class_="card")


def fold(summary: str, *parts: str) -> Html:
    """Parts that are hidden until the reader opens them."""
    return tag("details", tag("summary", summary), *parts)


def show(value: object) -> str:
    """A value for reading: 33401856 -> 33.4M, 12345 -> 12,345, 0.12345 -> 0.1235; words stay as they are."""
    if value is None:
        return ""
    # True and False are ints to Python, but words to a reader.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1e6:
        # Rounded before the unit is chosen: 999,700,000 is 1B, not 1e+03M.
        rounded = float(f"{value:.3g}")
        if abs(rounded) >= 1e9:
            return f"{rounded / 1e9:.3g}B"
        return f"{rounded / 1e6:.3g}M"
    # Counts are exact up to a million; other numbers have four digits.
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def sentence_case(name: str) -> str:
    """A key as the start of a sentence: `vocab_size` -> `Vocab size`."""
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]
