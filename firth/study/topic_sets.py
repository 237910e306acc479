"""Texts with one label each: SST-2 and THUCNews titles, or the embedded reviews, as tables that `classify` reads."""

from pathlib import Path

from firth.study import sets
from firth.study.sets import Sources

HEADER = "text\tlabel"
TEST_ROWS = 400
NAMES = {"public": {"en": "sst-2", "zh": "thucnews"}, "embedded": {"en": "classify-en", "zh": "classify-zh"}}
"""The sets by language."""


def set_names(sources: Sources) -> dict[str, str]:
    return NAMES[sources.origin]


def training_rows(sources: Sources, language: str, count: int, *, seed: int) -> Path:
    """A table of `count` rows, sampled with the seed."""
    name = set_names(sources)[language]
    path = sources.folder / "topics" / f"{name}.{count}.{seed}.tsv"
    if not path.exists():
        rows = sets.shuffled(_rows(sources, language, "train"), seed=seed)
        sets.write_rows(path, [HEADER, *rows[:count]])
    return path


def test_rows(sources: Sources, language: str) -> Path:
    """The rows to test on, the same for all."""
    name = set_names(sources)[language]
    path = sources.folder / "topics" / f"{name}.test.tsv"
    if not path.exists():
        rows = sets.shuffled(_rows(sources, language, "test"))
        sets.write_rows(path, [HEADER, *rows[:TEST_ROWS]])
    return path


def _rows(sources: Sources, language: str, part: str) -> list[str]:
    """Rows of a text and its label."""
    if sources.data is None:
        train, test = sources.labelled(f"classify-{language}")
        return sets.read_rows(train if part == "train" else test)[1:]
    if language == "zh":
        name = "train_mikky_subset" if part == "train" else "test"
        return sets.read_rows(sources.public("zh/thucnews_titles", f"thucnews_titles/{name}.txt"))
    if part == "test":
        return sets.read_rows(sources.public("en/glue", "SST-2/dev.tsv"))[1:]
    rows = []
    for line in sets.read_rows(sources.public("en/glue", "SST-2/train.tsv"))[1:]:
        # In the training file, the label comes first.
        label, _, text = line.partition("\t")
        rows.append(f"{text}\t{label}")
    return rows
