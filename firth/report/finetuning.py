"""The figures of a fine-tuning run in, its one HTML page out."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firth.files import read_json
from firth.finetuning.collapse import collapsed_line
from firth.finetuning.figures import format_spread
from firth.report.calibration import calibration_parts
from firth.report.charts import bars, heatmap, lines
from firth.report.markup import Html
from firth.report.page import Section, figure, fold, grid, notice, page, section, table, tiles
from firth.report.page import verdict as verdict_box
from firth.train.journal import read_rows

MOST_LABELS = 24
"""A confusion matrix of more labels is shown as a table on request only."""

Rows = Sequence[Mapping[str, Any]]


def gather(run: Path) -> str:
    """The page of a finished run."""
    summary = read_json(run / "results.json")
    logs = {seed: read_rows(run / f"seed-{seed}" / "metrics.jsonl") for seed in summary["seeds"]}
    return render(summary, logs)


def render(summary: Mapping[str, Any], logs: Mapping[int, Rows]) -> str:
    sections: list[Section | None] = []
    for name, row in summary["tasks"].items():
        sections += _of_task(name, row, several=len(summary["tasks"]) > 1)
    sections += [_training(summary, logs), _provenance(summary)]
    return page(
        f"Fine-tuned: {', '.join(summary['tasks'])}",
        [made for made in sections if made],
        kind="firth · fine-tuning report",
        head=[verdict(summary), tiles(_facts(summary))],
    )


def verdict(summary: Mapping[str, Any]) -> Html:
    """Whether the model beats an answer that ignores the text, in one sentence."""
    said, good = [], True
    for name, row in summary["tasks"].items():
        part = "test" if "test" in row["figures"] else "dev"
        main, mean = row["main"], row["figures"][part][row["main"]]["mean"]
        baseline = _number(row["baseline"][part].get(main))
        good = good and _number(mean) > baseline
        than = "better" if _number(mean) > baseline else "no better"
        value = format_spread(row["figures"][part][main])
        said.append(f"{name}: {main} {value} on {_part(row, part)}, {than} than {baseline:.4f}")
    remarks = ["That is what someone who never reads the texts would score."]
    if len(summary["seeds"]) == 1:
        remarks.append("One seed was run, so no deviation is known: a small difference between two runs means nothing.")
    if all("test" not in row["figures"] for row in summary["tasks"].values()):
        remarks.append(
            "The figure comes from the rows that epochs and seeds were picked on; a test file would be fairer."
        )
    return verdict_box(f"{'; '.join(said)}.", remarks, good=good)


def _facts(summary: Mapping[str, Any]) -> dict[str, Any]:
    rows = {f"{part} rows": count for row in summary["tasks"].values() for part, count in row["rows"].items()}
    start = f"{summary['model']}, random weights" if summary["random"] and summary["model"] != "random weights" else ""
    return {
        "Started from": start or summary["model"],
        "Seeds": len(summary["seeds"]),
        "Kept": f"seed {summary['kept_seed']}, epoch {summary['kept_epoch']:.3g}",
        **rows,
    }


def _of_task(name: str, row: Mapping[str, Any], *, several: bool) -> list[Section]:
    title = f"{name}: " if several else ""
    collapsed = collapsed_line(name, row.get("collapsed_seeds", []))
    mark = " *" if collapsed else ""
    cells = [
        [_part(row, part), figure_name, format_spread(value) + mark, _number(row["baseline"][part].get(figure_name))]
        for part, values in row["figures"].items()
        for figure_name, value in values.items()
    ]
    sections = [section(f"{title}Figures", table(["rows", "figure", "value", "majority baseline"], cells))]
    if skipped := sum(row["skipped"].values()):
        sections[0] = section(sections[0].heading, *sections[0].parts, notice(f"{skipped} bad rows were skipped."))
    if collapsed:
        sections[0] = section(sections[0].heading, *sections[0].parts, notice(f"* {collapsed}"))
    if details := _labels(row):
        sections.append(section(f"{title}Labels", *details))
    if "calibration" in row:
        sections.append(section(f"{title}Calibration", *calibration_parts(row["calibration"], row["picked_on"])))
    if row["mistakes"]:
        rows = [[m["text"], m["gold"], m["predicted"], m["error"], m["row"]] for m in row["mistakes"]]
        lead = f"The mistakes on {_part(row, row['details_of'])} that the model was surest of."
        sections.append(
            section(f"{title}Hardest errors", lead, table(["text", "gold", "predicted", "error", "row"], rows))
        )
    return sections


def _labels(row: Mapping[str, Any]) -> list[str]:
    parts: list[str] = []
    if per_label := row.get("per_label"):
        parts.append(figure(bars([(label, f1) for label, _, _, f1, _ in per_label]), "F1 of each label."))
        parts.append(fold("Precision and recall", table(["label", "precision", "recall", "F1", "rows"], per_label)))
    if confusion := row.get("confusion"):
        labels, counts = confusion["labels"], confusion["counts"]
        cells = table(["gold \\ predicted", *labels], [[n, *c] for n, c in zip(labels, counts, strict=True)])
        if len(labels) <= MOST_LABELS:
            shares = [[cell / max(sum(line), 1) for cell in line] for line in counts]
            caption = "Each row is a gold label; the columns are what the model said of its examples."
            parts.append(figure(heatmap(labels, shares), caption, roll=True))
        parts.append(fold("The confusion matrix in numbers", cells))
    return parts


def _training(summary: Mapping[str, Any], logs: Mapping[int, Rows]) -> Section | None:
    losses = {
        f"seed {seed}": [
            (r["step"], sum(_number(r.get(name)) for name in summary["tasks"])) for r in rows if _is(r, "train")
        ]
        for seed, rows in list(logs.items())[:6]
    }
    picked = {
        f"seed {seed}": [(r["step"], _number(r.get("picked"))) for r in rows if _is(r, "held-out")]
        for seed, rows in list(logs.items())[:6]
    }
    if not any(losses.values()):
        return None
    charts = [
        figure(lines(losses, x_label="step", y_label="Training loss", smooth=len(losses) == 1)),
        figure(lines(picked, x_label="step", y_label="Figure that epochs are picked on")),
    ]
    return section("Training", grid(*charts))


def _provenance(summary: Mapping[str, Any]) -> Section:
    rows = [[name, part, digest] for name, row in summary["tasks"].items() for part, digest in row["data"].items()]
    return section("Data", table(["task", "file", "sha256"], rows))


def _is(row: Mapping[str, Any], split: str) -> bool:
    return row.get("split") == split


def _part(row: Mapping[str, Any], part: str) -> str:
    return f"{row['picked_on']} (used for picking)" if part == "dev" else f"{part} (not used for picking)"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not math.isnan(value) else 0.0
