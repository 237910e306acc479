"""Whole rewriting runs: from nothing, from folders of T5, BART and BERT; seeds, resuming, two files, mistakes."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import firth
from firth import checkpoint as checkpoints
from firth import rng, samples
from firth.checkpoint import Checkpoint
from firth.encoders.bart import Bart
from firth.encoders.gpt import GPT
from firth.encoders.t5 import T5
from firth.errors import BadConfig, BadInput, Unsupported
from firth.files import read_json
from firth.tokenizers.wordpiece import WordPiece

WORDS = {"red": "rot", "cat": "katze", "sees": "sieht", "a": "ein", "house": "haus", "the": "das", "small": "klein"}
TINY = (
    "transformer.width=32",
    "transformer.num_layers=1",
    "transformer.num_heads=2",
    "transformer.ffn_width=64",
    "transformer.vocab_size=320",
    "transformer.dropout=0.0",
    "batch_size=16",
    "beams=2",
)


def sentences(count: int) -> list[tuple[str, str]]:
    """Word for word, backwards: the order has to be learned."""
    words = list(WORDS)
    pairs = []
    for row in range(count):
        length = 2 + int(rng.below(rng.key("rewrite length"), 3, row))
        chosen = [words[int(rng.below(rng.key("rewrite word"), len(words), row, place))] for place in range(length)]
        pairs.append((" ".join(chosen), " ".join(WORDS[word] for word in reversed(chosen))))
    return pairs


def write(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Two parallel files to learn from, and two to be measured on: `train.en` has `train.de` and so on."""
    pairs = sentences(170)
    for name, part in (("train", pairs[:120]), ("dev", pairs[120:])):
        write(tmp_path / f"{name}.en", [source for source, _ in part])
        write(tmp_path / f"{name}.de", [target for _, target in part])
    return tmp_path / "train.en", tmp_path / "dev.en"


@pytest.fixture
def finetune(files: tuple[Path, Path], tmp_path: Path) -> Callable[..., Path]:
    def call(*changes: str, name: str = "run", model: Path | None = None, **options: Any) -> Path:
        settings: dict[str, Any] = {"task": "rewrite", "train": files[0], "dev": files[1], "target_ending": "de"}
        settings |= {"device": "cpu", **options}
        firth.finetune(model, out=tmp_path / name, changes=changes, **settings)
        return tmp_path / name

    return call


def test_from_nothing_to_a_measured_model(finetune: Callable[..., Path], files: tuple[Path, Path]) -> None:
    folder = finetune(*TINY, "epochs=20", "train.optim.rate=3e-3", test=files[1], seeds=2)
    results = read_json(folder / "results.json")
    figures = results["tasks"]["rewrite"]["figures"]
    assert results["seeds"] == [1, 2]
    assert figures["dev"].keys() == {"bleu", "chrf", "rouge1", "rouge2", "rougeL"}
    assert figures["dev"]["bleu"]["mean"] == pytest.approx(figures["test"]["bleu"]["mean"])
    assert figures["dev"]["chrf"]["mean"] > 0.6
    assert figures["dev"]["chrf"]["mean"] > 2 * results["tasks"]["rewrite"]["baseline"]["dev"]["chrf"]
    best = max(row["bleu"] for row in results["tasks"]["rewrite"]["by_seed"]["dev"])
    assert firth.evaluate(folder, data=files[1])["bleu"] == pytest.approx(best, abs=1e-6)
    model = firth.load(folder)
    assert model.info().training["fine_tuned_from"] == "random weights"
    [written] = model.rewrite(["the red cat"])
    assert set(written.text.split()) <= set(WORDS.values())
    assert "bleu" in (folder / "README.md").read_text("utf-8")
    assert "bleu" in (folder / "report.html").read_text("utf-8")


def test_a_stopped_run_resumes_to_the_same_bytes(
    finetune: Callable[..., Path], files: tuple[Path, Path], tmp_path: Path
) -> None:
    settings = (*TINY, "epochs=6", "train.checkpoint_every=3")
    whole = finetune(*settings, name="whole")
    out = tmp_path / "stopped"
    arguments = ["--task", "rewrite", "--train", files[0], "--dev", files[1], "--target-ending", "de", "--out", out]
    command = [sys.executable, "-m", "firth", "finetune", *map(str, arguments), "--device", "cpu", *settings]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not (out / "seed-1/checkpoints/step-3").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    assert not (out / "results.json").exists()
    targets = files[0].with_suffix(".de")
    text = targets.read_text("utf-8")
    targets.write_text(text.replace("rot", "rosa"), "utf-8")
    with pytest.raises(BadInput, match=r"train\.en is not as it was when"):
        firth.finetune(out=out, resume=True, device="cpu")
    targets.write_text(text, "utf-8")
    firth.finetune(out=out, resume=True, device="cpu")
    for name in ("model.safetensors", "seed-1/metrics.jsonl", "results.json", "vocab.json"):
        assert (whole / name).read_bytes() == (out / name).read_bytes(), name


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_from_folders_that_write(
    finetune: Callable[..., Path], kind: str, shrink: Callable[[Any], Any], tokenizer: WordPiece, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    encoder = T5(shrink(T5.Config())) if kind == "t5" else Bart(shrink(Bart.Config()))
    checkpoints.save(tmp_path / "start", Checkpoint(encoder, {}, tokenizer))
    before = firth.evaluate(tmp_path / "start", data=tmp_path / "dev.en", task="rewrite", target_ending="de")
    folder = finetune("epochs=12", "batch_size=8", "train.optim.rate=4e-3", "beams=1", model=tmp_path / "start")
    after = firth.evaluate(folder, data=tmp_path / "dev.en")
    assert after["chrf"] > before["chrf"] + 0.1
    assert read_json(folder / "config.json")["model_type"] == kind


def test_from_a_model_that_only_reads(finetune: Callable[..., Path], run: Path) -> None:
    changes = ("epochs=12", "batch_size=8", "train.optim.rate=5e-3", "beams=1", "decoder_layers=1", "metric=chrf")
    folder = finetune(*changes, model=run)
    model = firth.load(folder)
    assert model.encoder.reads_source
    assert model.encoder.num_decoder_layers == 1
    assert read_json(folder / "results.json")["tasks"]["rewrite"]["figures"]["dev"]["chrf"]["mean"] > 0.15
    assert model.predict(["the red cat"])[0].text


def test_a_model_that_cannot_write(
    finetune: Callable[..., Path], shrink: Callable[[Any], Any], tokenizer: WordPiece, tmp_path: Path, run: Path
) -> None:
    checkpoints.save(tmp_path / "gpt", Checkpoint(GPT(shrink(GPT.Config())), {}, tokenizer))
    with pytest.raises(Unsupported, match="cannot begin with the weights of a gpt"):
        finetune(model=tmp_path / "gpt")
    assert not (tmp_path / "run").exists()
    with pytest.raises(Unsupported, match="reads but cannot write"):
        firth.load(run).rewrite(["a text"])
    with pytest.raises(BadConfig, match="use it with `task='rewrite'`, not tag"):
        firth.finetune(
            task="tag", train=samples.labelled("entities", "en"), out=tmp_path / "x", recipe="transformer", device="cpu"
        )


def test_targets_longer_than_the_positions(finetune: Callable[..., Path], files: tuple[Path, Path]) -> None:
    for ending, text in (("en", "a"), ("de", "haus " * 80)):
        with (files[0].parent / f"train.{ending}").open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
    small = (*TINY, "epochs=1", "transformer.max_positions=64")
    with pytest.raises(BadInput, match=r"train\.en, row 121: a target of \d+ tokens, but the model writes at most 63"):
        finetune(*small)
    folder = finetune(*small, skip_bad=True)
    assert read_json(folder / "results.json")["tasks"]["rewrite"]["rows"]["train"] == 120
    assert read_json(folder / "results.json")["tasks"]["rewrite"]["skipped"]["train"] == 1
