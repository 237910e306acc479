"""Two fine-tuned models on one labelled file: is one really better? Both answer the same rows.

McNemar's test looks at the rows that only one of them has right. The bootstrap draws rows again and again and shows how
much the difference of the main figure varies.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import numpy as np

from firth import rng
from firth.errors import BadConfig, BadInput
from firth.metrics.paired import mcnemar, only_one_right
from firth.tasks.task import Figures
from firth.trust.rows import AnsweredRows, answer_file

SAMPLES = 1000
"""Draws of the bootstrap ..."""
FEWEST_SAMPLES = 100
"""... and how many there are at least, however large the file is."""
MOST_SCORED = 2_000_000
"""Rows that the bootstrap scores at most: fewer samples are drawn of a large file."""
SURE = 0.05
"""A p-value below this is taken for a real difference."""


class ModelComparison(TypedDict):
    """A first and a second model on the same rows."""

    rows: int
    figure: str
    """The main figure of the task."""
    first: Figures
    second: Figures
    difference: float
    """Of the main figure: the first model's minus the second's."""
    interval: tuple[float, float]
    """The 95 % bootstrap interval of the difference."""
    only_first_right: int
    only_second_right: int
    p_value: float
    """McNemar's exact test."""
    verdict: str


def compare_models(
    first: str | Path,
    second: str | Path,
    *,
    data: str | Path,
    task: str = "",
    columns: Mapping[str, object] | None = None,
    seed: int = 1,
    skip_bad: bool = False,
) -> ModelComparison:
    """Both models' figures on a labelled file, their difference, and how sure it is."""
    one = answer_file(first, data, task=task, columns=columns, skip_bad=skip_bad)
    other = answer_file(second, data, task=task, columns=columns, skip_bad=skip_bad)
    if skip_bad:
        # A row may be bad for one model alone, such as one with a label that it did not learn.
        shared_rows = one.row_numbers & other.row_numbers
        one = _only_rows(one, shared_rows)
        other = _only_rows(other, shared_rows)
    if _kind(one) != _kind(other) or len(one.examples) != len(other.examples):
        raise BadConfig(f"{first} does {one.task} and {second} does {other.task}; compare models of one task.")
    if not one.examples:
        raise BadInput(f"No row of {data} is good for both models; give rows with labels that both learned.")
    main = one.scorer.main_metric
    first_figures = one.scorer.score(one.predictions, one.examples)
    second_figures = other.scorer.score(other.predictions, other.examples)

    def difference(rows: np.ndarray) -> float:
        return _figure(one, rows, main) - _figure(other, rows, main)

    num_rows = len(one.examples)
    samples = max(FEWEST_SAMPLES, min(SAMPLES, MOST_SCORED // num_rows))
    low, high = bootstrap_interval(difference, num_rows, samples=samples, seed=seed)
    one_right = one.is_right
    other_right = other.is_right
    only_first, only_second = only_one_right(one_right, other_right)
    p_value = mcnemar(one_right, other_right)
    gain = first_figures[main] - second_figures[main]
    return ModelComparison(
        rows=num_rows,
        figure=main,
        first=first_figures,
        second=second_figures,
        difference=gain,
        interval=(low, high),
        only_first_right=only_first,
        only_second_right=only_second,
        p_value=p_value,
        verdict=_verdict(gain, (low, high), p_value),
    )


def _kind(answered: AnsweredRows) -> str:
    """The task without the number of a second one of its kind."""
    kind, _, _ = answered.task.partition("-")
    return kind


def _only_rows(answered: AnsweredRows, numbers: Set[int]) -> AnsweredRows:
    """The rows with these numbers."""
    places = [place for place, example in enumerate(answered.examples) if example.row in numbers]
    return replace(
        answered,
        examples=[answered.examples[place] for place in places],
        predictions=[answered.predictions[place] for place in places],
    )


def bootstrap_interval(
    difference: Callable[[np.ndarray], float],
    num_rows: int,
    *,
    samples: int,
    seed: int = 1,
) -> tuple[float, float]:
    """The 95 % percentile interval of a figure over rows that are drawn with replacement (Efron 1979).

    `difference` gives the figure for the rows at some positions.
    """
    key = rng.key(seed, "bootstrap")
    values = []
    for sample in range(samples):
        rows = rng.below(key, num_rows, np.arange(num_rows), sample)
        value = difference(np.asarray(rows))
        # The AUC of a draw in which all rows have one label is undefined.
        if np.isfinite(value):
            values.append(value)
    if not values:
        return float("nan"), float("nan")
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _figure(answered: AnsweredRows, rows: np.ndarray, main: str) -> float:
    """The main figure on some of the rows."""
    predictions = [answered.predictions[row] for row in rows]
    examples = [answered.examples[row] for row in rows]
    return answered.scorer.score(predictions, examples)[main]


def _verdict(gain: float, interval: tuple[float, float], p_value: float) -> str:
    low, high = interval
    if p_value < SURE and (low > 0 or high < 0):
        return f"the {'first' if gain > 0 else 'second'} model is better"
    return "these rows do not show that either is better"
