"""Fine-tuning seeds that collapsed: predictions and gold labels in; the one answer that all rows got out, if it is one.

Such a model has learned only the most frequent label, or the mean (Mosbach et al. 2020 on why fine-tuning does so).
"""

import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TypedDict

import numpy as np

from firth.tasks.conll import Sentence
from firth.types import Example, Prediction

log = logging.getLogger(__name__)

FEWEST = 8
"""With fewer rows, equal answers say nothing."""
FLAT = 0.01
"""Numbers whose deviation is below this share of the gold deviation are all the same."""


class CollapsedSeed(TypedDict):
    seed: int
    answer: str
    """What the model answers to every row."""


def same_answer(predictions: Sequence[Prediction], examples: Sequence[Example]) -> str | None:
    """The answer that all rows got although their gold labels differ; else None."""
    if len(examples) < FEWEST:
        return None
    golds = [example.gold for example in examples]
    labels = [prediction.label for prediction in predictions]
    if isinstance(examples[0], Sentence):
        # There is a tag for each word.
        golds = list(chain.from_iterable(golds))
        labels = list(chain.from_iterable(labels))
    if not labels:
        # Sentences without words.
        return None
    if all(isinstance(label, float) for label in labels):
        return _same_number(labels, golds)
    # If all golds agree, one answer for all is right.
    labels_differ = any(label != labels[0] for label in labels)
    golds_agree = all(gold == golds[0] for gold in golds)
    if labels_differ or golds_agree:
        return None
    return _answer_text(labels[0])


def _same_number(labels: Sequence[float], golds: Sequence[object]) -> str | None:
    """The number that all rows got, or None.

    If the golds are names of pairs, their deviation is taken to be that of a fair coin, 0.5.
    """
    numbers = [gold for gold in golds if isinstance(gold, float)]
    gold_deviation = 0.0
    if len(numbers) == len(golds):
        gold_deviation = float(np.std(numbers))
    elif len({str(gold) for gold in golds}) > 1:
        gold_deviation = 0.5
    if float(np.std(labels)) >= FLAT * gold_deviation:
        return None
    return f"about {np.mean(labels):.3g}"


def _answer_text(label: object) -> str:
    if isinstance(label, tuple | list):
        return ", ".join(str(name) for name in label) or "none"
    return str(label) or "no answer"


def warn_collapsed(seed: int, collapsed: Mapping[str, str], *, rate: float, epochs: float) -> None:
    """Warns about a seed whose kept weights give all rows of a task the same answer; `collapsed` has it by task."""
    for name, answer in collapsed.items():
        log.warning(
            f"seed {seed} collapsed: {name} gives every row for picking the same answer ({answer}). Try a "
            f"lower rate (train.optim.rate={rate / 3:.2g}), more epochs (epochs={2 * epochs:g}) or other seeds "
            "(`seeds=5`)."
        )


def collapsed_line(name: str, seeds: Sequence[CollapsedSeed]) -> str:
    """One sentence about the collapsed seeds of a task; empty if there are none."""
    if not seeds:
        return ""
    listed = ", ".join(f"{found['seed']} ({found['answer']})" for found in seeds)
    which = f"seed {listed} collapsed; it gives"
    if len(seeds) > 1:
        which = f"seeds {listed} collapsed; they give"
    return f"{name}: {which} every row for picking the same answer."
