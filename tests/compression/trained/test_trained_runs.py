"""Whole compressions with training by the command: killed at random and resumed, refused, and their folders."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import firth
from firth.errors import BadConfig
from firth.files import read_json

SETTINGS = ("epochs=6", "batch_size=16", "rate=1e-3", "num_layers=2")


def weights(folder: Path) -> list[bytes]:
    files = sorted(folder.glob("*.safetensors"))
    assert files
    return [path.read_bytes() for path in files]


@pytest.mark.parametrize(("method", "settings"), [("tinybert", ()), ("theseus", ("first_probability=0.5",))])
def test_a_run_killed_at_random_ends_with_the_same_bytes(
    tuned: Path, rows: Path, tmp_path: Path, quick: None, method: str, settings: tuple[str, ...]
) -> None:
    whole = tmp_path / "whole"
    changes = (*SETTINGS, *settings)
    firth.compress(tuned, by=method, data=rows, train=rows, out=whole, changes=changes, device="cpu")
    killed = tmp_path / "killed"
    options = ["--by", method, "--data", rows, "--train", rows, "--out", killed, "--device", "cpu"]
    command = [sys.executable, "-m", "firth", "compress", tuned, *changes, *options]
    process = subprocess.Popen([str(part) for part in command], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    states = killed / "strength-0" / "run" / "seed-1" / "checkpoints"
    for _ in range(1200):
        if states.is_dir() and any(states.iterdir()):
            break
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(random.Random(os.getpid()).random() * 0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "results.json").exists()
    firth.compress(tuned, by=method, data=rows, train=rows, out=killed, changes=changes, device="cpu", resume=True)
    assert weights(killed) == weights(whole)
    assert (
        read_json(killed / "results.json")["compressed"]["score"]
        == read_json(whole / "results.json")["compressed"]["score"]
    )


def figures_of(card: str) -> list[str]:
    """The rows of a card that have figures of its fine-tuning."""
    rows = [line for line in card.splitlines() if line.startswith("| held-out training rows")]
    assert rows
    return rows


def test_what_the_folder_holds(tuned: Path, rows: Path, tmp_path: Path, quick: None) -> None:
    out = tmp_path / "small"
    firth.compress(tuned, by="distil", data=rows, train=rows, out=out, changes=("epochs=1", "num_layers=1"))
    model = firth.load(out)
    assert model.checkpoint.encoder.num_layers == 1
    assert model.predict(["A fine text."])[0].label in model.checkpoint.tasks["classify"].labels["label"]
    card = (out / "README.md").read_text("utf-8")
    own, _, original = card.partition("## The original\n")
    assert "## Compressed by distil" in own
    # Each figure is where it belongs: what the student's run measured, and what the teacher's did.
    assert "1 layers" in own.partition("## The compressed model\n")[2]
    assert "4 layers" in original
    assert figures_of(original) == figures_of((tuned / "README.md").read_text("utf-8"))
    with pytest.raises(BadConfig, match="firth compress"):
        firth.finetune(out=out / "strength-0" / "run", resume=True)


def test_rows_to_learn_from_are_asked_for(tuned: Path, rows: Path, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="train="):
        firth.compress(tuned, by="pkd", data=rows, out=tmp_path / "small")


def test_other_numbers_are_refused(tuned: Path, rows: Path, tmp_path: Path, quick: None) -> None:
    out = tmp_path / "small"
    firth.compress(tuned, by="distil", data=rows, train=rows, out=out, changes=("epochs=1", "num_layers=1"))
    with pytest.raises(BadConfig, match="same model, files and options"):
        firth.compress(
            tuned, by="distil", data=rows, train=rows, out=out, changes=("epochs=2", "num_layers=1"), resume=True
        )


def test_a_search_over_depths_trains_once(tuned: Path, rows: Path, tmp_path: Path, quick: None) -> None:
    out = tmp_path / "small"
    changes = ("epochs=1", "batch_size=16")
    summary = firth.compress(tuned, by="layerdrop", data=rows, train=rows, keep=0.01, out=out, changes=changes)
    assert summary["reached"]
    assert len(list(out.glob("**/run.toml"))) == 2  # of the compression and of its only training run
    assert firth.load(out).checkpoint.encoder.num_layers == summary["settings"]["num_layers"] == 1


def test_a_compression_is_resumed_from_any_folder(
    tuned: Path, rows: Path, tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"by": "distil", "data": rows, "train": rows, "device": "cpu"}
    monkeypatch.chdir(tuned.parent)
    summary = firth.compress(tuned.name, out=tmp_path / "out", changes=("epochs=1", "num_layers=1"), **settings)
    monkeypatch.chdir(tmp_path)
    again = firth.compress(tuned, out="out", changes=("epochs=1", "num_layers=1"), resume=True, **settings)
    assert again == summary
