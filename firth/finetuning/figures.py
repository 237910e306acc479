"""What the seeds of a fine-tuning run found -> one summary: figures, baseline, mistakes, and the model card."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np

from firth.checkpoint import Checkpoint, described
from firth.console import counted
from firth.finetuning.collapse import CollapsedSeed, collapsed_line
from firth.finetuning.labelled import HELD_OUT, Labelled
from firth.finetuning.picking import PICKED, Figures, SeedResult
from firth.run_source import FinetuningSource
from firth.tasks import scorer_of
from firth.tasks.calibration import CalibrationSummary, is_calibrated, summarise_calibration
from firth.tasks.task import Confusion, Head, Scorer
from firth.tensors import parameter_count
from firth.types import Example, Prediction

MISTAKES = 20
"""Mistakes that a summary lists."""
CARD_MISTAKES = 10
"""Mistakes that a model card shows."""
SHOWN = 160
"""Characters of a text in a table."""

Predictions = Mapping[str, Mapping[str, Sequence[Prediction]]]
"""By part and task."""


class Spread(TypedDict):
    """A figure over the seeds."""

    mean: float | None
    """None if the figure is undefined."""
    deviation: float | None
    """Standard deviation; None with one seed, or if the figure is undefined."""


class Mistake(TypedDict):
    row: int
    text: str
    gold: str
    predicted: str
    error: float
    """How wrong the prediction is, above 0."""


class TaskSummary(TypedDict):
    """The figures of one task."""

    main: str
    """The figure that epochs are picked by."""
    picked_on: str
    """What the rows for picking are called."""
    figures: dict[str, dict[str, Spread]]
    """By part and name."""
    by_seed: dict[str, list[Figures]]
    collapsed_seeds: NotRequired[list[CollapsedSeed]]
    baseline: dict[str, dict[str, float]]
    """Figures of an answer that ignores the texts, by part."""
    rows: dict[str, int]
    skipped: dict[str, int]
    details_of: str
    """The part that details and mistakes come from."""
    confusion: NotRequired[Confusion]
    per_label: NotRequired[list[list[str | float]]]
    mistakes: list[Mistake]
    calibration: NotRequired[CalibrationSummary]
    """How far the probabilities can be trusted, of a classifier with one label column that had rows to tell."""
    data: dict[str, str]
    """The sha256 of each file."""


class FinetuningSummary(TypedDict):
    """All figures of a run, as plain JSON values: what results.json holds."""

    model: str
    random: bool
    """Whether it started from random weights."""
    seeds: list[int]
    kept_seed: int
    kept_epoch: float
    tasks: dict[str, TaskSummary]


def summarise(
    data: Mapping[str, Labelled],
    heads: Mapping[str, Head],
    results: Sequence[SeedResult],
    best: SeedResult,
    *,
    predictions: Predictions,
    source: FinetuningSource,
    temperatures: Mapping[str, float],
) -> FinetuningSummary:
    """The summary of a run; `predictions` are those of the kept model, whose scores have these `temperatures`.

    A task without a temperature was not calibrated.
    """
    tasks: dict[str, TaskSummary] = {}
    for name, head in heads.items():
        hashes = {part: file.sha256 for part, file in source.files[name].items()}
        tasks[name] = _task_summary(name, data[name], head, results, predictions=predictions, hashes=hashes)
        own = {part: found[name] for part, found in predictions.items() if name in found}
        if name in temperatures and is_calibrated(own["dev"], data[name].examples["dev"]):
            tasks[name]["calibration"] = summarise_calibration(
                own,
                data[name].examples,
                temperature=temperatures[name],
                shown=tasks[name]["details_of"],
            )
    return FinetuningSummary(
        model=Path(source.model).name or "random weights",
        random=source.random,
        seeds=[result.seed for result in results],
        kept_seed=best.seed,
        kept_epoch=best.epochs,
        tasks=tasks,
    )


def _task_summary(
    name: str,
    data: Labelled,
    head: Head,
    results: Sequence[SeedResult],
    *,
    predictions: Predictions,
    hashes: dict[str, str],
) -> TaskSummary:
    # Details and mistakes come from the fairest rows there are.
    scorer = scorer_of(head)
    by_seed = _figures_by_seed(name, results)
    shown = "test" if "test" in by_seed else "dev"
    examples = data.examples
    baselines: dict[str, dict[str, float]] = {}
    for part in by_seed:
        answers = scorer.baseline(examples["train"], examples[part])
        baselines[part] = scorer.score(answers, examples[part])
    return {
        "main": scorer.main_metric,
        "picked_on": data.picked_on,
        "figures": {part: _spreads(figures) for part, figures in by_seed.items()},
        "by_seed": by_seed,
        "collapsed_seeds": _collapsed_seeds(name, results),
        "baseline": baselines,
        "rows": {part: len(rows) for part, rows in examples.items()},
        "skipped": data.num_skipped,
        "details_of": shown,
        **scorer.details(predictions[shown][name], examples[shown]),
        "mistakes": _mistakes(scorer, predictions[shown][name], examples[shown]),
        "data": hashes,
    }


def _figures_by_seed(name: str, results: Sequence[SeedResult]) -> dict[str, list[Figures]]:
    """A task's figures for each seed, by part. With several tasks, the dev figures have the task's name before them."""
    has_several_tasks = len(results[0].configs) > 1
    prefix = f"{name}_" if has_several_tasks else ""
    dev: list[Figures] = []
    for result in results:
        own = {}
        for figure, value in result.figures.items():
            if figure != PICKED and figure.startswith(prefix):
                own[figure.removeprefix(prefix)] = value
        dev.append(own)
    by_seed = {"dev": dev}
    if name in results[0].test:
        by_seed["test"] = [result.test[name] for result in results]
    return by_seed


def _collapsed_seeds(name: str, results: Sequence[SeedResult]) -> list[CollapsedSeed]:
    """Which seeds collapsed in a task, with the answer they give."""
    seeds: list[CollapsedSeed] = []
    for result in results:
        if name in result.collapsed:
            seeds.append(CollapsedSeed(seed=result.seed, answer=result.collapsed[name]))
    return seeds


def _spreads(figures: Sequence[Figures]) -> dict[str, Spread]:
    """Mean and standard deviation over the seeds; with one seed no deviation is known."""
    spreads: dict[str, Spread] = {}
    for name in figures[0]:
        # An undefined figure is None and becomes NaN.
        values = np.array([row[name] for row in figures], float)
        mean = float(values.mean())
        if math.isnan(mean):
            spreads[name] = Spread(mean=None, deviation=None)
            continue
        deviation = float(values.std(ddof=1)) if len(values) > 1 else None
        spreads[name] = Spread(mean=mean, deviation=deviation)
    return spreads


def _mistakes(scorer: Scorer, predictions: Sequence[Prediction], examples: Sequence[Example]) -> list[Mistake]:
    """The worst mistakes first."""
    errors = [scorer.error(prediction, example) for prediction, example in zip(predictions, examples, strict=True)]
    worst_first = sorted(range(len(errors)), key=lambda i: -errors[i])
    mistakes: list[Mistake] = []
    for i in worst_first[:MISTAKES]:
        if errors[i] > 0:
            mistake = Mistake(
                row=examples[i].row,
                text=short(" | ".join(examples[i].texts)),
                gold=readable(examples[i].gold),
                predicted=readable(predictions[i].label),
                error=errors[i],
            )
            mistakes.append(mistake)
    return mistakes


def readable(value: object) -> str:
    """A gold label or a prediction as a short text."""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, tuple | list):
        return ", ".join(readable(one) for one in value) or "(none)"
    return short(str(value))


def short(text: str) -> str:
    """The text, cut if it is long."""
    if len(text) <= SHOWN:
        return text
    return f"{text[: SHOWN - 1]}…"


def format_spread(figure: Spread) -> str:
    """`0.8710 ± 0.0040`, or without a deviation if only one seed ran."""
    mean = figure["mean"]
    deviation = figure["deviation"]
    if mean is None:
        return "undefined"
    if deviation is None:
        return f"{mean:.4f}"
    return f"{mean:.4f} ± {deviation:.4f}"


def headlines(summary: FinetuningSummary) -> list[str]:
    """What the command prints at the end of a run."""
    lines: list[str] = []
    for name, task in summary["tasks"].items():
        lines += _task_headlines(name, task)
    for name, task in summary["tasks"].items():
        collapsed = collapsed_line(name, task.get("collapsed_seeds", []))
        if collapsed:
            lines.append(collapsed)
    if len(summary["seeds"]) == 1:
        lines.append("One seed: no deviation is known; `seeds=5` would show it.")
    return lines


def _task_headlines(name: str, task: TaskSummary) -> list[str]:
    """One line for each part."""
    main = task["main"]
    lines = []
    for part, figures in task["figures"].items():
        where = f"on {_counted_part(task)} (used for picking)" if part == "dev" else "on test (not used for picking)"
        baseline = task["baseline"][part].get(main)
        is_undefined = baseline is None or math.isnan(baseline)
        shown = "undefined" if is_undefined else f"{baseline:.4f}"
        lines.append(f"{name}: {main} {format_spread(figures[main])} {where}; without reading the texts: {shown}.")
    return lines


def _counted_part(task: TaskSummary) -> str:
    """What the rows for picking are called, with their number if they were taken from the training file."""
    count = task["rows"]["dev"]
    if task["picked_on"] != HELD_OUT:
        return task["picked_on"]
    return counted(count, HELD_OUT.removesuffix("s"))


# The model card


def card(checkpoint: Checkpoint, summary: FinetuningSummary) -> str:
    """The model card of a fine-tuned model, as Markdown."""
    num_seeds = len(summary["seeds"])
    num_parameters = parameter_count([checkpoint.encoder, *checkpoint.tasks.values()])
    # Random weights may have the shape of a model, as a control for it.
    start = summary["model"]
    if summary["random"] and start != "random weights":
        start += " (its shape, with random weights)"
    facts = [
        ["Started from", start],
        ["Encoder", f"{described(checkpoint.encoder)}, {num_parameters:,} parameters with its heads"],
        [
            "Seeds",
            f"{num_seeds}; the model here is seed {summary['kept_seed']}, epoch {summary['kept_epoch']:.3g}",
        ],
    ]
    sections = ["# A model fine-tuned by firth\n", _table(["", ""], facts)]
    for name, task in summary["tasks"].items():
        sections += _task_sections(name, task, checkpoint.tasks[name], num_seeds)
    use = 'import firth\n\nmodel = firth.load("THIS_FOLDER")\nmodel.predict(["a text", "another"])'
    sections.append(f"## Use\n\n```python\n{use}\n```\n")
    return "\n".join(sections)


def _task_sections(name: str, task: TaskSummary, head: Head, num_seeds: int) -> list[str]:
    """What a card says about one task."""
    sections = [f"## {name}\n"]
    # Most tasks have one group of labels, some have none.
    label_groups = [f"{group}: {', '.join(labels)}" for group, labels in head.labels.items()]
    if label_groups:
        sections.append(f"Chooses from {'; '.join(label_groups)}.\n")
    sections.append(_figures_table(task))
    sections.append(_rows_sentence(task, num_seeds))
    if any(task["skipped"].values()):
        skipped = [f"{count} in {part}" for part, count in task["skipped"].items() if count]
        sections.append(f"Bad rows skipped: {', '.join(skipped)}.\n")
    sections += _details(task)
    hashes = [[part, digest] for part, digest in task["data"].items()]
    sections.append(_table(["file", "sha256"], hashes))
    return sections


def _figures_table(task: TaskSummary) -> str:
    rows: list[list[str]] = []
    for part, figures in task["figures"].items():
        part_name = f"{task['picked_on']} (used for picking)" if part == "dev" else part
        for figure, spread in figures.items():
            baseline = task["baseline"][part].get(figure, float("nan"))
            rows.append([part_name, figure, format_spread(spread), f"{baseline:.4f}"])
    return _table(["rows", "figure", "value", "majority baseline"], rows)


def _rows_sentence(task: TaskSummary, num_seeds: int) -> str:
    values = "one seed, so no deviation is known"
    if num_seeds > 1:
        values = f"mean ± standard deviation over {num_seeds} seeds"
    counts = [f"{count:,} {part}" for part, count in task["rows"].items()]
    return f"Values: {values}. Rows: {', '.join(counts)}.\n"


def _details(task: TaskSummary) -> list[str]:
    """Tables of labels, of confusions and of the worst mistakes."""
    sections: list[str] = []
    if task.get("per_label"):
        rows: list[list[object]] = []
        for label, precision, recall, f1, support in task["per_label"]:
            rows.append([label, f"{precision:.4f}", f"{recall:.4f}", f"{f1:.4f}", support])
        sections.append(_table(["label", "precision", "recall", "F1", f"rows of {task['details_of']}"], rows))
    confusion = task.get("confusion")
    if confusion:
        labels = confusion["labels"]
        rows = [[label, *counts] for label, counts in zip(labels, confusion["counts"], strict=True)]
        sections.append(_table(["gold \\ predicted", *labels], rows))
    if task["mistakes"]:
        rows = []
        for mistake in task["mistakes"][:CARD_MISTAKES]:
            error = f"{mistake['error']:.3f}"
            rows.append([mistake["row"], mistake["text"], mistake["gold"], mistake["predicted"], error])
        sections.append("### Hardest errors\n\n" + _table(["row", "text", "gold", "predicted", "error"], rows))
    return sections


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [_table_row(columns), f"|{'---|' * len(columns)}"]
    for row in rows:
        lines.append(_table_row(row))
    lines.append("")
    return "\n".join(lines)


def _table_row(values: Sequence[object]) -> str:
    cells = [str(value).replace("|", "\\|").replace("\n", " ") for value in values]
    return f"| {' | '.join(cells)} |"
