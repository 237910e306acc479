"""The gate and the command around it: what is measured, what is printed, how it exits. No time is ever asserted."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.compression import compressing
from firth.compression.gate import Comparison, Gate, Measured, Speed, Subject, bootstrap, kept_share
from firth.compression.strength_search import Trial, Wanted
from firth.compression.table import lines, searched_sentence
from firth.convert.vector_head import ContextPart, VectorHead
from firth.errors import BadConfig, BadInput, Unsupported
from firth.inference.model import Model
from firth.types import Example

Command = Callable[..., Any]


def measured(name: str, *, size: int = 100, speed: float = 10.0, score: float = 0.8) -> Measured:
    return Measured(name, 5, size, Speed(speed, speed), score)


def compared(*, size: int, speedup: float, score: float = 0.8) -> Comparison:
    small = measured("small", size=size, speed=10 * speedup, score=score)
    return Comparison("accuracy", 9, measured("original"), small, Speed(speedup, speedup), low=-0.1, high=0.1)


@pytest.mark.parametrize(
    ("size", "speedup", "verdict"),
    [
        (50, 2.0, "smaller and faster"),
        (50, 0.5, "smaller but slower"),
        (50, 1.02, "smaller and as fast"),
        (50, 1.08, "smaller and as fast"),
        (100, 2.0, "not smaller but faster"),
        (100, 0.5, "not smaller and slower"),
    ],
)
def test_the_verdict(size: int, speedup: float, verdict: str) -> None:
    comparison = compared(size=size, speedup=speedup, score=0.6)
    assert comparison.verdict == verdict
    shown = "\n".join(lines(comparison))
    assert f"The model is {verdict}: " in shown
    assert "It keeps 0.7500 of the score: accuracy -0.2000 (95 % interval -0.1000 to +0.1000, 9 rows)." in shown


def test_a_difference_that_rounds_to_zero_has_no_minus() -> None:
    comparison = replace(compared(size=50, speedup=2.0, score=0.79999), low=-0.00002, high=-0.0)
    assert "accuracy +0.0000 (95 % interval +0.0000 to +0.0000, 9 rows)" in "\n".join(lines(comparison))


def test_shares_of_scores_that_are_not_above_zero() -> None:
    assert kept_share(0.5, 1.0) == 0.5
    assert kept_share(0.1, -0.2) == 1.0
    assert kept_share(-0.3, -0.2) == 0.0


def test_the_interval_is_that_of_the_mean() -> None:
    values = np.where(np.arange(400) < 100, 1.0, 0.0)
    low, high = bootstrap(400, lambda rows: float(values[rows].mean()))
    # The deviation of this mean is 0.0217, and 95 % lie within 1.96 of them.
    assert low == pytest.approx(0.25 - 1.96 * 0.0217, abs=0.01)
    assert high == pytest.approx(0.25 + 1.96 * 0.0217, abs=0.01)
    assert bootstrap(400, lambda rows: float(values[rows].mean())) == (low, high)
    assert np.isnan(bootstrap(3, lambda rows: float("nan"))).all()


def test_scores_of_the_same_rows(tuned: Path, rows: Path, job: Any, quick: None) -> None:
    model = Model(job.original)
    examples = job.examples["data"]
    gate = Gate(Subject(model, tuned, job.task), examples)
    same = gate.compare(Subject(model, tuned, job.task), "same")
    assert (same.difference, same.low, same.high) == (0, 0, 0)
    gold = [example.gold for example in examples]
    predicted = [prediction.label for prediction in model.predict_examples(examples)]
    assert same.original.score == np.mean([one == other for one, other in zip(gold, predicted, strict=True)])
    # A model whose scores have the other sign is wrong where this one is right.
    [head] = job.original.tasks.values()
    other_head = checkpoints.make_head("classify", head.config, job.original.encoder, labels=head.labels)
    other_head.load_state_dict({name: -tensor for name, tensor in head.state_dict().items()})
    wrong = Model(replace(job.original, tasks={"classify": other_head}))
    opposite = gate.compare(Subject(wrong, tuned, job.task), "opposite")
    assert opposite.compressed.score == pytest.approx(1 - same.original.score)
    assert opposite.low <= opposite.difference <= opposite.high


def test_without_a_task_vectors_are_compared(run: Path, tmp_path: Path, quick: None) -> None:
    text = tmp_path / "text.txt"
    text.write_text("One text.\nAnother text, which is longer.\n")
    figures = firth.compress(run, by="weights", data=text, out=tmp_path / "small", changes=["bits=4"])
    assert figures["metric"] == "cosine"
    assert figures["original"]["score"] == 1
    assert 0.9 < figures["compressed"]["score"] < 1
    vectors = [firth.load(folder).embed(["One text."])[0] for folder in (run, tmp_path / "small")]
    cosine = np.dot(*vectors) / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1])
    assert figures["interval"][0] <= cosine - 1 + 1e-5  # a batch and a single text differ in the last digits
    examples = [Example(("One text.",))]
    narrow = Subject(Model(checkpoints.load(tmp_path / "small")), tmp_path / "small")
    gate = Gate(Subject(Model(checkpoints.load(run)), run), examples)
    gate.vectors_ED = gate.vectors_ED[:, :5]
    with pytest.raises(Unsupported, match="The vectors have 32 numbers and the original's 5"):
        gate.try_out(narrow)


def plain_head(original: Checkpoint) -> VectorHead:
    """A head that adds up the token embeddings as they are, with eight signs each."""
    width = original.encoder.width
    return VectorHead(
        np.ones(len(original.tokenizer.vocab), np.float32),
        np.eye(width, dtype=np.float32),
        np.zeros(width, np.float32),
        np.ones(8, np.float32),
    )


def test_a_vector_head_does_not_hide_what_became_of_the_encoder(run: Path, tmp_path: Path, quick: None) -> None:
    """A head without a context part reads the input embedding alone, so its vectors are the same whatever is done to
    the blocks."""
    original = checkpoints.load(run)
    checkpoints.save(tmp_path / "model", replace(original, vector_head=plain_head(original)))
    text = tmp_path / "text.txt"
    text.write_text("One text.\nAnother text, which is longer.\n")
    figures = firth.compress(
        tmp_path / "model", by="layers", data=text, out=tmp_path / "small", changes=["num_layers=1"]
    )
    assert figures["compressed"]["score"] < 0.9999
    # With other tokens the head does not fit any more; states can still be compared.
    figures = firth.compress(
        tmp_path / "model", by="vocabulary", data=text, vocabulary_from=[text], out=tmp_path / "fewer"
    )
    assert figures["compressed"]["score"] == pytest.approx(1.0)


def test_what_a_vector_head_projects_goes_with_its_encoder(run: Path, tmp_path: Path, quick: None) -> None:
    original = checkpoints.load(run)
    width = original.encoder.width
    context = ContextPart(np.eye(width, dtype=np.float32), np.zeros(width, np.float32), 0.5)
    head = replace(plain_head(original), context=context)
    checkpoints.save(tmp_path / "model", replace(original, vector_head=head))
    text = tmp_path / "text.txt"
    text.write_text("One text.\nAnother text, which is longer.\n")
    firth.compress(tmp_path / "model", by="layers", data=text, out=tmp_path / "low", changes=["num_layers=1"])
    firth.compress(tmp_path / "model", by="weights", data=text, out=tmp_path / "rounded", changes=["bits=8"])
    low = checkpoints.load(tmp_path / "low").vector_head
    rounded = checkpoints.load(tmp_path / "rounded").vector_head
    assert low is not None
    assert low.context is None
    assert rounded is not None
    assert rounded.context is not None


def by_size(gate: Gate, subject: Subject) -> Trial:
    """Parameters in place of speed, and a score that falls with them."""
    share = subject.parameters / gate.original.parameters
    return Trial(kept=share, speedup=1 / share)


def test_the_search_finds_a_strength(
    tuned: Path, rows: Path, command: Command, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gate, "try_out", by_size)
    monkeypatch.setattr(Comparison, "trial", property(lambda self: Trial(1.0, 1.0)))
    arguments = ("compress", tuned, "--by", "ffn", "--data", rows, "multiple=1", "--json")
    done = command(*arguments, "--out", tmp_path / "small", "--keep", 0.95)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    shares = []
    for remove in (found["settings"]["remove"], found["settings"]["remove"] + 1 / 16):
        figures = firth.compress(
            tuned, by="ffn", data=rows, out=tmp_path / f"with-{remove}", changes=[f"remove={remove}", "multiple=1"]
        )
        shares.append(figures["compressed"]["parameters"] / figures["original"]["parameters"])
    # The strongest one that keeps enough, not one more.
    assert shares[0] >= 0.95 > shares[1]
    done = command(*arguments, "--out", tmp_path / "fast", "--faster", 100)
    assert done.code == 3
    assert json.loads(done.out)["reached"] is False
    assert json.loads(done.out)["settings"]["remove"] == 15 / 16
    assert firth.load(tmp_path / "fast").predict(["a text"])
    card = (tmp_path / "fast" / "README.md").read_text()
    assert "No strength was found on these rows with at least 100 times the speed; this is the best one." in card


def test_what_the_search_says() -> None:
    both = searched_sentence(Wanted(keep=0.99, faster=1.5), reached=True)
    asked = "at least 0.99 of the score and at least 1.5 times the speed"
    assert both == f"The strength was chosen on these rows for {asked}."


def test_what_is_printed(tuned: Path, rows: Path, command: Command, quick: None, tmp_path: Path) -> None:
    done = command("compress", tuned, "num_layers=1", "--by", "layers", "--data", rows, "--out", tmp_path / "small")
    assert done.code == 0, done.err
    header, original, small, sentence, score = done.out.splitlines()
    assert header.split("  ")[0] == "model"
    assert original.startswith("original ")
    assert small.startswith("layers ")
    assert sentence.startswith("The model is smaller ")
    assert score.startswith("It keeps ")


def test_rows_are_halved_only_where_a_method_looks_at_them(job: Any, tuned: Path, rows: Path) -> None:
    learned = {example.texts for example in job.examples["train"]}
    measured_texts = {example.texts for example in job.examples["data"]}
    assert not learned & measured_texts
    whole = compressing.read_rows(
        job.original, tuned, data=rows, train=None, task="", skip_bad=False, learns=False, seed=1
    )
    assert len(whole.examples["data"]) == len(job.examples["data"]) + len(job.examples["train"])
    given = compressing.read_rows(
        job.original, tuned, data=rows, train=rows, task="", skip_bad=False, learns=True, seed=1
    )
    assert len(given.examples["data"]) == len(given.examples["train"]) == len(whole.examples["data"])


def test_mistakes(run: Path, tuned: Path, rows: Path, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for arguments, says in (
        ((tuned, "--by", "layer", "--data", rows), "There is no method named 'layer'; did you mean 'layers'?"),
        ((tuned, "--by", "layers", "--data", tmp_path / "none"), f"{tmp_path / 'none'} does not exist."),
        ((tuned, "--by", "layers", "--data", rows, "layers=2"), "'layers' is not a known key"),
        ((tuned, "--by", "layers", "--data", rows, "num_layers=9"), "has 2 layers; num_layers=9 is more."),
        ((tuned, "--by", "layers", "--data", rows, "--keep", 2), "--keep is a share of the score"),
        ((tuned, "--by", "layers", "--data", rows, "--resume"), "leave out --resume."),
        ((tuned, "--by", "heads", "--data", rows, "remove=1"), "remove must be at least 0 and below 1; it is 1"),
        ((tuned, "--by", "weights", "--data", rows, "bits=9"), "bits must be 2 to 8; it is 9."),
        ((tuned, "--by", "heads", "--data", rows, "--task", "tag"), "has no task 'tag'; it has classify."),
        ((run, "--by", "heads", "--data", rows), "is not fine-tuned for a task, which this method needs."),
        ((tmp_path / "none", "--by", "layers", "--data", rows), "none is not a folder with a model"),
    ):
        done = command("compress", *arguments, "--out", out)
        assert done.code == 2, done.err
        assert says in done.err
        assert done.err.startswith(("firth: ", "Warning: "))
        assert not out.exists()
        assert not list(tmp_path.glob(".*"))
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    with pytest.raises(BadInput, match="has no text; put one text on each line"):
        firth.compress(run, by="layers", data=empty, out=out)
    few = tmp_path / "few.tsv"
    few.write_text("\n".join(rows.read_text("utf-8").splitlines()[:3]) + "\n")
    with pytest.raises(BadConfig, match=r"too few rows to learn from one half .* give `train=`, too"):
        firth.compress(tuned, by="heads", data=few, out=out)
    with pytest.raises(BadInput, match="already exists"):
        firth.compress(tuned, by="layers", data=rows, out=tmp_path)


def test_models_without_blocks(rows: Path, tmp_path: Path, quick: None) -> None:
    firth.finetune(task="classify", train=rows, out=tmp_path / "bag", recipe="fasttext")
    for method in ("layers", "heads", "ffn", "low-rank", "share", "int8"):
        with pytest.raises(Unsupported, match="has no Transformer blocks, which this method changes"):
            firth.compress(tmp_path / "bag", by=method, data=rows, out=tmp_path / "out")
    figures = firth.compress(tmp_path / "bag", by="weights", data=rows, out=tmp_path / "out")
    assert figures["compressed"]["disk_bytes"] < figures["original"]["disk_bytes"]
