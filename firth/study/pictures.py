"""Rows -> pictures: curves over the study's axis, dots with intervals, or points on a plane, by the report's charts."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from firth.report.charts import Range, lines
from firth.report.dots import Dot, dots
from firth.report.markup import Html, tag
from firth.report.points import points
from firth.report.style import CHARTS, COLOURS
from firth.study.design import Study
from firth.study.intervals import Interval, mean_interval
from firth.study.running import Score


@dataclass(frozen=True)
class Mean:
    """The scores of a system on a set."""

    system: str
    dataset: str
    x: float | None
    figure: str
    interval: Interval


@dataclass(frozen=True)
class Picture:
    """A chart, its heading and the name of its file."""

    heading: str
    svg: Html

    @property
    def file_name(self) -> str:
        words = re.sub(r"\W+", "-", self.heading.lower())
        return f"{words.strip('-')}.svg"

    def standalone(self) -> str:
        """The chart as a separate file: on white, with the colours of the light theme."""
        inside = tag("style", Html(_bright_charts())) + tag("rect", width="100%", height="100%", fill="#ffffff")
        return self.svg.replace(">", f">{inside}", 1) + "\n"


def _bright_charts() -> str:
    """The stylesheet of charts with values in place of CSS variables, which not every program supports."""
    bright, _, _ = COLOURS.partition("@media")
    values = dict(re.findall(r"--([\w-]+):\s*([^;]+);", bright))
    return re.sub(r"var\(--([\w-]+)\)", lambda found: values[found[1]], CHARTS)


def means(rows: Sequence[Score]) -> list[Mean]:
    """One entry for each system, set and place on the axis, in the order of the rows."""
    grouped: dict[tuple[str, str, float | None], list[Score]] = {}
    for row in rows:
        if row.score is not None:
            grouped.setdefault((row.system, row.dataset, row.x), []).append(row)
    found = []
    for (system, dataset, x), own in grouped.items():
        scores = [row.score for row in own if row.score is not None]
        # spearman_1 is spearman on the first part.
        name = re.sub(r"_\d+$", "", own[0].figure)
        found.append(Mean(system, dataset, x, name, mean_interval(scores)))
    return found


def pictures(study: Study, rows: Sequence[Score]) -> list[Picture]:
    """The pictures of a study."""
    found = means(rows)
    datasets = sorted({mean.dataset for mean in found})
    systems = sorted({mean.system for mean in found})
    if study.against:
        return [_plane(study, dataset, rows) for dataset in datasets]
    if study.x_label:
        return [_curves(study, dataset, found) for dataset in datasets]
    if len(datasets) > len(systems):
        # Many sets and few systems: a picture for each system is easier to read.
        shown = []
        for system in systems:
            own = [mean for mean in found if mean.system == system]
            shown.append(_dots(study, system, own))
        return shown
    spreads = _spreads(study, rows)
    shown = []
    for dataset in datasets:
        own = [mean for mean in found if mean.dataset == dataset]
        shown.append(spreads.get(dataset) or _dots(study, dataset, own))
    return shown


def _curves(study: Study, dataset: str, found: Sequence[Mean]) -> Picture:
    series: dict[str, list[tuple[float, float]]] = {}
    ranges: dict[str, list[Range]] = {}
    own = [mean for mean in found if mean.dataset == dataset]
    for mean in sorted(own, key=lambda mean: mean.x or 0.0):
        place = mean.x or 0.0
        series.setdefault(mean.system, []).append((place, mean.interval.mean))
        if mean.interval.is_known:
            ranges.setdefault(mean.system, []).append((place, mean.interval.low, mean.interval.high))
    name = study.score or own[0].figure
    chart = lines(series, x_label=study.x_label, y_label=name, ranges=ranges, log_x=study.log_x, width=520, height=330)
    return Picture(f"{dataset}: {name}", chart)


def _dots(study: Study, title: str, own: Sequence[Mean]) -> Picture:
    """A dot for each mean, the best first; it has the name that the title does not say."""
    name = study.score or own[0].figure
    is_one_set = len({mean.dataset for mean in own}) == 1
    lowest, highest = _frame(own)
    shown = []
    for mean in sorted(own, key=lambda mean: -mean.interval.mean):
        label = mean.system if is_one_set else mean.dataset
        low = mean.interval.low
        high = mean.interval.high
        if _is_wide(mean) and (low < lowest or high > highest):
            label += " (range cut)"
            low = max(low, lowest)
            high = min(high, highest)
        shown.append(Dot(label, mean.interval.mean, low, high))
    return Picture(f"{title}: {name}", dots(shown))


def _is_wide(mean: Mean) -> bool:
    """Whether its range is that of two seeds, 12.7 standard errors on either side, which would flatten the others."""
    return mean.interval.count == 2


def _frame(own: Sequence[Mean]) -> tuple[float, float]:
    """The lowest and the highest of all means and of the ranges that are not very wide."""
    ends = [mean.interval.mean for mean in own]
    for mean in own:
        if mean.interval.is_known and not _is_wide(mean):
            ends += [mean.interval.low, mean.interval.high]
    if all(_is_wide(mean) for mean in own):
        return -math.inf, math.inf
    return min(ends), max(ends)


def _spreads(study: Study, rows: Sequence[Score]) -> dict[str, Picture]:
    """For each set whose rows have the figures of a spread: a dot at the middle, a line from low to high."""
    by_dataset: dict[str, dict[str, Dot]] = {}
    for row in rows:
        if study.spread and set(study.spread) <= row.figures.keys():
            low, middle, high = (row.figures[name] for name in study.spread)
            by_dataset.setdefault(row.dataset, {})[row.system] = Dot(row.system, middle, low, high)
    found = {}
    for dataset, own in by_dataset.items():
        ranked = sorted(own.values(), key=lambda dot: -dot.mean)
        found[dataset] = Picture(f"{dataset}: 5th, 50th and 95th percentile", dots(ranked))
    return found


def _plane(study: Study, dataset: str, rows: Sequence[Score]) -> Picture:
    """A point for each system: the means of its score and of the figure that the study draws it against."""
    collected: dict[str, list[tuple[float, float]]] = {}
    reference = ""
    figure = ""
    for row in rows:
        if row.dataset != dataset or row.score is None:
            continue
        figure = row.figure
        if study.against not in row.figures:
            # The system that the others are a multiple of has no such figure.
            reference = row.system
        against = row.figures.get(study.against, 1.0)
        collected.setdefault(row.system, []).append((against, row.score))
    named = {}
    for system, places in collected.items():
        across = sum(x for x, _ in places) / len(places)
        up = sum(y for _, y in places) / len(places)
        named[system] = (across, up)
    name = study.score or figure
    chart = points(named, x_label=study.x_label or study.against, y_label=name, reference=reference)
    return Picture(f"{dataset}: {name}", chart)
