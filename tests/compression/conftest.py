"""Small fine-tuned models and rows, shared by the tests of compression."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import firth
from firth import checkpoint as checkpoints
from firth import samples
from firth.compression.job_rows import read_rows
from firth.compression.method import CompressionJob


@pytest.fixture(scope="session")
def rows() -> Path:
    return samples.labelled("classify", "en")


@pytest.fixture(scope="session")
def tuned(run: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT that was fine-tuned to classify."""
    out = tmp_path_factory.mktemp("tuned") / "model"
    firth.finetune(run, task="classify", train=rows, out=out, changes=["epochs=2"], device="cpu")
    return out


@pytest.fixture
def job(tuned: Path, rows: Path) -> CompressionJob:
    """What a method works with, made from the fine-tuned model."""
    original = checkpoints.load(tuned)
    read = read_rows(original, tuned, data=rows, train=None, task="", skip_bad=False, learns=True, seed=1)
    return CompressionJob(tuned, original, read.task, read.examples, read.files)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate times each model once and draws few samples: a test never asserts a time."""
    monkeypatch.setattr("firth.compression.gate.ROUNDS", 1)
    monkeypatch.setattr("firth.compression.gate.SEARCH_ROUNDS", 1)
    monkeypatch.setattr("firth.compression.gate.BATCH_TEXTS", 8)
    monkeypatch.setattr("firth.compression.gate.WARM_UP_TEXTS", 2)
    monkeypatch.setattr("firth.compression.gate.SINGLE_TEXTS", 2)
    monkeypatch.setattr("firth.compression.gate.FEWEST_RESAMPLES", 20)
    monkeypatch.setattr("firth.compression.gate.RESAMPLED_ROWS", 0)


@pytest.fixture
def compress(tuned: Path, rows: Path, tmp_path: Path, quick: None) -> Callable[..., Any]:
    """Compresses the fine-tuned model into `tmp_path / "small"`; returns the figures."""

    def run_method(by: str, *changes: str, **options: Any) -> Any:
        return firth.compress(tuned, by=by, data=rows, out=tmp_path / "small", changes=changes, **options)

    return run_method
