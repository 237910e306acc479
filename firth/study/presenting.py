"""Rows -> a page: the verdicts, the pictures, a table with intervals, and what failed, as HTML and as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from firth.report.markup import Html, join
from firth.report.page import Section, figure, page, section, table
from firth.study.design import Study
from firth.study.intervals import LEVEL, Interval
from firth.study.pictures import Mean, means, pictures
from firth.study.running import Score
from firth.study.verdicts import Test, doubts, judge, verdict

NOTE = {
    "en": f"Mean over the seeds and its {1 - LEVEL:.0%} interval (Student's t), in hundredths. Differences of a claim "
    "are paired by seed, and the claims of the study are corrected together (Holm).",
    "zh": f"各随机种子的平均及其 {1 - LEVEL:.0%} 区间（t 分布），单位为百分之一。每个论断的差按种子配对，"
    "整个研究的论断一起做 Holm 校正。",
}
UNDECIDED = {"en": "What is not decided, and why", "zh": "哪些未定，为什么"}
SYSTEMS = "Systems · 系统"


@dataclass(frozen=True)
class Made:
    """How the rows of a study were made."""

    command: str
    machine: str
    software: str
    date: str

    def sentence(self) -> str:
        return f"`{self.command}`, {self.machine}, {self.software}, {self.date}."


def as_html(study: Study, rows: Sequence[Score], *, made: Made) -> str:
    """The page as one file."""
    shown = [figure(picture.svg, heading=picture.heading) for picture in pictures(study, rows)]
    sections = [
        section("Question", study.question["en"], study.design["en"]),
        section("Verdicts", *verdicts(study, rows, "en")),
        section(UNDECIDED["en"], *_doubts(study, rows, "en")),
        section("摘要", study.question["zh"], study.design["zh"], *verdicts(study, rows, "zh")),
        section(UNDECIDED["zh"], *_doubts(study, rows, "zh")),
        Section("Figures", tuple(shown)),
        section("Table", _table(study, rows), NOTE["en"], NOTE["zh"]),
    ]
    systems = _systems(study, rows)
    if systems:
        sections.append(section(SYSTEMS, *systems))
    failures = _failures(rows)
    if failures:
        sections.append(section("Failed", *failures))
    sections.append(section("How it was made", made.sentence()))
    return page(f"Study: {study.name}", sections, kind="firth study")


def as_markdown(study: Study, rows: Sequence[Score], *, made: Made) -> str:
    """The same page, whose pictures are files beside it."""
    parts = [f"# {study.name}", study.question["en"], study.design["en"], "## Verdicts"]
    parts.append(_listed(verdicts(study, rows, "en")))
    parts += [f"### {UNDECIDED['en']}", _listed(_doubts(study, rows, "en"))]
    parts += ["## 摘要", study.question["zh"], study.design["zh"], _listed(verdicts(study, rows, "zh"))]
    parts += [f"### {UNDECIDED['zh']}", _listed(_doubts(study, rows, "zh"))]
    parts.append("## Figures")
    for picture in pictures(study, rows):
        parts += [f"**{picture.heading}**", f"![{picture.heading}]({picture.file_name})"]
    parts += ["## Table", _markdown_table(study, rows), NOTE["en"], NOTE["zh"]]
    systems = _systems(study, rows)
    if systems:
        parts += [f"## {SYSTEMS}", _listed(systems)]
    failures = _failures(rows)
    if failures:
        parts += ["## Failed", _listed(failures)]
    parts += ["## How it was made", f"{made.sentence()} The rows are in [rows.jsonl](rows.jsonl)."]
    return "\n\n".join(parts) + "\n"


def verdicts(study: Study, rows: Sequence[Score], language: str) -> list[str]:
    """A sentence for each claim that is about the sets of these rows."""
    tests: Sequence[Test] = judge(study, rows)
    datasets = {row.dataset for row in rows}
    sentences = []
    for claim in study.claims:
        # A claim without sets is about all of them.
        if not claim.datasets or datasets.intersection(claim.datasets):
            sentences.append(verdict(claim, tests, language))
    return sentences


def _doubts(study: Study, rows: Sequence[Score], language: str) -> list[str]:
    return doubts(study, judge(study, rows), language)


def _systems(study: Study, rows: Sequence[Score]) -> list[str]:
    """What the systems of these rows are, in both languages."""
    shown = {row.system for row in rows}
    described = []
    for name, texts in study.systems.items():
        if name in shown:
            described.append(f"{name}: {texts['en']} · {texts['zh']}")
    return described


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _cells(study: Study, found: Sequence[Mean]) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of the table: a line for each system and place, a column for each set."""
    datasets = sorted({mean.dataset for mean in found})
    has_axis = any(mean.x is not None for mean in found)
    header = ["system"]
    if has_axis:
        header.append(study.x_label)
    header += [*datasets, "seeds"]
    # Systems in the order of the rows, each with its places from low to high.
    by_system: dict[str, dict[float, dict[str, Interval]]] = {}
    for mean in found:
        places = by_system.setdefault(mean.system, {})
        places.setdefault(mean.x or 0.0, {})[mean.dataset] = mean.interval
    table_rows = []
    for system, places in by_system.items():
        for x, intervals in sorted(places.items()):
            line = [system]
            if has_axis:
                line.append(f"{x:g}")
            for dataset in datasets:
                line.append(_written(intervals.get(dataset)))
            line.append(_counted([interval.count for interval in intervals.values()]))
            table_rows.append(line)
    return header, table_rows


def _counted(counts: Sequence[int]) -> str:
    """How many seeds the sets have: `5`, or `3–5` if they differ."""
    fewest = min(counts)
    most = max(counts)
    return str(fewest) if fewest == most else f"{fewest}–{most}"


def _written(interval: Interval | None) -> str:
    if interval is None:
        return "–"
    mean = 100 * interval.mean
    if not interval.is_known:
        return f"{mean:.1f}"
    half = 100 * (interval.high - interval.low) / 2
    return f"{mean:.1f} ± {half:.1f}"


def _table(study: Study, rows: Sequence[Score]) -> Html:
    header, table_rows = _cells(study, means(rows))
    return join(table(header, table_rows))


def _markdown_table(study: Study, rows: Sequence[Score]) -> str:
    header, table_rows = _cells(study, means(rows))
    separator = ["---"] * len(header)
    lines = []
    for cells in (header, separator, *table_rows):
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _failures(rows: Sequence[Score]) -> list[str]:
    """The runs that failed, each with its error message."""
    failures = []
    for row in rows:
        if row.failed:
            failures.append(f"{row.system}, {row.dataset}, seed {row.seed}: {row.failed}")
    return failures
