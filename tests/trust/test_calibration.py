"""Calibrated probabilities: the error, the temperature and the thresholds; and what a run does with them."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth import rng
from firth.errors import BadConfig, Unsupported
from firth.inference.model import load
from firth.metrics.calibration import (
    abstain_threshold,
    answered_above,
    at_temperature,
    best_temperature,
    calibration_error,
    reliability,
)
from firth.report.reliability import reliability_diagram
from firth.tasks.calibration import threshold_for
from firth.train.logistic import softmax


def drawn(rows: int, *, temperature: float = 1.0, labels: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Scores whose probabilities are right at this temperature, and labels drawn from those probabilities."""
    key = rng.key("calibration", rows)
    scores = np.stack([rng.below(key, 10_000, np.arange(rows), column) / 2500 for column in range(labels)], 1)
    chances = rng.below(key, 1_000_000, np.arange(rows), labels) / 1_000_000
    gold = (softmax(scores).cumsum(1) < chances[:, None]).sum(1)
    return scores * temperature, np.minimum(gold, labels - 1)


def test_calibration_error_by_hand() -> None:
    confidences = [0.95, 0.95, 0.65, 0.65]
    right = [True, True, True, False]
    # Two bins of two answers: |0.95 - 1| and |0.65 - 0.5|.
    assert calibration_error(confidences, right, bins=10) == pytest.approx((0.05 + 0.15) / 2)
    assert np.isnan(calibration_error([], []))
    bins = reliability(confidences, right, bins=10)
    assert [(each.count, each.accuracy) for each in bins if each.count] == [(2, 0.5), (2, 1.0)]
    assert sum(each.count for each in reliability([0.0, 1.0], [True, True])) == 2


def test_calibration_error_is_that_of_torchmetrics() -> None:
    calibration = pytest.importorskip("torchmetrics.functional.classification", reason="torchmetrics is not installed")
    scores, gold = drawn(500)
    probabilities = softmax(scores)
    ours = calibration_error(probabilities.max(1), probabilities.argmax(1) == gold, bins=15)
    theirs = calibration.multiclass_calibration_error(
        torch.from_numpy(probabilities), torch.from_numpy(gold), num_classes=3, n_bins=15
    )
    assert ours == pytest.approx(float(theirs), abs=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_that_was_applied_is_found(temperature: float) -> None:
    scores, gold = drawn(4000, temperature=temperature)
    found = best_temperature(scores, gold)
    assert found == pytest.approx(temperature, rel=0.08)
    probabilities = softmax(scores)
    calibrated = at_temperature(probabilities, found)
    error = calibration_error(calibrated.max(1), calibrated.argmax(1) == gold)
    assert error < 0.03
    if temperature != 1:
        assert error < calibration_error(probabilities.max(1), probabilities.argmax(1) == gold) / 2
    np.testing.assert_allclose(at_temperature(calibrated, 1 / found), probabilities, atol=1e-9)


def test_a_few_rows_that_are_all_right_do_not_make_a_model_infinitely_sure() -> None:
    scores = np.array([[2.0, 0.0], [0.0, 2.0]])
    assert 0.3 < best_temperature(scores, [0, 1]) < 1


def test_thresholds_reach_the_wanted_precision() -> None:
    scores, gold = drawn(3000)
    probabilities = softmax(scores)
    confidences, right = probabilities.max(1), probabilities.argmax(1) == gold
    answered = []
    for wanted in (0.7, 0.8, 0.9):
        found = abstain_threshold(confidences, right, wanted)
        assert found is not None
        share, precision = answered_above(confidences, right, found.above)
        assert precision >= wanted
        assert (share, precision) == pytest.approx((found.answered, found.precision))
        answered.append(share)
    assert answered == sorted(answered, reverse=True)
    assert abstain_threshold(confidences, right, 0.9999) is None
    assert abstain_threshold([], [], 0.5) is None
    # Three right answers are no proof of a precision of 0.9.
    assert abstain_threshold([0.9, 0.9, 0.9], [True] * 3, 0.9) is None


def test_of_no_rows_nothing_is_known() -> None:
    share, precision = answered_above([], [], 0.5)
    assert math.isnan(share)
    assert math.isnan(precision)
    assert answered_above([0.2], [True], 0.5)[0] == 0.0


def test_answers_of_one_confidence_are_given_together() -> None:
    found = abstain_threshold([0.9] * 4 + [0.5] * 4, [True, True, True, False, True, True, True, True], 0.7)
    assert found is not None
    assert found.above == 0.5
    assert found.answered == 1.0


WORDS = {"pos": ["good", "great", "fine", "lovely", "nice"], "neg": ["bad", "awful", "poor", "ugly", "sad"]}


def write_rows(path: Path, rows: int) -> Path:
    """Texts of three words of which each fits the label three times in four."""
    key = rng.key("noisy rows", path.stem)
    lines = ["text\tlabel"]
    for row in range(rows):
        label = ("pos", "neg")[int(rng.below(key, 2, row, 0))]
        other = "neg" if label == "pos" else "pos"
        words = []
        for place in range(3):
            kind = label if rng.below(key, 4, row, 2 * place + 1) else other
            words.append(WORDS[kind][int(rng.below(key, 5, row, 2 * place + 2))])
        lines.append(f"{' '.join(words)} day\t{label}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """A bag of words that was fine-tuned on noisy rows, its home, and its summary."""
    home = tmp_path_factory.mktemp("calibrated")
    files = {
        part: write_rows(home / f"{part}.tsv", rows) for part, rows in (("train", 300), ("dev", 300), ("test", 300))
    }
    summary = firth.finetune(recipe="fasttext", task="classify", out=home / "model", **files)
    return home, home / "model", dict(summary["tasks"]["classify"])


def test_a_run_is_calibrated_on_dev_and_reports_it(calibrated: tuple[Path, Path, dict[str, Any]]) -> None:
    home, model, task = calibrated
    found = task["calibration"]
    assert set(found["before"]) == set(found["after"]) == {"dev", "test"}
    assert sum(row["count"] for row in found["diagram"]) == 300
    # The kept weights are those with the temperature.
    figures = firth.evaluate(model, data=home / "test.tsv")
    assert figures["calibration_error"] == pytest.approx(found["after"]["test"], abs=1e-6)
    report = (model / "report.html").read_text()
    assert "Calibration" in report
    assert report.count("reliability diagram: ") == 2
    plain = firth.finetune(
        recipe="fasttext", task="classify", out=home / "plain", changes=["calibrate=false"],
        train=home / "train.tsv", dev=home / "dev.tsv", test=home / "test.tsv",
    )["tasks"]["classify"]  # fmt: skip
    assert plain["calibration"]["temperature"] == 1
    assert plain["calibration"]["after"]["test"] == pytest.approx(found["before"]["test"], abs=1e-6)
    assert plain["figures"]["test"]["accuracy"] == task["figures"]["test"]["accuracy"]
    ratio = (
        load(home / "plain").checkpoint.tasks["classify"].head.weight
        / load(model).checkpoint.tasks["classify"].head.weight
    )  # type: ignore[union-attr,operator]
    np.testing.assert_allclose(ratio.detach().numpy(), found["temperature"], rtol=1e-4)


def test_predict_abstains_for_a_wanted_precision(
    calibrated: tuple[Path, Path, dict[str, Any]], command: Callable[..., Any]
) -> None:
    home, model, task = calibrated
    rows = command("predict", model, "--file", home / "test.tsv", "--wanted-precision", 0.85, "--json").out.splitlines()
    threshold = load(model).abstain_threshold(0.85)
    saved = next(row for row in task["calibration"]["thresholds"] if row["wanted"] >= 0.85)
    assert threshold == saved["above"]
    sure = [json.loads(row)["sure"] for row in rows]
    assert np.mean(sure) == pytest.approx(saved["answered"]["test"])
    assert any(sure)
    assert not all(sure)
    shown = command("predict", model, "good good bad day", "great great great day", "--abstain-below", 0.85).out
    assert [line.startswith("(unsure)") for line in shown.splitlines()] == [True, False]
    refused = command("predict", model, "a day", "--wanted-precision", 0.9999)
    highest = max(row["wanted"] for row in task["calibration"]["thresholds"])
    assert "No threshold gave a precision of 0.9999" in refused.err
    assert f"ask for at most {highest:g}, the highest that was reached" in refused.err
    with pytest.raises(BadConfig, match="fine-tune on more rows, or abstain below a probability"):
        threshold_for({"calibration": {"classify": {"temperature": 1.0, "thresholds": []}}}, "classify", 0.95)


def test_rows_that_were_learned_from_calibrate_nothing(run: Path, tmp_path: Path) -> None:
    """Few labels are all learned from: being right about them is no reason to be sure of others."""
    rows = tmp_path / "rows.tsv"
    lines = [f"{'good' if number % 2 else 'bad'} day {number}\t{number % 2}" for number in range(24)]
    rows.write_text("\n".join(["text\tlabel", *lines]) + "\n", "utf-8")
    summary = firth.finetune(
        run, task="classify", train=rows, out=tmp_path / "out", changes=["held_out_rate=0", "epochs=2"], device="cpu"
    )
    assert summary["tasks"]["classify"]["picked_on"] == "the training rows themselves"
    assert "calibration" not in summary["tasks"]["classify"]
    model = load(tmp_path / "out")
    assert "calibration" not in model.checkpoint.info
    with pytest.raises(Unsupported, match="on rows that were not learned from"):
        model.abstain_threshold(0.9)


def test_the_diagram_says_its_numbers() -> None:
    rows = [{"low": 0.8, "high": 0.9, "count": 12, "confidence": 0.85, "accuracy": 0.75}]
    drawn_svg = reliability_diagram(
        [*rows, {"low": 0.9, "high": 1.0, "count": 0, "confidence": None, "accuracy": None}]
    )
    assert "12 answers, mean confidence 85.0%, right 75.0%" in drawn_svg
    assert drawn_svg.count("<rect") == 1
