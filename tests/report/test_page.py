"""The frame of a page: text stays text, the file asks nothing of the network."""

from xml.etree import ElementTree

import pytest

from firth.report.markup import Html, escape, tag
from firth.report.page import figure, fold, notice, page, section, show, table, tiles, verdict

EVIL = "<img src=x onerror=alert(1)>\"'&</style><script>"


def test_every_part_escapes_its_text() -> None:
    made = page(
        EVIL,
        [section(EVIL, EVIL, notice(EVIL), table([EVIL], [[EVIL]]), tiles({EVIL: EVIL}), fold(EVIL, EVIL),
                 figure(Html("<svg/>"), EVIL, heading=EVIL))],
        kind=EVIL,
        head=[verdict(EVIL, [EVIL], good=False)],
    )  # fmt: skip
    assert "<img" not in made
    assert "<script" not in made
    tree = ElementTree.fromstring(made.removeprefix("<!DOCTYPE html>"))
    assert "".join(tree.itertext()).count(EVIL) == 17  # each place once


def test_characters_no_page_may_hold_are_replaced() -> None:
    assert escape("a\x00b\ud800c\x1bd") == "a\ufffdb\ufffdc\ufffdd"


def test_attributes_are_escaped_and_named_as_in_html() -> None:
    assert tag("p", "x", class_='a"b', aria_label=None, data_x=1.5) == '<p class="a&quot;b" data-x="1.5">x</p>'


def test_links_lead_to_sections() -> None:
    tree = ElementTree.fromstring(page("t", [section("Data health", "fine")]).removeprefix("<!DOCTYPE html>"))
    links = [element.get("href") for element in tree.iter("a")]
    assert links == ["#data-health"]
    assert [element.get("id") for element in tree.iter("section")] == ["data-health"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (33_401_856, "33.4M"),
        (999_700, "999,700"),
        (999_700_000, "1B"),
        (12_345, "12,345"),
        (0.12345, "0.1235"),
        (958_000.4, "958,000"),
        ("bert", "bert"),
        (None, ""),
    ],
)
def test_values_are_readable(value: object, text: str) -> None:
    assert show(value) == text
