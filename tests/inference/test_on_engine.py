"""An engine predicts as one process does, with the same warnings."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import firth
from firth import samples
from firth.engines.engine import InProcess
from firth.inference import on_engine


@pytest.fixture
def kept_threads() -> Iterator[None]:
    """A worker computes with one thread; the number of this process is restored."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_an_engine_warns_about_inputs_as_one_process_does(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, kept_threads: None
) -> None:
    out = tmp_path / "classifier"
    firth.finetune(run, task="classify", train=samples.labelled("classify", "en"), out=out, changes=["epochs=1"])
    model = firth.load(out)
    # Runes, which the model does not know.
    examples = model.examples(["ᚠᚢᚦᚨᚱᚲ ᚷᚹᚺ ᚾᛁᛃ", "ᛏᛒᛖ ᛗᛚ ᛜ"])
    caplog.set_level(logging.WARNING, logger="firth")
    caplog.clear()
    alone = model.predict_examples(examples)
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings
    caplog.clear()
    by_engine = on_engine.predict(InProcess(), model, examples)
    assert [record.getMessage() for record in caplog.records] == warnings
    assert [found.label for found in by_engine] == [found.label for found in alone]
