"""The embedded data: texts and labelled sets written for this project, and the English text of the Python library.

In: a folder, a task or a language; out: plain files in the formats that users give. The labelled sets are small on
purpose: enough to see each task learn, not enough to publish a score on.
"""

import sysconfig
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from firth.errors import BadConfig, Damaged
from firth.files import write_bytes
from firth.samples.docstrings import standard_library

LANGUAGES = ("en", "zh")
TASKS = {"topics": "tsv", "classify": "tsv", "pairs": "tsv", "entities": "conll", "answers": "json"}
"""Name of each labelled set and the suffix of its files: `classify.en.tsv`, `classify.zh.tsv` ..."""


def corpus(folder: Path, languages: tuple[str, ...] = LANGUAGES) -> list[Path]:
    """Writes the embedded corpus into `folder` and returns the paths.

    Each source is a file, each line a paragraph, and blank lines separate documents.
    """
    paths = []
    for language in languages:
        path = folder / f"prose.{language}.txt"
        write_bytes(path, prose(language).read_bytes())
        paths.append(path)
    if "en" in languages:
        path = folder / "python.en.txt"
        text = "\n".join(_python_documents())
        write_bytes(path, text.encode())
        paths.append(path)
    return sorted(paths)


def documents(language: str = "en") -> Iterator[str]:
    """The documents of the embedded corpus in one language, their paragraphs as lines."""
    text = prose(language).read_text("utf-8")
    yield from text.rstrip("\n").split("\n\n")
    if language == "en":
        for document in _python_documents():
            yield document.rstrip("\n")


def prose(language: str) -> Path:
    """The file of essays in `language` that were written for this project."""
    _check_known(language, LANGUAGES, "language")
    return _file(f"prose.{language}.txt")


def senses(word: str) -> Path:
    """The file of sentences with a word of two senses: first all of the one sense, then all of the other."""
    return _file(f"senses/{word}.txt")


def labelled(task: str, language: str) -> Path:
    """The file of the labelled set `task`, one of `TASKS`, in `language`."""
    _check_known(task, tuple(TASKS), "labelled set")
    _check_known(language, LANGUAGES, "language")
    return _file(f"{task}.{language}.{TASKS[task]}")


def split_train_test(task: str, language: str, folder: Path) -> tuple[Path, Path]:
    """Splits a labelled set into a training and a test file in `folder`.

    A third is for testing: of a table a third of each label, of sentences every third one.
    """
    path = labelled(task, language)
    is_table = path.suffix == ".tsv"
    separator = "\n" if is_table else "\n\n"
    rows = path.read_text("utf-8").rstrip("\n").split(separator)
    header = []
    if is_table:
        header = [rows.pop(0)]
        rows.sort(key=_label)  # then every third row is a third of each label
    # Settings of the demo were chosen with the rows 0, 3, 6 ...; these stay training rows.
    test_rows = rows[1::3]
    train_rows = [row for i, row in enumerate(rows) if i % 3 != 1]
    train_path = folder / f"{task}.{language}.train{path.suffix}"
    test_path = folder / f"{task}.{language}.test{path.suffix}"
    write_bytes(train_path, separator.join([*header, *train_rows, ""]).encode())
    write_bytes(test_path, separator.join([*header, *test_rows, ""]).encode())
    return train_path, test_path


def _label(row: str) -> str:
    return row.split("\t")[-1]


def _python_documents() -> Iterator[str]:
    """The English text of Python's standard library, a document at a time."""
    folder = Path(sysconfig.get_path("stdlib"))
    for _, paragraphs in standard_library(folder):
        yield "\n".join(paragraphs) + "\n"


def _check_known(name: str, names: tuple[str, ...], noun: str) -> None:
    if name not in names:
        raise BadConfig(f"There is no embedded {noun} {name!r}; choose one of {', '.join(names)}.")


def _file(name: str) -> Path:
    path = Path(str(files(__name__) / name))
    if not path.is_file():
        raise Damaged(f"{path} is missing from the installation; install firth again, unpacked.")
    return path
