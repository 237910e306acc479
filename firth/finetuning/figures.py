"""What the seeds of a fine-tuning run found -> one summary: figures, baseline, mistakes, and the model card."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from firth.checkpoint import Checkpoint, described
from firth.finetuning.collapse import collapsed_line, collapsed_seeds
from firth.finetuning.labelled import Labelled
from firth.run_folder import FinetuningSource
from firth.tasks import scorer_of
from firth.tasks.task import Head, Scorer
from firth.tensors import parameter_count
from firth.types import Example, Prediction

MISTAKES = 20
SHOWN = 160
"""Characters of a text in a table."""


def summarise(
    data: Mapping[str, Labelled],
    tasks: Mapping[str, Head],
    results: Sequence[Mapping[str, Any]],
    best: Mapping[str, Any],
    *,
    predictions: Mapping[str, Mapping[str, Sequence[Prediction]]],
    source: FinetuningSource,
) -> dict[str, Any]:
    """All figures of a run, as plain JSON values."""
    rows = {name: _task(name, data[name], task, results, predictions) for name, task in tasks.items()}
    for name, row in rows.items():
        row["data"] = {part: file.sha256 for part, file in source.files[name].items()}
    return {
        "model": Path(source.model).name or "random weights",
        "random": source.random,
        "seeds": [result["seed"] for result in results],
        "kept_seed": best["seed"],
        "kept_epoch": best["epochs"],
        "tasks": rows,
    }


def _task(
    name: str,
    data: Labelled,
    task: Head,
    results: Sequence[Mapping[str, Any]],
    predictions: Mapping[str, Mapping[str, Sequence[Prediction]]],
) -> dict[str, Any]:
    several = len(results[0]["configs"]) > 1
    prefix = f"{name}_" if several else ""
    dev = [{k.removeprefix(prefix): v for k, v in r["figures"].items() if k.startswith(prefix)} for r in results]
    for figures in dev:
        figures.pop("picked", None)
    parts = {"dev": dev} | ({"test": [r["test"][name] for r in results]} if name in results[0]["test"] else {})
    shown = "test" if "test" in parts else "dev"
    examples = data.examples
    scorer = scorer_of(task)
    return {
        "main": scorer.main_metric,
        "picked_on": data.picked_on,
        "figures": {part: _spread(figures) for part, figures in parts.items()},
        "by_seed": parts,
        "collapsed_seeds": collapsed_seeds(name, results),
        "baseline": {
            part: scorer.score(scorer.baseline(examples["train"], examples[part]), examples[part]) for part in parts
        },
        "rows": {part: len(rows) for part, rows in examples.items()},
        "skipped": data.num_skipped,
        "details_of": shown,
        **scorer.details(predictions[shown][name], examples[shown]),
        "mistakes": _mistakes(scorer, predictions[shown][name], examples[shown]),
    }


def _spread(figures: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float | None]]:
    """Mean and standard deviation over the seeds; with one seed no deviation is known."""
    spread: dict[str, dict[str, float | None]] = {}
    for name in figures[0]:
        values = np.array([row[name] for row in figures], float)
        deviation = float(values.std(ddof=1)) if len(values) > 1 else None
        spread[name] = {"mean": float(values.mean()), "deviation": deviation}
    return spread


def _mistakes(scorer: Scorer, predictions: Sequence[Prediction], examples: Sequence[Example]) -> list[dict[str, Any]]:
    errors = [scorer.error(prediction, example) for prediction, example in zip(predictions, examples, strict=True)]
    order = sorted(range(len(errors)), key=lambda i: -errors[i])[:MISTAKES]
    return [
        {
            "row": examples[i].row,
            "text": short(" | ".join(examples[i].texts)),
            "gold": readable(examples[i].gold),
            "predicted": readable(predictions[i].label),
            "error": errors[i],
        }
        for i in order
        if errors[i] > 0
    ]


def readable(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return ", ".join(map(readable, value)) or "(none)" if isinstance(value, tuple | list) else short(str(value))


def short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def spoken(figure: Mapping[str, float | None]) -> str:
    """`0.871 ± 0.004`, or without a deviation where only one seed ran."""
    mean, deviation = figure["mean"], figure["deviation"]
    if mean is None or math.isnan(mean):
        return "undefined"
    return f"{mean:.4f}" if deviation is None else f"{mean:.4f} ± {deviation:.4f}"


def headlines(summary: Mapping[str, Any]) -> list[str]:
    """What a person reads at the end of a run."""
    lines = [line for name, row in summary["tasks"].items() for line in _headline(name, row)]
    lines += [line for name, row in summary["tasks"].items() if (line := collapsed_line(name, row))]
    return lines if len(summary["seeds"]) > 1 else [*lines, "One seed: no deviation is known; `seeds=5` would tell."]


def _headline(name: str, row: Mapping[str, Any]) -> list[str]:
    main = row["main"]
    lines = []
    for part, figures in row["figures"].items():
        baseline = row["baseline"][part].get(main)
        where = f"on {row['picked_on']} (used for picking)" if part == "dev" else "on test (not used for picking)"
        usual = "undefined" if baseline is None or math.isnan(baseline) else f"{baseline:.4f}"
        lines.append(f"{name}: {main} {spoken(figures[main])} {where}; without reading the texts: {usual}.")
    return lines


def card(checkpoint: Checkpoint, summary: Mapping[str, Any]) -> str:
    """The model card of a fine-tuned model."""
    count = parameter_count([checkpoint.encoder, *checkpoint.tasks.values()])
    start = f"{summary['model']}{' (its shape, with random weights)' if summary['random'] else ''}"
    facts = {
        "Started from": start if summary["model"] != "random weights" else "random weights",
        "Encoder": f"{described(checkpoint.encoder)}, {count:,} parameters with its heads",
        "Seeds": f"{len(summary['seeds'])}; the model here is seed {summary['kept_seed']}, "
        f"epoch {summary['kept_epoch']:.3g}",
    }
    parts = ["# A model fine-tuned by firth\n", _table(["", ""], list(facts.items()))]
    for name, row in summary["tasks"].items():
        parts += _card_of(name, row, checkpoint.tasks[name], len(summary["seeds"]))
    use = 'import firth\n\nmodel = firth.load("THIS_FOLDER")\nmodel.predict(["a text", "another"])'
    return "\n".join([*parts, f"## Use\n\n```python\n{use}\n```\n"])


def _card_of(name: str, row: Mapping[str, Any], task: Head, num_seeds: int) -> list[str]:
    parts = [f"## {name}\n"]
    names = [f"{group}: {', '.join(labels)}" for group, labels in task.labels.items()]
    parts += [f"Chooses from {'; '.join(names)}.\n"] if names else []
    figures = [
        [part if part != "dev" else f"{row['picked_on']} (used for picking)", figure, spoken(value),
         f"{row['baseline'][part].get(figure, float('nan')):.4f}"]
        for part, values in row["figures"].items()
        for figure, value in values.items()
    ]  # fmt: skip
    parts.append(_table(["rows", "figure", "value", "majority baseline"], figures))
    seeds = (
        f"mean ± standard deviation over {num_seeds} seeds" if num_seeds > 1 else "one seed, so no deviation is known"
    )
    parts.append(f"Values: {seeds}. Rows: {', '.join(f'{n:,} {part}' for part, n in row['rows'].items())}.\n")
    if sum(row["skipped"].values()):
        parts.append(f"Bad rows skipped: {', '.join(f'{n} in {p}' for p, n in row['skipped'].items() if n)}.\n")
    if row.get("per_label"):
        lines = [[n, f"{p:.4f}", f"{r:.4f}", f"{f:.4f}", s] for n, p, r, f, s in row["per_label"]]
        parts.append(_table(["label", "precision", "recall", "F1", f"rows of {row['details_of']}"], lines))
    if confusion := row.get("confusion"):
        lines = [[n, *counts] for n, counts in zip(confusion["labels"], confusion["counts"], strict=True)]
        parts.append(_table(["gold \\ predicted", *confusion["labels"]], lines))
    if row["mistakes"]:
        lines = [[m["row"], m["text"], m["gold"], m["predicted"], f"{m['error']:.3f}"] for m in row["mistakes"][:10]]
        parts.append("### Hardest errors\n\n" + _table(["row", "text", "gold", "predicted", "error"], lines))
    hashes = [[part, digest] for part, digest in row["data"].items()]
    return [*parts, _table(["file", "sha256"], hashes)]


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def cells(values: Sequence[Any]) -> str:
        safe = (str(value).replace("|", "\\|").replace("\n", " ") for value in values)
        return f"| {' | '.join(safe)} |"

    return "\n".join([cells(columns), f"|{'---|' * len(columns)}", *map(cells, rows), ""])
