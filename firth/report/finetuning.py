"""The figures of a fine-tuning run in, its one HTML page out."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from firth.console import counted
from firth.files import read_json
from firth.finetuning.collapse import collapsed_line
from firth.finetuning.figures import FinetuningSummary, TaskSummary, format_spread
from firth.report.axes import Points
from firth.report.charts import bars, lines
from firth.report.heatmaps import heatmap
from firth.report.judgement import MetricsRow
from firth.report.markup import Html
from firth.report.page import Section, figure, fold, grid, notice, page, section, table, tiles
from firth.report.page import verdict as verdict_box
from firth.report.reliability import calibration_parts
from firth.tasks.task import Confusion
from firth.train.journal import read_rows

MOST_LABELS = 24
"""A confusion matrix of more labels is shown as a table on request only."""
MOST_CURVES = 6
"""Seeds whose curves are drawn."""

Logs = Mapping[int, Sequence[MetricsRow]]
"""The rows of each seed's metrics.jsonl."""


def gather(run: Path) -> str:
    """The page of a finished run."""
    summary: FinetuningSummary = read_json(run / "results.json")
    logs = {seed: read_rows(run / f"seed-{seed}" / "metrics.jsonl") for seed in summary["seeds"]}
    return render(summary, logs)


def render(summary: FinetuningSummary, logs: Logs) -> str:
    sections: list[Section] = []
    has_several = len(summary["tasks"]) > 1
    for name, task in summary["tasks"].items():
        title = f"{name}: " if has_several else ""
        sections += _task_sections(name, task, title)
    training = _training(summary, logs)
    if training is not None:
        sections.append(training)
    sections.append(_provenance(summary))
    return page(
        f"Fine-tuned: {', '.join(summary['tasks'])}",
        sections,
        kind="firth · fine-tuning report",
        head=[verdict(summary), tiles(_facts(summary))],
    )


def verdict(summary: FinetuningSummary) -> Html:
    """Whether the model beats an answer that ignores the text, in one sentence."""
    statements = []
    all_better = True
    for name, task in summary["tasks"].items():
        part = "test" if "test" in task["figures"] else "dev"
        main = task["main"]
        spread = task["figures"][part][main]
        baseline = _number(task["baseline"][part].get(main))
        is_better = _number(spread["mean"]) > baseline
        all_better = all_better and is_better
        than = "better" if is_better else "no better"
        where = _part_name(task, part)
        measured = f"{main} {format_spread(spread)} on {where}"
        statements.append(f"{name}: {measured}, {than} than {baseline:.4f}")
    remarks = ["That is what someone who never reads the texts would score."]
    if len(summary["seeds"]) == 1:
        remarks.append("One seed was run, so no deviation is known: a small difference between two runs means nothing.")
    has_test = any("test" in task["figures"] for task in summary["tasks"].values())
    if not has_test:
        remarks.append(
            "The figure comes from the rows that epochs and seeds were picked on; a test file would be fairer."
        )
    return verdict_box(f"{'; '.join(statements)}.", remarks, good=all_better)


def _facts(summary: FinetuningSummary) -> dict[str, object]:
    """The key facts at the top of the page."""
    model = summary["model"]
    if summary["random"] and model != "random weights":
        model = f"{model}, random weights"
    facts: dict[str, object] = {
        "Started from": model,
        "Seeds": len(summary["seeds"]),
        "Kept": f"seed {summary['kept_seed']}, epoch {summary['kept_epoch']:.3g}",
    }
    has_several = len(summary["tasks"]) > 1
    for name, task in summary["tasks"].items():
        prefix = f"{name}, " if has_several else ""
        for part, count in task["rows"].items():
            facts[f"{prefix}{part} rows"] = count
    return facts


def _task_sections(name: str, task: TaskSummary, title: str) -> list[Section]:
    """All sections about one task; `title` is the beginning of their headings."""
    sections = [_figures(name, task, title)]
    labels = _labels(task)
    if labels:
        sections.append(section(f"{title}Labels", *labels))
    if "calibration" in task:
        parts = calibration_parts(task["calibration"], task["picked_on"])
        sections.append(section(f"{title}Calibration", *parts))
    if task["mistakes"]:
        sections.append(_mistakes(task, title))
    return sections


def _figures(name: str, task: TaskSummary, title: str) -> Section:
    """All figures next to those of the baseline, with notes."""
    collapsed = collapsed_line(name, task.get("collapsed_seeds", []))
    mark = " *" if collapsed else ""
    rows = []
    for part, figures in task["figures"].items():
        for figure_name, spread in figures.items():
            baseline = _number(task["baseline"][part].get(figure_name))
            value = format_spread(spread) + mark
            rows.append([_part_name(task, part), figure_name, value, baseline])
    parts = [table(["rows", "figure", "value", "majority baseline"], rows)]
    num_skipped = sum(task["skipped"].values())
    if num_skipped:
        was = "was" if num_skipped == 1 else "were"
        parts.append(notice(f"{counted(num_skipped, 'bad row')} {was} skipped."))
    if collapsed:
        parts.append(notice(f"* {collapsed}"))
    return section(f"{title}Figures", *parts)


def _labels(task: TaskSummary) -> list[Html]:
    """How good each label is, and which labels are mistaken for which."""
    parts: list[Html] = []
    per_label = task.get("per_label")
    if per_label:
        f1_of_labels: list[tuple[str, float]] = []
        for label, _, _, f1, _ in per_label:
            f1_of_labels.append((str(label), float(f1)))
        parts.append(figure(bars(f1_of_labels), "F1 of each label."))
        figures = table(["label", "precision", "recall", "F1", "rows"], per_label)
        parts.append(fold("Precision and recall", figures))
    confusion = task.get("confusion")
    if confusion:
        parts += _confusion(confusion)
    return parts


def _confusion(confusion: Confusion) -> list[Html]:
    """The confusion matrix: as a picture if it has few labels, and in numbers."""
    labels = confusion["labels"]
    parts = []
    rows: list[list[object]] = []
    shares = []
    for label, counts in zip(labels, confusion["counts"], strict=True):
        rows.append([label, *counts])
        total = max(sum(counts), 1)
        shares.append([count / total for count in counts])
    if len(labels) <= MOST_LABELS:
        caption = "Each row is a gold label; the columns are what the model said of its examples."
        parts.append(figure(heatmap(labels, shares), caption, roll=True))
    counts_table = table(["gold \\ predicted", *labels], rows)
    parts.append(fold("The confusion matrix in numbers", counts_table))
    return parts


def _mistakes(task: TaskSummary, title: str) -> Section:
    columns = ("text", "gold", "predicted", "error", "row")
    rows = []
    for mistake in task["mistakes"]:
        texts = (mistake["text"], mistake["gold"], mistake["predicted"])
        rows.append([*texts, mistake["error"], mistake["row"]])
    where = _part_name(task, task["details_of"])
    lead = f"The mistakes on {where} in which the model was most confident."
    return section(f"{title}Hardest errors", lead, table(columns, rows))


def _training(summary: FinetuningSummary, logs: Logs) -> Section | None:
    """The curves of the first seeds."""
    losses: dict[str, Points] = {}
    picked: dict[str, Points] = {}
    for seed, rows in list(logs.items())[:MOST_CURVES]:
        loss_curve: list[tuple[float, float]] = []
        picked_curve: list[tuple[float, float]] = []
        for row in rows:
            split = row.get("split")
            step = _number(row["step"])
            if split == "train":
                loss_curve.append((step, _total_loss(row, summary)))
            elif split == "held-out":
                picked_curve.append((step, _or_nan(row.get("picked"))))
        losses[f"seed {seed}"] = loss_curve
        picked[f"seed {seed}"] = picked_curve
    if not any(losses.values()):
        return None
    charts = [
        figure(lines(losses, x_label="step", y_label="Training loss", smooth=len(losses) == 1)),
        figure(lines(picked, x_label="step", y_label="Figure that epochs are picked on")),
    ]
    return section("Training", grid(*charts))


def _total_loss(row: MetricsRow, summary: FinetuningSummary) -> float:
    """The losses of the row's tasks added, each logged by its task's name; NaN if one is undefined."""
    return sum(_or_nan(row[name]) for name in summary["tasks"] if name in row)


def _provenance(summary: FinetuningSummary) -> Section:
    rows = []
    for name, task in summary["tasks"].items():
        for part, digest in task["data"].items():
            rows.append([name, part, digest])
    return section("Data", table(["task", "file", "sha256"], rows))


def _part_name(task: TaskSummary, part: str) -> str:
    """What a part of the rows is called, with what it was used for."""
    if part == "dev":
        return f"{task['picked_on']} (used for picking)"
    return f"{part} (not used for picking)"


def _or_nan(value: object) -> float:
    """The value, or NaN if it is undefined: a chart leaves NaN out, where a 0 would be drawn."""
    if isinstance(value, int | float):
        return float(value)
    return math.nan


def _number(value: object) -> float:
    """The value, or 0 if it is undefined or no number."""
    if isinstance(value, int | float) and not math.isnan(value):
        return float(value)
    return 0.0
