"""Fine-tuning seeds that collapsed: predictions and gold labels in; the one answer that all rows got out, if it is one.

Such a model has learned only the most frequent label, or the mean (Mosbach et al. 2020 on why fine-tuning does so).
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from firth.tasks.conll import Sentence
from firth.types import Example, Prediction

log = logging.getLogger(__name__)

FEWEST = 8
"""Rows below which equal answers are no sign of anything."""
FLAT = 0.01
"""Numbers whose deviation is below this share of the gold deviation are all the same."""


def same_answer(predictions: Sequence[Prediction], examples: Sequence[Example]) -> str | None:
    """The answer that all rows got although their gold labels differ; else None."""
    if len(examples) < FEWEST:
        return None
    golds = [example.gold for example in examples]
    labels = [prediction.label for prediction in predictions]
    if isinstance(examples[0], Sentence):  # a tag for each word
        golds = [tag for tags in golds for tag in tags]
        labels = [tag for tags in labels for tag in tags]
    if all(isinstance(label, float) for label in labels):
        return _same_number(labels, golds)
    if not labels or any(label != labels[0] for label in labels) or all(gold == golds[0] for gold in golds):
        return None
    return _spoken(labels[0])


def _same_number(labels: Sequence[float], golds: Sequence[object]) -> str | None:
    """Similarities of pairs whose gold is a name are compared with the deviation of a fair coin, 0.5."""
    numbers = [gold for gold in golds if isinstance(gold, float)]
    if len(numbers) == len(golds):
        gold_deviation = float(np.std(numbers))
    else:
        gold_deviation = 0.5 if len({str(gold) for gold in golds}) > 1 else 0.0
    return f"about {np.mean(labels):.3g}" if float(np.std(labels)) < FLAT * gold_deviation else None


def _spoken(label: object) -> str:
    if isinstance(label, tuple | list):
        return ", ".join(map(str, label)) or "none"
    return str(label) or "no answer"


def say_collapsed(seed: int, best: Mapping[str, Any], *, rate: float, epochs: float) -> None:
    """Warns of a seed whose kept weights give all rows the same answer."""
    for name, answer in best.get("collapsed", {}).items():
        log.warning(
            f"seed {seed} collapsed: {name} gives every row for picking the same answer ({answer}). Try a "
            f"lower rate (train.optim.rate={rate / 3:.2g}), more epochs (epochs={2 * epochs:g}) or other seeds "
            "(`seeds=5`)."
        )


def collapsed_seeds(name: str, results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Which seeds of a run collapsed in a task, with the answer they give."""
    found = [(result["seed"], result.get("collapsed", {}).get(name)) for result in results]
    return [{"seed": seed, "answer": answer} for seed, answer in found if answer is not None]


def collapsed_line(name: str, row: Mapping[str, Any]) -> str:
    """One sentence on the collapsed seeds of a task in a run's summary; empty where there are none."""
    seeds = row.get("collapsed_seeds", [])
    if not seeds:
        return ""
    named = ", ".join(f"{found['seed']} ({found['answer']})" for found in seeds)
    which = f"seeds {named} collapsed; they give" if len(seeds) > 1 else f"seed {named} collapsed; it gives"
    return f"{name}: {which} every row for picking the same answer."
