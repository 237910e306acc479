"""A method that trains works in a run folder: it is resumed where it stopped, and refuses other numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import firth
from firth import checkpoint as checkpoints
from firth import compression
from firth.checkpoint import Checkpoint
from firth.compression.method import CompressionJob, Method, MethodConfig
from firth.compression.structure import with_layers
from firth.compression.vocabulary import PruneVocabulary
from firth.errors import BadConfig, BadInput, Interrupted
from firth.files import check_manifest, read_json, write_json
from firth.run_folder import RunFolder
from firth.run_source import CompressionSource, read_source

STATE = "state.json"


class Learned(Method):
    """Stands for a method that trains: it counts steps in its folder, and stops once when it is told to."""

    name = "learned"
    trains = True
    stop_at = 0
    calls: list[str] = []

    @dataclass(frozen=True)
    class Config(MethodConfig):
        steps: int = 3
        num_layers: int = 1

    config: Config

    @classmethod
    def strengths(cls, original: Checkpoint, config: Config) -> Sequence[Config]:
        return [replace(config, num_layers=count) for count in (2, 1, 1)]

    @property
    def described(self) -> str:
        return f"{self.config.num_layers} layers"

    def compress(self, job: CompressionJob) -> Checkpoint:
        assert job.run is not None
        assert job.examples["train"]
        state = job.folder / STATE
        done = read_json(state)["steps"] if state.exists() else 0
        for step in range(done, self.config.steps):
            self.calls.append(f"{job.folder.name}, step {step}")
            write_json(state, {"steps": step + 1})
            if Learned.stop_at == len(self.calls):
                raise Interrupted("Stopped.", number=2)
        return with_layers(job.original, list(range(self.config.num_layers)))


@pytest.fixture(autouse=True)
def learned(monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    monkeypatch.setattr(Learned, "stop_at", 0)
    monkeypatch.setattr(Learned, "calls", [])
    monkeypatch.setattr(compression, "resolve", lambda name: Learned)


def learn(tuned: Path, rows: Path, out: Path, **options: Any) -> Any:
    return firth.compress(tuned, by="learned", data=rows, train=rows, out=out, **options)


def test_a_run_is_resumed_where_it_stopped(tuned: Path, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    Learned.stop_at = 2
    with pytest.raises(Interrupted, match=r"Stopped\. Continue with `resume=True`\."):
        learn(tuned, rows, out)
    assert RunFolder.state(out) == "stopped"
    with pytest.raises(BadInput, match="continue it with `resume=True`"):
        learn(tuned, rows, out)
    with pytest.raises(BadConfig, match="give the same model, files and options again"):
        learn(tuned, rows, out, resume=True, changes=["steps=4"])
    with pytest.raises(BadConfig, match="give the same model, files and options again"):
        learn(tuned, rows, out, resume=True, keep=0.9)
    figures = learn(tuned, rows, out, resume=True)
    assert Learned.calls == [f"strength-0, step {step}" for step in range(3)]
    assert RunFolder.state(out) == "finished"
    check_manifest(out)
    assert firth.load(out).encoder.num_layers == 1
    assert figures["card"] in (out / "README.md").read_text()
    assert not (out / "strength-0" / "model").exists()
    source = read_source(out)
    assert isinstance(source, CompressionSource)
    assert source.files["train"].path == str(rows)
    # Nothing is left to do, so the figures are given again.
    again = learn(tuned, rows, out, resume=True)
    assert again == read_json(out / "results.json")
    assert len(Learned.calls) == 3


def test_texts_of_a_vocabulary_must_not_change_either(
    tuned: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"learned": Learned, "vocabulary": PruneVocabulary}
    monkeypatch.setattr(compression, "resolve", known.__getitem__)
    text = tmp_path / "text.txt"
    text.write_text("a good film\n")
    options = {"then": ["vocabulary"], "vocabulary_from": text}
    Learned.stop_at = 1
    with pytest.raises(Interrupted):
        learn(tuned, rows, tmp_path / "out", **options)
    text.write_text("a bad film\n")
    with pytest.raises(BadConfig, match="give the same model, files and options again"):
        learn(tuned, rows, tmp_path / "out", resume=True, **options)


def test_a_search_does_not_repeat_finished_strengths(tuned: Path, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    Learned.stop_at = 5  # in the second strength
    with pytest.raises(Interrupted):
        learn(tuned, rows, out, keep=1.0, faster=100.0)
    learn(tuned, rows, out, keep=1.0, faster=100.0, resume=True)
    assert len(Learned.calls) == 6
    assert len(set(Learned.calls)) == 6


def test_rows_to_learn_from_are_needed(tuned: Path, rows: Path, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"learned learns from labelled rows; give them with `train=`\."):
        firth.compress(tuned, by="learned", data=rows, out=tmp_path / "out")
    with pytest.raises(BadInput, match="does not exist"):
        firth.compress(tuned, by="learned", data=rows, train=tmp_path / "none", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_changed_original_is_refused(tuned: Path, rows: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    firth.export(tuned, out=model, kind="huggingface")
    Learned.stop_at = 1
    with pytest.raises(Interrupted):
        learn(model, rows, tmp_path / "out")
    checkpoints.save(model, firth.load(tuned).checkpoint)
    (model / "manifest.json").write_text((model / "manifest.json").read_text() + " ")
    with pytest.raises(BadInput, match="is not as it was when"):
        learn(model, rows, tmp_path / "out", resume=True)
