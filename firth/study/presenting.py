"""Rows -> a page: the verdicts, a picture, a table with intervals, and what failed, as HTML and as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from firth.report.charts import lines
from firth.report.dots import Dot, dots
from firth.report.markup import Html, join
from firth.report.page import Section, figure, page, section, table
from firth.study.design import Study
from firth.study.intervals import LEVEL, Interval, mean_interval
from firth.study.running import Score
from firth.study.verdicts import Test, judge, verdict

NOTE = {
    "en": f"Mean over the seeds and its {1 - LEVEL:.0%} interval (Student's t). Differences of a claim are paired by "
    "seed, and the claims of the study are corrected together (Holm).",
    "zh": f"各随机种子的平均及其 {1 - LEVEL:.0%} 区间（t 分布）。每个论断的差按种子配对，"
    "整个研究的论断一起做 Holm 校正。",
}


@dataclass(frozen=True)
class Mean:
    """The scores of a system on a set."""

    system: str
    dataset: str
    x: float | None
    figure: str
    interval: Interval


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
        name = own[0].figure.rstrip("0123456789").rstrip("_")
        found.append(Mean(system, dataset, x, name, mean_interval(scores)))
    return found


def as_html(study: Study, rows: Sequence[Score], *, made: str) -> str:
    """The page; `made` says how, on what and when the rows were made."""
    tests = judge(study, rows)
    found = means(rows)
    sections = [
        section("Question", study.question["en"], study.question["zh"], study.design["en"], study.design["zh"]),
        section("Verdicts", *_verdicts(study, tests)),
        Section("Figures", tuple(_pictures(study, found))),
        section("Table", _table(study, found), NOTE["en"], NOTE["zh"]),
    ]
    failures = _failures(rows)
    if failures:
        sections.append(section("Failed", *failures))
    sections.append(section("How it was made", made))
    return page(f"Study: {study.name}", sections, kind="firth study")


def as_markdown(study: Study, rows: Sequence[Score], *, made: str) -> str:
    """The same page without pictures, for the documentation."""
    tests = judge(study, rows)
    found = means(rows)
    parts = [f"# {study.name}", study.question["en"], study.question["zh"], study.design["en"], study.design["zh"]]
    parts.append("## Verdicts")
    parts.append("\n".join(f"- {sentence}" for sentence in _verdicts(study, tests)))
    parts.append("## Table")
    parts.append(_markdown_table(study, found))
    parts += [NOTE["en"], NOTE["zh"]]
    failures = _failures(rows)
    if failures:
        parts.append("## Failed")
        parts.append("\n".join(f"- {line}" for line in failures))
    parts += ["## How it was made", made]
    return "\n\n".join(parts) + "\n"


def _verdicts(study: Study, tests: Sequence[Test]) -> list[str]:
    """Each claim's sentence in both languages."""
    sentences = []
    for claim in study.claims:
        sentences.append(verdict(claim, tests))
        sentences.append(verdict(claim, tests, "zh"))
    return sentences


def _pictures(study: Study, found: Sequence[Mean]) -> list[Html]:
    """One chart for each set: curves over the axis of the study, or dots."""
    pictures = []
    for dataset in sorted({mean.dataset for mean in found}):
        own = [mean for mean in found if mean.dataset == dataset]
        name = own[0].figure
        if study.x_label:
            series: dict[str, list[tuple[float, float]]] = {}
            for mean in sorted(own, key=lambda mean: mean.x or 0.0):
                series.setdefault(mean.system, []).append((mean.x or 0.0, mean.interval.mean))
            picture = lines(series, x_label=study.x_label, y_label=name)
        else:
            ranked = sorted(own, key=lambda mean: -mean.interval.mean)
            picture = dots([Dot(m.system, m.interval.mean, m.interval.low, m.interval.high) for m in ranked])
        pictures.append(figure(picture, heading=f"{dataset}: {name}"))
    return pictures


def _cells(study: Study, found: Sequence[Mean]) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of the table: a line for each system and place, a column for each set."""
    datasets = sorted({mean.dataset for mean in found})
    header = ["system", *([study.x_label] if study.x_label else []), *datasets, "seeds"]
    by_line: dict[tuple[str, float | None], dict[str, Interval]] = {}
    for mean in found:
        by_line.setdefault((mean.system, mean.x), {})[mean.dataset] = mean.interval
    table_rows = []
    for (system, x), intervals in by_line.items():
        line = [system]
        if study.x_label:
            line.append(f"{x:g}" if x is not None else "")
        for dataset in datasets:
            line.append(_written(intervals.get(dataset)))
        line.append(str(max(interval.count for interval in intervals.values())))
        table_rows.append(line)
    return header, table_rows


def _written(interval: Interval | None) -> str:
    if interval is None:
        return "–"
    if not interval.is_known:
        return f"{100 * interval.mean:.1f}"
    return f"{100 * interval.mean:.1f} ± {100 * (interval.high - interval.low) / 2:.1f}"


def _table(study: Study, found: Sequence[Mean]) -> Html:
    header, table_rows = _cells(study, found)
    return join(table(header, table_rows))


def _markdown_table(study: Study, found: Sequence[Mean]) -> str:
    header, table_rows = _cells(study, found)
    written = [header, ["---"] * len(header), *table_rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in written)


def _failures(rows: Sequence[Score]) -> list[str]:
    return [f"{row.system}, {row.dataset}, seed {row.seed}: {row.failed}" for row in rows if row.failed]
