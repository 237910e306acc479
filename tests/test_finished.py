"""A finished run that is resumed says the same sentence, whatever its kind, and gives its figures again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import firth
from firth import samples
from firth.errors import BadConfig, BadInput
from firth.lock import Lock
from firth.run_folder import LOCK


def pretrained(run: Path, data: Path, out: Path) -> Callable[..., Any]:
    changes = ["encoder.bert.num_layers=1", "encoder.bert.width=32", "encoder.bert.num_heads=2"]
    changes += ["batches.max_length=32", "batches.tokens=256", "batches.held_out_rate=0.2"]
    firth.pretrain(data, out=out, steps=2, changes=changes)
    return lambda **options: firth.pretrain(data, out=out, resume=True, **options)


def solved(run: Path, data: Path, out: Path) -> Callable[..., Any]:
    firth.pretrain(samples.prose("en"), out=out, recipe="word2vec-sg-ns", epochs=1, width=8, min_count=2, threads=1)
    return lambda **options: firth.pretrain(samples.prose("en"), out=out, resume=True, **options)


def finetuned(run: Path, data: Path, out: Path) -> Callable[..., Any]:
    rows = samples.labelled("classify", "en")
    firth.finetune(run, task="classify", train=rows, out=out, changes=["epochs=1"], device="cpu")
    return lambda **options: firth.finetune(out=out, resume=True, device="cpu", **options)


def fasttext(run: Path, data: Path, out: Path) -> Callable[..., Any]:
    firth.finetune(task="classify", train=samples.labelled("classify", "zh"), recipe="fasttext", out=out)
    return lambda **options: firth.finetune(out=out, resume=True, **options)


@pytest.mark.parametrize("begin", [pretrained, solved, finetuned, fasttext], ids=lambda begin: begin.__name__)
def test_one_sentence_everywhere(
    begin: Callable[..., Callable[..., Any]],
    run: Path,
    data: Path,
    tmp_path: Path,
    messages: Callable[[], str],
) -> None:
    out = tmp_path / "run"
    resume = begin(run, data, out)
    messages()
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.safetensors")}
    figures = resume()
    said = messages()
    assert said.splitlines()[0] == f"{out} is finished, so nothing is left to resume: its figures are given again."
    assert figures
    assert resume() == figures
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.safetensors")} == before
    with pytest.raises(BadConfig, match=r"run\.toml says"):
        resume(changes=["train.seed=9"])
    other_process = Lock(out / LOCK)
    other_process.acquire()
    with pytest.raises(BadInput, match=f"Another process is working on {out}"):
        resume()
    other_process.release(keep_file=False)
    assert resume() == figures
    assert not (out / LOCK).exists()
    assert "Pre-trained: " in (page := (out / "report.html").read_text("utf-8")) or "Fine-tuned: " in page


def test_other_data_is_still_refused(tmp_path: Path, data: Path) -> None:
    resume = solved(tmp_path, data, tmp_path / "run")
    assert isinstance(resume()["words"], int)
    with pytest.raises(BadInput, match="other data"):
        firth.pretrain(data, out=tmp_path / "run", resume=True)
