"""A small fine-tuned teacher and what methods of compression are run on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import firth
from firth import checkpoint as checkpoints
from firth import compression, samples
from firth.checkpoint import Checkpoint
from firth.compression.method import CompressionJob

CLASSIFY = samples.labelled("classify", "en")
TINY = ("encoder.bert.width=32", "encoder.bert.num_layers=4", "encoder.bert.num_heads=2", "encoder.bert.ffn_width=64")


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 labelled rows."""
    lines = CLASSIFY.read_text("utf-8").splitlines()[:81]
    path = tmp_path_factory.mktemp("rows") / "train.tsv"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@pytest.fixture(scope="session")
def pretrained(data: Path, tiny: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained model of four layers."""
    out = tmp_path_factory.mktemp("pretrained") / "model"
    firth.pretrain(data, out=out, steps=10, changes=(*tiny, *TINY), device="cpu")
    return out


@pytest.fixture(scope="session")
def tuned(pretrained: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, fine-tuned."""
    out = tmp_path_factory.mktemp("tuned") / "model"
    changes = ("epochs=2", "batch_size=16", "train.optim.rate=1e-3", "max_length=32")
    firth.finetune(pretrained, task="classify", train=rows, out=out, changes=changes, device="cpu")
    return out


@pytest.fixture
def job(tuned: Path, rows: Path, tmp_path: Path) -> CompressionJob:
    return CompressionJob(
        model=tuned,
        original=checkpoints.load(tuned),
        task="classify",
        files={"train": rows},
        folder=tmp_path / "work",
    )


Compress = Callable[..., Checkpoint]


@pytest.fixture
def compress(job: CompressionJob) -> Compress:
    """Runs a method by its name; one short epoch unless asked for more."""

    def call(name: str, *, folder: str = "", files: dict[str, Path] | None = None, **settings: Any) -> Checkpoint:
        method = compression.resolve(name)
        given = job
        if folder:
            given = replace(given, folder=job.folder.parent / folder)
        if files is not None:
            given = replace(given, files=files)
        usual = {"epochs": 1.0, "batch_size": 16, "rate": 1e-3}
        return method(method.Config(**{**usual, **settings})).compress(given)

    return call
