"""Named points and ranges: what is drawn is where the numbers say."""

import re
from xml.etree import ElementTree

from firth.report.charts import lines
from firth.report.points import points


def test_points_are_named_and_placed() -> None:
    named = {"half": (2.0, 0.8), "original": (1.0, 0.9)}
    svg = points(named, x_label="speed", y_label="accuracy", reference="original")
    root = ElementTree.fromstring(svg)
    circles = [part for part in root.iter() if part.tag.endswith("circle")]
    # The reference has a ring, wherever it comes.
    assert len(circles) == 3
    half, original, ring = circles
    assert (original.get("cx"), original.get("cy")) == (ring.get("cx"), ring.get("cy"))
    assert float(original.get("cx", "0")) < float(half.get("cx", "0"))
    assert float(original.get("cy", "0")) < float(half.get("cy", "0"))
    assert "half: 2, 0.8" in root.get("aria-label", "")


def test_names_do_not_cover_each_other() -> None:
    svg = points({"one": (1.0, 1.0), "two": (1.0, 1.0), "three": (1.0, 1.0)}, x_label="x", y_label="y")
    heights = re.findall(r'y="([\d.]+)" class="word"', svg)
    assert len(set(heights)) == 3


def test_a_range_is_cut_at_the_frame() -> None:
    series = {"a": [(1.0, 0.2), (2.0, 0.4)]}
    ranges = {"a": [(1.0, 0.1, 0.3), (2.0, -50.0, 50.0), (2.0, 5.0, 6.0)]}
    root = ElementTree.fromstring(lines(series, x_label="x", y_label="y", ranges=ranges))
    drawn = [part for part in root.iter() if part.get("class") == "range s0"]
    # The third lies outside.
    assert len(drawn) == 2
    for line in drawn:
        assert 0 < float(line.get("y2", "0")) < float(line.get("y1", "0")) < 270
