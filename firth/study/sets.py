"""The texts and labelled sets that studies use, as files in the study's folder."""

import hashlib
from pathlib import Path

from firth import models, samples
from firth.files import write_bytes

FOLDS = 5
"""Parts of a set that is scored without training; they take the place of seeds."""


def corpus(folder: Path) -> tuple[Path, ...]:
    """The raw text, in both languages."""
    return tuple(samples.corpus(folder / "text"))


def labelled(folder: Path, name: str) -> tuple[Path, Path]:
    """The training and the test file of a set such as `classify-en`."""
    task, _, language = name.rpartition("-")
    return samples.split_train_test(task, language, folder / "labelled")


def share_of_sentences(train: Path, share: float) -> Path:
    """A file with this share of the sentences of a tagged file, the first ones."""
    sentences = train.read_text("utf-8").rstrip("\n").split("\n\n")
    count = max(1, round(share * len(sentences)))
    path = train.with_name(f"{train.stem}.{count}{train.suffix}")
    write_bytes(path, ("\n\n".join(sentences[:count]) + "\n").encode())
    return path


def folds_of_pairs(folder: Path, language: str) -> list[Path]:
    """The embedded pairs in parts; a pair's part depends on its text alone."""
    lines = samples.labelled("pairs", language).read_text("utf-8").splitlines()
    header = lines[0]
    rows = sorted(lines[1:], key=lambda row: hashlib.sha256(row.encode()).digest())
    paths = []
    for fold in range(FOLDS):
        path = folder / "pairs" / f"pairs.{language}.{fold + 1}.tsv"
        part = rows[fold::FOLDS]
        write_bytes(path, "\n".join([header, *part, ""]).encode())
        paths.append(path)
    return paths


def shipped_weights(name: str) -> tuple[Path, ...]:
    """The weights of a model that comes with firth: a run that uses the model depends on them."""
    return tuple(sorted(models.find(name).glob("*.safetensors")))
