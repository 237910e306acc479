"""How far a classifier's probabilities can be trusted: its predictions and the gold labels in, a summary out.

The summary has the expected calibration error before and after a temperature, a reliability diagram, and thresholds
below which to abstain for a wanted precision. Only labels of which a row has one (kind=one) are looked at.
"""

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np

from firth.config import check_rates
from firth.errors import BadConfig, Unsupported
from firth.metrics.calibration import (
    abstain_threshold,
    answered_above,
    at_temperature,
    best_temperature,
    calibration_error,
    reliability,
)
from firth.types import Example, Prediction

CALIBRATION = "calibration"
"""The note in `firth.json` with the temperature and the thresholds of each task."""
WANTED = (0.8, 0.9, 0.95, 0.97, 0.98, 0.99)
"""Precisions for which a run looks for a threshold."""
DIAGRAM_BINS = 10
"""Bars of the reliability diagram."""

Predictions = Sequence[Prediction]
Examples = Sequence[Example]


class ReliabilityRow(TypedDict):
    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None


class ThresholdRow(TypedDict):
    """A threshold that was found on the rows for picking, and what it gives on each part."""

    wanted: float
    above: float
    answered: dict[str, float]
    precision: dict[str, float | None]


class CalibrationSummary(TypedDict):
    temperature: float
    """What the scores were divided by."""
    before: dict[str, float]
    """The expected calibration error by part, as the model was trained ..."""
    after: dict[str, float]
    """... and as it is kept."""
    diagram_of: str
    """The part that the diagrams are about."""
    diagram_before: list[ReliabilityRow]
    diagram: list[ReliabilityRow]
    thresholds: list[ThresholdRow]


def is_calibrated(predictions: Predictions, examples: Examples) -> bool:
    """Whether these are answers with one name each, and the probabilities of all names."""
    if not predictions:
        return False
    first = predictions[0]
    has_one_name = isinstance(first.label, str) and isinstance(examples[0].gold, str)
    return has_one_name and first.label in first.probabilities


def best_temperature_of(predictions: Predictions, examples: Examples) -> float:
    """The temperature that fits the gold labels best; 1 if there is nothing to fit."""
    probabilities_ET, gold_E = _arrays(predictions, examples)
    if not len(gold_E):
        return 1.0
    log_ET = np.log(np.maximum(probabilities_ET, 1e-300))
    return best_temperature(log_ET, gold_E)


def error_of(predictions: Predictions, examples: Examples) -> float:
    """The expected calibration error of some predictions."""
    probabilities_ET, gold_E = _arrays(predictions, examples)
    return calibration_error(*_confidences(probabilities_ET, gold_E))


def summarise_calibration(
    predictions: Mapping[str, Predictions],
    examples: Mapping[str, Examples],
    *,
    temperature: float,
    shown: str,
) -> CalibrationSummary:
    """The summary of a run. `predictions` are those with the temperature; thresholds are found on `dev`."""
    before: dict[str, float] = {}
    after: dict[str, float] = {}
    now: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    trained: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for part, found in predictions.items():
        probabilities_ET, gold_E = _arrays(found, examples[part])
        now[part] = _confidences(probabilities_ET, gold_E)
        # The temperature is taken out again.
        trained[part] = _confidences(at_temperature(probabilities_ET, 1 / temperature), gold_E)
        before[part] = calibration_error(*trained[part])
        after[part] = calibration_error(*now[part])
    return CalibrationSummary(
        temperature=temperature,
        before=before,
        after=after,
        diagram_of=shown,
        diagram_before=_diagram(*trained[shown]),
        diagram=_diagram(*now[shown]),
        thresholds=_thresholds(now),
    )


def _thresholds(confidences: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> list[ThresholdRow]:
    rows: list[ThresholdRow] = []
    for wanted in WANTED:
        found = abstain_threshold(*confidences["dev"], wanted)
        if found is None:
            continue
        row = ThresholdRow(wanted=wanted, above=found.above, answered={}, precision={})
        for part, (confidence_E, right_E) in confidences.items():
            answered, precision = answered_above(confidence_E, right_E, found.above)
            row["answered"][part] = answered
            row["precision"][part] = None if np.isnan(precision) else precision
        rows.append(row)
    return rows


def _diagram(confidence_E: np.ndarray, right_E: np.ndarray) -> list[ReliabilityRow]:
    rows: list[ReliabilityRow] = []
    for each in reliability(confidence_E, right_E, bins=DIAGRAM_BINS):
        row = ReliabilityRow(
            low=each.low,
            high=each.high,
            count=each.count,
            confidence=each.confidence,
            accuracy=each.accuracy,
        )
        if not each.count:
            # NaN, which an interval without answers has, is no JSON.
            row["confidence"] = None
            row["accuracy"] = None
        rows.append(row)
    return rows


def _arrays(predictions: Predictions, examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """E x T probabilities, and the index of each row's gold label; rows whose label has no probability are left out."""
    rows = []
    golds = []
    for prediction, example in zip(predictions, examples, strict=True):
        names = list(prediction.probabilities)
        if example.gold in names:
            rows.append(list(prediction.probabilities.values()))
            golds.append(names.index(example.gold))
    if not rows:
        return np.empty((0, 1)), np.empty(0, np.int64)
    return np.array(rows, np.float64), np.array(golds, np.int64)


def _confidences(probabilities_ET: np.ndarray, gold_E: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The confidence of each answer, and whether it is right."""
    if not len(gold_E):
        return np.empty(0), np.empty(0, bool)
    return probabilities_ET.max(1), probabilities_ET.argmax(1) == gold_E


class SavedCalibration(TypedDict):
    """What `firth.json` holds about a task."""

    temperature: float
    thresholds: list[tuple[float, float]]
    """Wanted precision and the confidence above which it was reached on the rows for picking."""


def saved_calibration(summary: CalibrationSummary) -> SavedCalibration:
    thresholds = [(row["wanted"], row["above"]) for row in summary["thresholds"]]
    return SavedCalibration(temperature=summary["temperature"], thresholds=thresholds)


def threshold_for(notes: Mapping[str, object], task: str, wanted: float) -> float:
    """The confidence below which to abstain for a wanted precision, by the notes of a fine-tuned model."""
    check_rates(precision=wanted)
    saved = notes.get(CALIBRATION)
    own = saved.get(task) if isinstance(saved, Mapping) else None
    if not isinstance(own, Mapping):
        raise Unsupported(
            "This model has no thresholds: only classifiers with one label column have them, found in fine-tuning on "
            "rows that were not learned from."
        )
    for reached, above in sorted(own["thresholds"]):
        if reached >= wanted:
            return float(above)
    highest = max((reached for reached, _ in own["thresholds"]), default=None)
    if highest is None:
        remedy = "fine-tune on more rows, or abstain below a probability of your own choice"
    else:
        remedy = f"ask for at most {highest:g}, the highest that was reached"
    raise BadConfig(f"No threshold gave a precision of {wanted:g} on the held-out rows; {remedy}.")
