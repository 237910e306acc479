"""Label errors: confident learning finds flipped labels, folds never split a text, the command shows the evidence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth import rng
from firth.errors import BadConfig, Unsupported
from firth.trust.label_errors import suspicious
from firth.trust.linear import fit, folds_of, held_out_probabilities, softmax

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


def test_suspicious_rows_are_those_of_confident_learning() -> None:
    # The mean probability of rows labelled 0 for label 0 is 0.683, of rows labelled 1 for label 1 it is 0.6.
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.35, 0.65], [0.1, 0.9], [0.45, 0.55], [0.65, 0.35]])
    labels = np.array([0, 0, 0, 1, 1, 1])
    thresholds = [2.05 / 3, 0.6]
    expected = []
    for row, (probability, label) in enumerate(zip(probabilities, labels, strict=True)):
        other = 1 - label
        if probability[other] >= thresholds[other] and probability[other] > probability[label]:
            expected.append((row, other))
    assert suspicious(probabilities, labels) == expected == [(2, 1)]


def test_the_most_suspicious_come_first() -> None:
    probabilities = np.array([[0.9, 0.1], [0.95, 0.05], [0.05, 0.95], [0.2, 0.8], [0.1, 0.9], [0.85, 0.15]])
    labels = np.array([0, 0, 0, 0, 1, 1])
    assert [row for row, _ in suspicious(probabilities, labels)] == [2, 5, 3]


def test_agrees_with_cleanlab_on_random_probabilities() -> None:
    filter_module = pytest.importorskip(
        "cleanlab.filter", reason="cleanlab is not installed (pip install 'firth[bench]')"
    )
    key = rng.key("label errors")
    gold = rng.below(key, 3, np.arange(400), 0)
    scores = np.stack([rng.below(key, 1000, np.arange(400), 1 + column) / 250 for column in range(3)], 1)
    scores[np.arange(400), gold] += 4
    labels = gold.copy()
    labels[::20] = (labels[::20] + 1) % 3
    probabilities = softmax(scores)
    theirs = filter_module.find_label_issues(labels, probabilities, filter_by="confident_learning", n_jobs=1)
    ours = {row for row, _ in suspicious(probabilities, labels)}
    assert ours
    assert ours == set(np.flatnonzero(theirs).tolist())


def test_texts_that_occur_twice_are_in_one_fold() -> None:
    groups = [number // 2 for number in range(60)]
    folds = folds_of(list(groups), count=5, seed=3)
    assert (folds[::2] == folds[1::2]).all()
    assert np.bincount(folds).tolist() == [12] * 5
    assert (folds != folds_of(list(groups), count=5, seed=4)).any()


def test_the_regression_is_scikit_learns() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    key = rng.key("regression")
    vectors = np.stack([rng.below(key, 1000, np.arange(200), column) / 500 - 1 for column in range(4)], 1)
    labels = (vectors[:, 0] - vectors[:, 1] + 0.3 * vectors[:, 2] > 0).astype(int) + (vectors[:, 3] > 0.5)
    penalty = 0.02
    ours = softmax(vectors @ fit(vectors, labels, num_labels=3, penalty=penalty))
    theirs = linear_model.LogisticRegression(C=1 / (penalty * 200), fit_intercept=False, max_iter=1000)
    np.testing.assert_allclose(ours, theirs.fit(vectors, labels).predict_proba(vectors), atol=2e-3)


def test_held_out_probabilities_do_not_see_their_row() -> None:
    key = rng.key("held out")
    vectors = np.stack([rng.below(key, 1000, np.arange(60), column) / 500 - 1 for column in range(8)], 1)
    labels = (vectors[:, 0] > 0).astype(int)
    folds = folds_of(list(range(60)), count=5, seed=1)
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
        assert f"row {first['row']}: {first['label']} " in shown
        assert "labels are probably wrong" in shown
    else:
        assert 0 <= deep["accuracy"] <= 1
        assert all(error["label"] != error["suggested"] for error in deep["errors"])


def test_what_cannot_be_checked_is_refused(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("text\tlabel\n" + "a day\tpos\na night\tneg\n" * 4)
    with pytest.raises(Unsupported, match="8 rows are too few"):
        firth.check(path, task="classify", model=run, deep=True)
    rows_with_errors(path)
    with pytest.raises(BadConfig, match="no way 'magic'"):
        firth.check(path, task="classify", model=run, deep=True, deep_by="magic")  # type: ignore[arg-type]
