"""Distillation by soft labels: the loss, the cache of what teachers say, students of all kinds, resuming, mistakes."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import firth
from firth import checkpoint as checkpoints
from firth import samples
from firth.checkpoint import Checkpoint
from firth.compression import resolve, row_cache
from firth.compression.distil import UNLABELLED, DistilConfig
from firth.compression.lesson import Compared
from firth.compression.method import CompressionJob
from firth.compression.row_cache import RowCache
from firth.compression.soft_labels import TARGET, SoftLabels
from firth.compression.teacher import Teacher, row_scores
from firth.cpu import this_cpu
from firth.errors import BadConfig, BadInput, FirthError, Unsupported
from firth.finetuning import labelled
from firth.tasks.predicting import outputs_of
from firth.tensors import Batch, States
from firth.train.parallel import Precision
from firth.types import Example

Compress = Callable[..., Checkpoint]


def digest(folder: Path) -> str:
    """Of all weights of a model folder."""
    parts = [path.read_bytes() for path in sorted(folder.glob("*.safetensors"))]
    assert parts
    return hashlib.sha256(b"".join(parts)).hexdigest()


def compared(scores: torch.Tensor, taught: torch.Tensor) -> Compared:
    nothing = torch.zeros(1)
    batch = Batch(nothing, nothing, nothing, torch.tensor([0, 1]), 1, targets={TARGET: taught})
    return Compared(batch, States(nothing, nothing), scores, None)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_soft_labels_against_the_formula(job: CompressionJob, temperature: float) -> None:
    term = SoftLabels(job.head, temperature=temperature, weight=1.0)  # type: ignore[arg-type]
    num_labels = len(job.head.labels["label"])
    scores, taught = torch.randn(5, num_labels), torch.randn(5, 2, num_labels)
    loss = term(compared(scores, taught))
    total = 0.0
    for row in range(5):
        p = np.mean([np.exp(t / temperature) / np.exp(t / temperature).sum() for t in taught[row].numpy()], 0)
        s = np.exp(scores[row].numpy() / temperature)
        q = s / s.sum()
        total += temperature**2 * float((p * np.log(p / q)).sum())
    assert float(loss) == pytest.approx(total, rel=1e-4)
    same = term(compared(taught[:, 0], taught[:, :1]))
    assert float(same) == pytest.approx(0.0, abs=1e-5)


def test_soft_labels_of_numbers_and_of_many_names(job: CompressionJob) -> None:
    term = SoftLabels(job.head, temperature=2.0, weight=1.0)  # type: ignore[arg-type]
    scores, taught = torch.randn(4, 3), torch.randn(4, 1, 3)
    term.kind = "number"
    assert float(term(compared(scores, taught))) == pytest.approx(float((scores - taught[:, 0]).square().sum()))
    term.kind = "many"
    p, q = torch.sigmoid(taught[:, 0] / 2), torch.sigmoid(scores / 2)
    wanted = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean(1).sum() * 4
    assert float(term(compared(scores, taught))) == pytest.approx(float(wanted), rel=1e-4)


def test_a_stopped_cache_is_continued_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "BLOCK", 4)
    asked: list[int] = []

    def compute(rows: range) -> np.ndarray:
        asked.append(rows.start)
        if asked == [0, 4, 8] and not (tmp_path / "fresh").exists():
            raise InterruptedError
        return np.array(rows, np.float32)[:, None] * np.array([1.0, 0.5], np.float32)

    def cache(name: str, fingerprint: str = "a") -> RowCache:
        return RowCache(tmp_path / name, fingerprint=fingerprint, shape=(10, 2))

    with pytest.raises(InterruptedError):
        cache("stopped").filled(compute)
    continued = cache("stopped").filled(compute)
    assert asked == [0, 4, 8, 8]
    fresh = cache("fresh").filled(compute)
    assert continued.tobytes() == fresh.tobytes()
    assert (tmp_path / "stopped" / "rows.bin").read_bytes() == (tmp_path / "fresh" / "rows.bin").read_bytes()
    asked.clear()
    cache("fresh").filled(compute)
    assert asked == []
    cache("fresh", "another teacher").filled(compute)
    assert asked[0] == 0


def test_cached_scores_are_the_teachers(job: CompressionJob, tmp_path: Path) -> None:
    teacher = Teacher.of(job.model, job.original)
    loaded = checkpoints.load(job.model)
    rows = labelled.read("classify", job.head.config, {"data": job.files["train"]}, labels=job.head.labels)
    examples = rows.examples["data"]
    scores = row_scores([teacher, teacher], "classify", job.head.labels, examples, folder=tmp_path / "cache")
    again = row_scores([teacher, teacher], "classify", job.head.labels, examples, folder=tmp_path / "cache")
    assert scores.shape == (80, 2, len(job.head.labels["label"]))
    assert scores.tobytes() == again.tobytes()
    head = loaded.tasks["classify"]
    items = head.encode(examples[:1], loaded.tokenizer, max_length=32, training=False)
    with torch.inference_mode():
        batch = head.batch(items)
        alone = head.outputs(loaded.encoder(batch), batch)[0]
    np.testing.assert_allclose(scores[0, 0], alone, atol=1e-5)


def test_a_teacher_in_bf16_says_nearly_the_same_and_fp32_the_same_as_ever(job: CompressionJob, tmp_path: Path) -> None:
    teacher = Teacher.of(job.model, job.original)
    rows = labelled.read("classify", job.head.config, {"data": job.files["train"]}, labels=job.head.labels)
    examples = rows.examples["data"]

    def scores(folder: str, precision: Precision) -> np.ndarray:
        arguments = ([teacher], "classify", job.head.labels, examples)
        # A copy, because a folder's file is written again.
        return np.array(row_scores(*arguments, folder=tmp_path / folder, precision=precision))

    exact = scores("exact", "fp32")
    rounded = scores("rounded", "bf16")
    assert rounded.dtype == np.float32
    assert 0 < np.abs(rounded - exact).max() < 0.02 * np.ptp(exact)
    # In a folder that holds the scores of the other precision, all are computed anew, to the bytes of a fresh one.
    assert scores("exact", "bf16").tobytes() == rounded.tobytes()
    assert scores("exact", "fp32").tobytes() == exact.tobytes()
    assert teacher.row_encoder("fp32") is teacher.encoder
    head = job.original.tasks["classify"]
    items = head.encode(examples, job.original.tokenizer, max_length=teacher.max_length, training=False)
    outputs = [np.mean(windows, 0) for windows in outputs_of(teacher.encoder, head, items)]
    np.testing.assert_array_equal(exact[:, 0], np.stack(outputs))


@pytest.mark.parametrize(
    ("precision", "cpu", "expected"),
    [("auto", "native", "native"), ("auto", "avx2", "fp32"), ("fp32", "native", "fp32"), ("bf16", "avx2", "bf16")],
)
def test_the_teacher_computes_in_the_precision_of_the_run(
    precision: str, cpu: str, expected: str, job: CompressionJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRTH_CPU", cpu)
    if expected == "native":
        expected = "bf16" if this_cpu().trains_in_bf16 else "fp32"
    method = resolve("distil")(DistilConfig(precision=precision))  # type: ignore[arg-type]
    extension = method.extension(job)  # type: ignore[attr-defined]
    rows = labelled.read("classify", job.head.config, {"data": job.files["train"]}, labels=job.head.labels)
    examples = rows.examples["data"]
    said = extension._teacher_scores(job.head.labels, examples, "said")
    arguments = ([extension.teacher], "classify", job.head.labels, examples)
    wanted = row_scores(*arguments, folder=tmp_path / "wanted", precision=expected)  # type: ignore[arg-type]
    assert said.tobytes() == wanted.tobytes()


def test_the_student_is_smaller_and_the_cache_changes_no_byte(
    job: CompressionJob, compress: Compress, tmp_path: Path
) -> None:
    small = compress("distil", folder="one", num_layers=2)
    assert small.encoder.num_layers == 2
    kept = (tmp_path / "one" / "teacher" / "rows.bin").stat().st_mtime_ns
    # A second run finds the cache of the first; a third has none.
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "teacher").rename(tmp_path / "two" / "teacher")
    compress("distil", folder="two", num_layers=2)
    assert (tmp_path / "two" / "teacher" / "rows.bin").stat().st_mtime_ns == kept
    compress("distil", folder="three", num_layers=2)
    assert digest(tmp_path / "one" / "run") == digest(tmp_path / "two" / "run") == digest(tmp_path / "three" / "run")


def test_the_teacher_changes_what_is_learned(compress: Compress, tmp_path: Path) -> None:
    compress("distil", folder="with", num_layers=2)
    compress("distil", folder="without", num_layers=2, soft_weight=0.0)
    assert digest(tmp_path / "with" / "run") != digest(tmp_path / "without" / "run")


def test_a_student_of_random_weights_and_another_width(compress: Compress) -> None:
    small = compress("distil", num_layers=1, random=True, width=16)
    assert small.encoder.width == 16
    assert small.encoder.num_layers == 1


def test_another_model_as_student_may_have_another_tokenizer(compress: Compress, run: Path) -> None:
    small = compress("distil", student=str(run))
    assert small.encoder.num_layers == 2


@pytest.mark.parametrize("method", ["distil", "tinybert"])
def test_texts_without_labels_are_labelled_by_the_teacher(
    job: CompressionJob, compress: Compress, rows: Path, tmp_path: Path, method: str
) -> None:
    later = samples.labelled("classify", "en").read_text("utf-8").splitlines()[81:121]
    texts = [line.split("\t")[0] for line in later]
    known = [line.split("\t")[0] for line in rows.read_text("utf-8").splitlines()[1:]]
    file = tmp_path / "texts.txt"
    file.write_text("\n".join([*texts, known[0], "", texts[0]]) + "\n", "utf-8")
    compress(method, folder="with", num_layers=1, unlabelled=str(file))
    compress(method, folder="without", num_layers=1)
    assert digest(tmp_path / "with" / "run") != digest(tmp_path / "without" / "run")
    # A known row and a text that is there twice are not read again.
    scores = np.fromfile(tmp_path / "with" / UNLABELLED / "rows.bin", np.float32)
    names = job.head.labels["label"]
    scores_ET = scores.reshape(len(set(texts)), len(names))
    answers = firth.load(job.model).predict(list(dict.fromkeys(texts)))
    assert [names[best] for best in scores_ET.argmax(1)] == [answer.label for answer in answers]


def test_unlabelled_texts_must_be_new(job: CompressionJob, compress: Compress, rows: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.txt does not exist or is not a file"):
        firth.compress(
            job.model,
            by="distil",
            data=rows,
            train=rows,
            changes=[f"unlabelled={tmp_path / 'none.txt'}"],
            out=tmp_path / "out",
        )
    assert not (tmp_path / "out").exists()
    known = [line.split("\t")[0] for line in rows.read_text("utf-8").splitlines()[1:]]
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(known) + "\n", "utf-8")
    examples = [Example((text,), None, row) for row, text in enumerate(known)]
    with_examples = replace(job, examples={"train": examples})
    with pytest.raises(BadInput, match="are in the labelled files, too"):
        resolve("distil")(DistilConfig(unlabelled=str(file))).compress(with_examples)
    job.head.config = replace(job.head.config, kind="number")  # type: ignore[call-arg]
    with pytest.raises(BadConfig, match="models that choose one label for a single text"):
        compress("distil", unlabelled=str(file))


def test_mistakes_are_one_sentence(job: CompressionJob, compress: Compress, rows: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.tsv"
    empty.write_text(rows.read_text("utf-8").splitlines()[0] + "\n", "utf-8")

    def refused(error: type[FirthError], words: str, **settings: object) -> None:
        with pytest.raises(error) as raised:
            compress("distil", **settings)
        assert words in str(raised.value)
        assert "\n" not in str(raised.value)

    refused(BadConfig, "needs labelled rows", files={})
    refused(BadInput, "no row", files={"train": empty})
    refused(BadConfig, "4 layers", num_layers=9)
    refused(BadConfig, "random weights", width=16)
    refused(BadConfig, "temperature", temperature=0.0)
    job.head.config = replace(job.head.config, head="tree")  # type: ignore[call-arg]
    refused(Unsupported, "classify with a linear head")
