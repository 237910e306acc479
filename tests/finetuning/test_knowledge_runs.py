"""A frozen encoder that is given word vectors knows words that its training rows never had."""

import shutil
from pathlib import Path

import pytest

import firth
from firth import rng
from firth.errors import BadConfig, BadInput

LETTERS = "bdfgklmnprstvz"
VOWELS = "aeiou"
TOPICS = {"warm": ("sun", "summer", "heat"), "cold": ("snow", "winter", "ice")}


def words(topic: str) -> list[str]:
    """Sixty made-up words."""
    key = rng.key("word", topic)
    made = []
    for number in range(60):
        draws = [int(rng.below(key, 70, number, place)) for place in range(4)]
        made.append("".join(LETTERS[draw % 14] + VOWELS[draw % 5] for draw in draws))
    return made


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """word2vec on a text in which the words of a topic occur together."""
    folder = tmp_path_factory.mktemp("vectors")
    lines = []
    for topic, companions in TOPICS.items():
        made = words(topic)
        for number in range(1500):
            draws = rng.below(rng.key("line", topic), len(made), number, rng.permutation(rng.key(1), 6))
            lines.append(" ".join([*(made[draw] for draw in draws), companions[number % 3]]))
    (folder / "text.txt").write_text("\n\n".join(lines))
    firth.pretrain(
        folder / "text.txt", out=folder / "run", recipe="word2vec-sg-ns", width=16, epochs=5, min_count=1, threads=1
    )
    return folder / "run"


@pytest.fixture(scope="module")
def encoder(vectors: Path, tmp_path_factory: pytest.TempPathFactory, tiny: tuple[str, ...]) -> Path:
    """A BERT that has hardly seen any text."""
    folder = tmp_path_factory.mktemp("encoder")
    text = vectors.parent / "text.txt"
    firth.prepare([text], out=folder / "data", vocab_size=200, processes=0)
    firth.pretrain(folder / "data", out=folder / "run", recipe="bert", steps=2, changes=tiny, device="cpu")
    return folder / "run"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Which topic a word has; the words of the test rows are in no training row."""
    folder = tmp_path_factory.mktemp("rows")
    parts = {"train": slice(0, 40), "test": slice(40, 60)}
    paths = {}
    for part, which in parts.items():
        lines = [f"it was {word} again\t{topic}" for topic in TOPICS for word in words(topic)[which]]
        paths[part] = folder / f"{part}.tsv"
        paths[part].write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    return paths


def finetune(encoder: Path, rows: dict[str, Path], out: Path, *changes: str) -> float:
    settings = ("transfer.mode=features", "transfer.features.combine=sum", "transfer.features.layers=[-1]")
    firth.finetune(
        encoder,
        task="classify",
        train=rows["train"],
        test=rows["test"],
        out=out,
        changes=(*settings, "tasks.classify.pooling=mean", "epochs=60", "train.optim.rate=1e-2", *changes),
        device="cpu",
    )
    right = 0
    lines = rows["test"].read_text().splitlines()[1:]
    model = firth.load(out)
    for line, found in zip(lines, model.predict([line.split("\t")[0] for line in lines]), strict=True):
        right += found.label == line.split("\t")[1]
    return right / len(lines)


def test_vectors_tell_words_that_were_never_trained(
    encoder: Path, vectors: Path, rows: dict[str, Path], tmp_path: Path
) -> None:
    """The model is loaded from its folder, without that of the vectors."""
    with_vectors = finetune(encoder, rows, tmp_path / "with", f"transfer.features.vectors={vectors}")
    without = finetune(encoder, rows, tmp_path / "without")
    assert with_vectors > 0.9
    assert without < 0.75


def test_what_cannot_be_fused_is_refused(encoder: Path, rows: dict[str, Path], vectors: Path, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="no model of word vectors"):
        finetune(encoder, rows, tmp_path / "a", f"transfer.features.vectors={encoder}")
    with pytest.raises(BadConfig, match=r"vectors goes with transfer\.mode=features"):
        finetune(encoder, rows, tmp_path / "b", f"transfer.features.vectors={vectors}", "transfer.mode=full")


def test_vectors_are_found_in_half_precision_too(
    encoder: Path, vectors: Path, rows: dict[str, Path], tmp_path: Path
) -> None:
    """The hashes of names are 64-bit numbers, which bf16 would round."""
    changes = (f"transfer.features.vectors={vectors}", "train.precision=bf16")
    assert finetune(encoder, rows, tmp_path / "half", *changes) > 0.9


def test_a_resumed_run_needs_the_same_vectors(
    encoder: Path, vectors: Path, rows: dict[str, Path], tmp_path: Path
) -> None:
    copied = tmp_path / "vectors"
    shutil.copytree(vectors, copied)
    out = tmp_path / "run"
    finetune(encoder, rows, out, f"transfer.features.vectors={copied}", "epochs=1")
    (out / "results.json").unlink()
    (copied / "manifest.json").write_text("{}")
    with pytest.raises(BadInput, match=r"vectors \(transfer\.features\.vectors\) is not as it was"):
        firth.finetune(out=out, resume=True, device="cpu")
