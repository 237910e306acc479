"""The page of a fine-tuning run says how good the model is, against what, and where it fails."""

from typing import Any

import pytest

from firth.report.finetuning import render


@pytest.fixture
def summary() -> dict[str, Any]:
    figures = {"accuracy": {"mean": 0.9, "deviation": 0.01}, "matthews": {"mean": 0.8, "deviation": 0.02}}
    row = {
        "main": "accuracy",
        "picked_on": "dev",
        "figures": {"dev": figures},
        "baseline": {"dev": {"accuracy": 0.5, "matthews": float("nan")}},
        "rows": {"train": 100, "dev": 20},
        "skipped": {"train": 3, "dev": 0},
        "details_of": "dev",
        "confusion": {"labels": ["bad", "good"], "counts": [[9, 1], [1, 9]]},
        "per_label": [["bad", 0.9, 0.9, 0.9, 10], ["good", 0.9, 0.9, 0.9, 10]],
        "mistakes": [{"row": 7, "text": "<b>odd</b>", "gold": "bad", "predicted": "good", "error": 0.98}],
        "data": {"train": "a" * 64},
    }
    tasks = {"classify": row}
    return {"model": "m", "random": False, "seeds": [1, 2], "kept_seed": 2, "kept_epoch": 3.0, "tasks": tasks}


LOGS = {
    seed: [
        {"step": 1, "split": "train", "classify": 0.7, "rate": 1e-4},
        {"step": 2, "split": "train", "classify": 0.4, "rate": 1e-4},
        {"step": 2, "split": "held-out", "picked": 0.9, "accuracy": 0.9},
    ]
    for seed in (1, 2)
}


def test_the_page_has_figures_baseline_mistakes_and_hashes(summary: dict[str, Any]) -> None:
    page = render(summary, LOGS)
    for wanted in (
        "accuracy 0.9000 ± 0.0100 on dev (used for picking), better than 0.5000",
        "3 bad rows were skipped",
        "seed 2, epoch 3",
        "&lt;b&gt;odd&lt;/b&gt;",
        "a" * 64,
        "a test file would be fairer",
    ):
        assert wanted in page
    assert "<b>odd</b>" not in page


def test_what_is_undefined_is_not_drawn_as_zero(summary: dict[str, Any]) -> None:
    rows = [
        {"step": 1, "split": "train", "classify": 0.75},
        {"step": 2, "split": "train", "classify": None},
        {"step": 1, "split": "held-out", "picked": 0.5},
        {"step": 2, "split": "held-out", "picked": None},
    ]
    page = render(summary, {1: rows})
    assert "<title>1: 0.75</title>" in page
    assert "<title>1: 0.5</title>" in page
    assert "<title>2: 0</title>" not in page


def test_the_rows_of_every_task_are_counted(summary: dict[str, Any]) -> None:
    assert "Train rows" in render(summary, LOGS)
    task = summary["tasks"]["classify"]
    summary["tasks"]["classify-2"] = {**task, "rows": {"train": 77, "dev": 9}}
    page = render(summary, LOGS)
    assert "<dt>Classify, train rows</dt><dd>100</dd>" in page
    assert "<dt>Classify-2, train rows</dt><dd>77</dd>" in page


def test_a_single_bad_row_is_named_in_the_singular(summary: dict[str, Any]) -> None:
    summary["tasks"]["classify"]["skipped"] = {"train": 1}
    assert "1 bad row was skipped" in render(summary, LOGS)


def test_a_model_that_learned_nothing_is_not_praised(summary: dict[str, Any]) -> None:
    summary["tasks"]["classify"]["figures"]["dev"]["accuracy"] = {"mean": 0.5, "deviation": None}
    summary["seeds"] = [1]
    page = render(summary, LOGS)
    assert "no better than 0.5000" in page
    assert "verdict warn" in page
    assert "no deviation is known" in page
