"""Charts: round ticks, escaped words, nothing lost, and the same text for the same numbers."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from firth.report.axes import axis, log_axis, number, running_mean, shortened, text_width, thinned
from firth.report.charts import bars, histogram, lines
from firth.report.heatmaps import heatmap, heatmaps

SVG = "{http://www.w3.org/2000/svg}"


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def words(svg: str) -> list[str]:
    return [element.text or "" for element in parse(svg).iter(f"{SVG}text")]


def by_class(svg: str, name: str) -> list[ElementTree.Element]:
    return [element for element in parse(svg).iter() if element.get("class") == name]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 10, (0, 2, 4, 6, 8, 10)),
        (2.31, 9.7, (4, 6, 8)),
        (0, 0.001, (0, 0.0002, 0.0004, 0.0006, 0.0008, 0.001)),
        (50, 20000, (0, 5000, 10000, 15000, 20000)),
        (-1, 1, (-1, -0.5, 0, 0.5, 1)),
    ],
)
def test_ticks_are_round(low: float, high: float, ticks: tuple[float, ...]) -> None:
    assert axis(low, high).ticks == ticks


def test_round_ends_enclose_the_data() -> None:
    found = axis(2.31, 9.7, round_ends=True)
    assert (found.low, found.high) == (2, 10)
    assert found.at(2) == 0
    assert found.at(10) == 1
    assert found.at(6) == 0.5


def test_a_single_value_still_has_an_axis() -> None:
    found = axis(3, 3, round_ends=True)
    assert found.low < 3 < found.high


def test_log_axis_has_powers_of_ten() -> None:
    found = log_axis(1, 10000)
    assert found.ticks == (1, 10, 100, 1000, 10000)
    assert found.at(100) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1500, "1.5k"), (2_000_000, "2M"), (0.00002, "2e\u22125"), (0.25, "0.25"), (-3, "\u22123"), (0, "0")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(("value", "text"), [(999.6, "1k"), (-999.6, "\u22121k"), (999_700, "1M"), (999.4, "999")])
def test_rounding_up_takes_the_next_unit(value: float, text: str) -> None:
    assert number(value, 3) == text


@pytest.mark.parametrize(("value", "text"), [(float("nan"), "?"), (float("inf"), "∞"), (-float("inf"), "\u2212∞")])
def test_numbers_that_are_none_are_said(value: float, text: str) -> None:
    assert number(value) == text


def test_thinning_keeps_spikes_and_ends() -> None:
    points = [(float(i), 1.0) for i in range(10_000)]
    points[7777] = (7777.0, 50.0)
    kept = thinned(points)
    assert len(kept) < 1000
    assert (7777.0, 50.0) in kept
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]


def test_running_mean_keeps_straight_lines() -> None:
    points = [(float(i), 3.0 * i) for i in range(200)]
    assert np.allclose(running_mean(points), points)


def test_long_words_are_shortened_to_their_room() -> None:
    assert shortened("paris", 100) == "paris"
    cut = shortened("antidisestablishmentarianism", 60)
    assert cut.endswith("…")
    assert text_width(cut) <= 60.1
    assert text_width("北京") > text_width("ab")


def test_lines_name_their_curves_and_references() -> None:
    svg = lines(
        {"train": [(1, 9), (2, 3)], "held-out": [(1, 9), (2, 4)]},
        x_label="step",
        y_label="loss",
        references={"unigram floor": 6.9},
    )
    assert {"train", "held-out", "unigram floor", "6.9", "3", "4", "step", "loss"} <= set(words(svg))
    assert parse(svg).get("aria-label") == "loss by step: train ends at 3, held-out ends at 4, unigram floor is 6.9"


def test_lower_losses_are_drawn_lower() -> None:
    svg = lines({"a": [(0, 1), (1, 5)]}, x_label="x", y_label="y")
    first, second = (element for element in parse(svg).iter(f"{SVG}circle"))
    assert float(first.get("cy", "")) > float(second.get("cy", ""))
    assert float(first.get("cx", "")) < float(second.get("cx", ""))


def test_labels_at_the_end_do_not_overlap() -> None:
    svg = lines({str(i): [(0, 1), (1, 2 + i / 1000)] for i in range(4)}, x_label="x", y_label="y")
    heights = sorted(float(e.get("y", "")) for e in parse(svg).iter() if (e.get("class") or "").startswith("end "))
    assert len(heights) == 4
    assert min(np.diff(heights)) >= 12


def test_accuracies_start_at_zero() -> None:
    assert "0%" in words(lines({"a": [(0, 0.51), (1, 0.52)]}, x_label="x", y_label="y", percent=True))


def test_lines_skip_what_cannot_be_drawn() -> None:
    svg = lines({"a": [(1, float("nan")), (2, 3.0), (3, float("inf")), (4, 2.0)]}, x_label="x", y_label="y")
    assert len(list(parse(svg).iter(f"{SVG}circle"))) == 2
    assert "nan" not in svg
    assert "inf" not in svg


def test_lines_without_points_say_so() -> None:
    assert "nothing recorded" in lines({"a": []}, x_label="x", y_label="y")


def test_smoothing_keeps_the_raw_values_faint() -> None:
    noisy = [(float(i), float(i % 7)) for i in range(300)]
    assert by_class(lines({"a": noisy}, x_label="x", y_label="y", smooth=True), "line faint s0")
    assert not by_class(lines({"a": noisy}, x_label="x", y_label="y"), "line faint s0")


def test_log_x_leaves_out_zero() -> None:
    svg = lines({"a": [(0, 1), (1, 2), (10, 3), (1000, 4)]}, x_label="x", y_label="y", log_x=True)
    across = [float(e.get("cx", "")) for e in parse(svg).iter(f"{SVG}circle")]
    assert len(across) == 3
    assert (across[1] - across[0]) * 2 == pytest.approx(across[2] - across[1], abs=0.1)


def test_bars_are_as_long_as_their_values() -> None:
    svg = bars([("paris", 0.8), ("lyon", 0.4)])
    long, short = (float(element.get("width", "")) for element in by_class(svg, "bar"))
    assert long == pytest.approx(2 * short, abs=0.02)
    assert {"paris", "lyon", "80.0%", "40.0%"} <= set(words(svg))


def test_histogram_draws_every_bin() -> None:
    svg = histogram([0, 10, 20, 40], [1, 4, 2], x_label="tokens")
    low, high, middle = (float(element.get("height", "")) for element in by_class(svg, "bar"))
    assert low < middle < high
    assert [e.text for e in parse(svg).iter(f"{SVG}title")] == ["0 to 10: 1", "10 to 20: 4", "20 to 40: 2"]


def test_heatmap_shades_by_weight_and_speaks_chinese() -> None:
    svg = heatmap(["北", "京"], [[0.5, 0.25], [0.0, 1.0]])
    assert [float(e.get("fill-opacity", "")) for e in by_class(svg, "heat")] == [0.5, 0.25, 0.0, 1.0]
    assert words(svg).count("北") == 2
    assert "rotate" not in svg
    assert "rotate" in heatmap(["wonderful", "words"], np.eye(2))


def test_heatmap_takes_other_columns() -> None:
    svg = heatmap(["gold"], [[0.1, 0.9]], columns=["yes", "no"])
    assert {"gold", "yes", "no"} <= set(words(svg))


def test_small_heatmaps_cover_every_head_and_frame_one() -> None:
    svg = heatmaps(np.full((3, 4, 5, 5), 0.2).tolist(), row_label="layer", column_label="head", chosen=(1, 2))
    assert len(by_class(svg, "track")) == 12
    assert len(by_class(svg, "frame chosen")) == 1
    assert svg.count("M0 4h5v1h-5z") == 12


def test_words_stay_words() -> None:
    evil = '</text><script>alert("1")</script>\x00'
    for svg in (
        bars([(evil, 0.5)], width=2000),
        heatmap([evil], [[1.0]]),
        lines({evil: [(0, 1)], "b": [(0, 2)]}, x_label=evil, y_label=evil, references={evil: 1}),
        histogram([0, 1], [1], x_label=evil),
    ):
        assert "<script" not in svg
        assert any("<script>" in text for text in words(svg))


def test_same_numbers_same_text() -> None:
    def draw() -> str:
        return lines({"a": [(i, i**0.5) for i in range(1000)]}, x_label="x", y_label="y", smooth=True)

    assert draw() == draw()
    assert not re.search(r'\bid="', draw())
