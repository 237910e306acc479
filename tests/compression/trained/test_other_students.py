"""Students without attention, and students that copy vectors."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import firth
from firth import checkpoint as checkpoints
from firth import compression
from firth.checkpoint import Checkpoint
from firth.compression.method import CompressionJob
from firth.compression.vectors import TARGET, VectorCopy, _with_place_of_cls
from firth.convert.sentence_transformers import Embedding
from firth.convert.vector_head import VectorHead
from firth.data.packing import pack_tokens
from firth.errors import BadConfig, BadInput, Unsupported
from firth.tensors import States

Compress = Callable[..., Checkpoint]


@pytest.mark.parametrize("kind", ["bilstm", "bag"])
def test_a_student_without_attention(compress: Compress, kind: str, tmp_path: Path, job: CompressionJob) -> None:
    small = compress("bilstm", kind=kind, cell_width=8)
    assert small.encoder.width == {"bilstm": 16, "bag": 32}[kind]
    checkpoints.save(tmp_path / "saved", small)
    model = firth.load(tmp_path / "saved")
    assert model.predict(["A fine text."])[0].label in job.head.labels["label"]
    assert '"soft_labels":' in (tmp_path / "work" / "run" / "seed-1" / "metrics.jsonl").read_text()


def test_its_embedding_is_the_teachers(job: CompressionJob) -> None:
    method = compression.resolve("bilstm")
    student = method(method.Config(cell_width=4)).student(job)  # type: ignore[attr-defined,call-arg]
    table = job.original.encoder.state_dict()["embeddings.tokens.weight"]
    assert torch.equal(student.encoder.tokens.weight, table)
    with pytest.raises(BadConfig, match="leave out the others"):
        method.Config(num_layers=2)  # type: ignore[call-arg]


@pytest.fixture
def copy(pretrained: Path, tmp_path: Path) -> Compress:
    def call(lines: list[str], *, folder: str = "copy", task: str = "", **settings: object) -> Checkpoint:
        text = tmp_path / "lines.txt"
        text.write_text("\n".join(lines) + "\n", "utf-8")
        method = compression.resolve("vectors")
        job = CompressionJob(
            model=pretrained,
            original=checkpoints.load(pretrained),
            task=task,
            files={"train": text},
            folder=tmp_path / folder,
        )
        return method(method.Config(**{"batch_size": 8, "rate": 1e-3, **settings})).compress(job)

    return call


LINES = [f"A sentence with the number {number} in it." for number in range(40)]


def cosines(small: Checkpoint, pretrained: Path, texts: list[str], folder: Path) -> np.ndarray:
    checkpoints.save(folder, small)
    own, wanted = firth.load(folder).embed(texts), firth.load(pretrained).embed(texts)
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    return np.asarray((own * wanted).sum(1))


def test_the_distance_of_vectors() -> None:
    batch = pack_tokens([np.array([1, 2]), np.array([3])])
    taught = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    batch.targets[TARGET] = taught  # type: ignore[index]
    states = torch.tensor([[1.0, 1.0], [0.0, 1.0], [3.0, 4.0]])
    loss = VectorCopy(Embedding("mean")).loss(States(states, states), batch)
    wanted = (0.25 + 1.0) + (9.0 + 4.0)
    assert float(loss.sums["vectors"]) == pytest.approx(wanted / 2.5)
    normal = VectorCopy(Embedding("cls", normalise=True)).loss(States(states, states), batch)
    first = (1 - 2**-0.5) ** 2 + 0.5
    second = 0.6**2 + 1.2**2
    assert float(normal.sums["vectors"]) == pytest.approx((first + second) / 2.5)


def test_the_classification_token_of_a_student_may_be_its_last(pretrained: Path) -> None:
    student = checkpoints.load(pretrained)
    embedding = Embedding("cls+mean", normalise=True)
    assert _with_place_of_cls(embedding, student) == embedding
    student.encoder.cls_last = True
    assert _with_place_of_cls(embedding, student) == Embedding("last+mean", normalise=True)


def test_the_precision_of_copying_is_that_of_the_settings(copy: Compress) -> None:
    usual, exact, rounded = (
        copy(LINES, folder=name, epochs=1.0, **settings)
        for name, settings in (("usual", {}), ("fp32", {"precision": "fp32"}), ("bf16", {"precision": "bf16"}))
    )
    for name, weights in usual.encoder.state_dict().items():
        assert torch.equal(weights, exact.encoder.state_dict()[name])
    table = "embeddings.tokens.weight"
    assert not torch.equal(rounded.encoder.state_dict()[table], exact.encoder.state_dict()[table])


def test_a_student_learns_where_vectors_lie(copy: Compress, pretrained: Path, tmp_path: Path) -> None:
    before = copy(LINES, folder="before", epochs=0.01, rate=1e-9)
    after = copy(LINES, folder="after", epochs=12.0)
    start = cosines(before, pretrained, LINES[:10], tmp_path / "one").mean()
    assert cosines(after, pretrained, LINES[:10], tmp_path / "two").mean() > start
    assert after.encoder.num_layers == 2


def test_translations_are_drawn_to_the_first_text(copy: Compress, pretrained: Path, tmp_path: Path) -> None:
    pairs = [f"{line}\t第{number}句在这里。" for number, line in enumerate(LINES)]
    small = copy(pairs, epochs=12.0)
    texts, translations = zip(*(pair.split("\t") for pair in pairs), strict=True)
    checkpoints.save(tmp_path / "saved", small)
    own = firth.load(tmp_path / "saved").embed(list(translations))
    wanted = firth.load(pretrained).embed(list(texts))
    own_before = firth.load(pretrained).embed(list(translations))
    assert np.linalg.norm(own - wanted) < 0.5 * np.linalg.norm(own_before - wanted)


def test_a_stopped_copy_ends_with_the_same_bytes(copy: Compress, tmp_path: Path) -> None:
    whole = copy(LINES, folder="whole", epochs=4.0)
    copy(LINES, folder="again", epochs=4.0)
    states = sorted((tmp_path / "again" / "run" / "checkpoints").iterdir(), key=lambda path: int(path.name[5:]))
    assert len(states) == 2
    for file in states[1].iterdir():
        file.unlink()
    states[1].rmdir()
    again = copy(LINES, folder="again", epochs=4.0)
    for name, tensor in whole.encoder.state_dict().items():
        assert torch.equal(again.encoder.state_dict()[name], tensor)


def test_mistakes(copy: Compress) -> None:
    with pytest.raises(Unsupported, match="fine-tuned for classify"):
        copy(LINES, task="classify")
    with pytest.raises(BadInput, match="has no text"):
        copy(["", " "])
    with pytest.raises(BadConfig, match="width 32"):
        copy(LINES, random=True, width=16)


def test_vectors_that_are_more_than_pooled_states_are_not_copied(pretrained: Path, tmp_path: Path) -> None:
    text = tmp_path / "lines.txt"
    text.write_text("\n".join(LINES) + "\n", "utf-8")
    original = checkpoints.load(pretrained)
    width = original.encoder.width
    num_tokens = len(original.tokenizer.vocab)
    head = VectorHead(
        np.ones(num_tokens, np.float32),
        np.eye(width, dtype=np.float32),
        np.zeros(width, np.float32),
        np.ones(8, np.float32),
    )
    method = compression.resolve("vectors")
    with_head = replace(original, vector_head=head)
    job = CompressionJob(model=pretrained, original=with_head, files={"train": text}, folder=tmp_path / "copy")
    with pytest.raises(Unsupported, match="come from its vector head"):
        method(method.Config()).compress(job)
