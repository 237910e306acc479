"""Label errors: chances of errors are right, folds never split a text, the command shows the evidence or declines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth import rng
from firth.errors import BadConfig, Unsupported
from firth.finetuning.checking import DeepFindings, LabelError
from firth.finetuning.folds import fold_of_rows
from firth.train.logistic import softmax
from firth.trust.held_out import held_out_probabilities
from firth.trust.label_errors import LEAST_CHANCE, describe, suspicious
from firth.trust.label_noise import estimate_noise

FLIPPED = (5, 18, 33)


def rows_with_errors(path: Path) -> Path:
    """40 rows of which three have the wrong label: every row says what it is."""
    lines = ["text\tlabel"]
    for number in range(40):
        is_good = number % 2 == 0
        text = f"{'the river is open and the day is long' if is_good else 'a house was small, old and dark'} {number}"
        has_good_label = is_good != (number in FLIPPED)
        lines.append(f"{text}\t{'good' if has_good_label else 'bad'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def noisy_rows(num_labels: int, *, rate: float, num_rows: int = 3000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities, labels drawn from them of which a share was replaced, and whether each was."""
    random = np.random.default_rng(num_labels)
    probabilities = softmax(3 * random.normal(size=(num_rows, num_labels)))
    chances = random.random((num_rows, 1))
    labels = np.minimum((probabilities.cumsum(1) < chances).sum(1), num_labels - 1)
    is_wrong = random.random(num_rows) < rate
    others = (labels + random.integers(1, num_labels, num_rows)) % num_labels
    return probabilities, np.where(is_wrong, others, labels), is_wrong


@pytest.mark.parametrize("num_labels", [2, 10])
def test_chances_of_errors_are_what_they_say(num_labels: int) -> None:
    probabilities, labels, is_wrong = noisy_rows(num_labels, rate=0.1)
    noise = estimate_noise(probabilities, labels)
    assert noise.rate == pytest.approx(0.1, abs=0.051)
    listed = suspicious(noise)
    assert len(listed) > 30
    assert is_wrong[listed].mean() == pytest.approx(noise.chances_N[listed].mean(), abs=0.1)
    # The likeliest errors come first.
    assert is_wrong[listed[:20]].mean() > is_wrong[listed].mean()
    assert noise.chances_N[listed].min() >= LEAST_CHANCE


def test_right_labels_are_hardly_doubted() -> None:
    probabilities, labels, _ = noisy_rows(4, rate=0.0)
    assert len(suspicious(estimate_noise(probabilities, labels))) < 0.01 * len(labels)


def test_rows_are_ranked_better_than_by_margins_if_there_are_many_labels() -> None:
    probabilities, labels, is_wrong = noisy_rows(10, rate=0.05)
    own = probabilities[np.arange(len(labels)), labels]
    num_wrong = int(is_wrong.sum())
    by_margin = np.argsort(own - probabilities.max(1))[:num_wrong]
    by_chance = np.argsort(-estimate_noise(probabilities, labels).chances_N)[:num_wrong]
    assert is_wrong[by_chance].mean() > 1.2 * is_wrong[by_margin].mean()


def test_texts_that_occur_twice_are_in_one_fold() -> None:
    groups = [number // 2 for number in range(60)]
    labels = [number // 2 % 2 for number in range(60)]
    folds = fold_of_rows(labels, groups, count=5, seed=3)
    assert (folds[::2] == folds[1::2]).all()
    for label in (0, 1):
        assert np.bincount(folds[np.array(labels) == label]).tolist() == [6] * 5
    assert (folds != fold_of_rows(labels, groups, count=5, seed=4)).any()


def test_held_out_probabilities_do_not_see_their_row() -> None:
    key = rng.key("held out")
    vectors = np.stack([rng.below(key, 1000, np.arange(60), column) / 500 - 1 for column in range(8)], 1)
    labels = (vectors[:, 0] > 0).astype(int)
    folds = fold_of_rows(labels.tolist(), list(range(60)), count=5, seed=1)
    before = held_out_probabilities(vectors, labels, folds)
    assert (before.argmax(1) == labels).mean() > 0.8
    changed = labels.copy()
    changed[7] = 1 - changed[7]
    after = held_out_probabilities(vectors, changed, folds)
    # The penalty may be another one; with the same one the row's own label changes nothing.
    same_fold = folds == folds[7]
    if np.allclose(before[same_fold], after[same_fold]):
        np.testing.assert_allclose(before[7], after[7])
    assert (after[7].argmax() == labels[7]) == (before[7].argmax() == labels[7])


@pytest.mark.parametrize("way", ["vectors", "finetune"])
def test_check_deep_lists_flipped_labels_first(
    way: str, run: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    path = rows_with_errors(tmp_path / "rows.tsv")
    options = ("--task", "classify", "--model", run, "--deep", "--deep-by", way)
    deep = json.loads(command("check", path, *options, "--json").out)["deep"]
    expected = {number + 2 for number in FLIPPED}
    if way == "vectors":
        assert {error["row"] for error in deep["errors"][:3]} == expected
        assert deep["accuracy"] > 0.85
        first = deep["errors"][0]
        assert first["suggested_probability"] > first["probability"]
        assert first["neighbours"].count(first["suggested"]) >= 3
        shown = command("check", path, *options).out
        assert f"row {first['row']}: {first['label']}, " in shown
        assert "3 labels may be wrong" in shown
    else:
        assert 0 <= deep["accuracy"] <= 1
        assert all(error["label"] != error["suggested"] for error in deep["errors"])


def test_predictions_that_know_nothing_doubt_no_label(run: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    lines = [f"the river is open and the day is long {number}\t{'ab'[number * 7 % 3 % 2]}" for number in range(60)]
    path = tmp_path / "rows.tsv"
    path.write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    options = ("--task", "classify", "--model", run, "--deep")
    deep = json.loads(command("check", path, *options, "--json").out)["deep"]
    assert not deep["reliable"]
    assert deep["errors"] == []
    shown = command("check", path, *options).out
    assert "know too little about these labels to doubt any" in shown
    assert "--deep-by finetune" in shown


def test_what_cannot_be_checked_is_refused(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("text\tlabel\n" + "a day\tpos\na night\tneg\n" * 4)
    with pytest.raises(Unsupported, match="8 rows are too few"):
        firth.check(path, task="classify", model=run, deep=True)
    # Enough rows, but a text of each label: whatever is held out, nothing is left to learn from.
    path.write_text("text\tlabel\n" + "a day\tpos\na night\tneg\n" * 15)
    with pytest.raises(Unsupported, match="No label has two different texts"):
        firth.check(path, task="classify", model=run, deep=True)
    rows_with_errors(path)
    with pytest.raises(BadConfig, match="no way 'magic'"):
        firth.check(path, task="classify", model=run, deep=True, deep_by="magic")  # type: ignore[arg-type]


def test_the_number_of_doubtful_labels_is_a_sentence() -> None:
    findings: DeepFindings = {"accuracy": 0.9, "baseline": 0.5, "reliable": True, "noise_rate": 0.1, "errors": []}
    assert describe(findings) == ["Held-out predictions give the label of 90.0% of the rows; no label seems wrong."]
    error: LabelError = {
        "row": 7,
        "text": "a small house",
        "label": "good",
        "suggested": "bad",
        "probability": 0.1,
        "suggested_probability": 0.9,
        "chance": 0.8,
        "neighbours": ["bad", "bad"],
    }
    [first, _] = describe({**findings, "errors": [error]})
    assert first.endswith("; 1 label may be wrong, the most likely first.")
