"""The embedded default: texts and labelled sets that the project wrote, and the English that comes with every Python.

In goes a folder, a task or a language; out come plain files that the other rooms read like any user's. The labelled
sets are small on purpose: enough to see each task learn, not enough to publish a score on.
"""

import sysconfig
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from firth.errors import BadConfig, Damaged
from firth.files import write_bytes
from firth.samples.docstrings import standard_library

LANGUAGES = ("en", "zh")
TASKS = {"classify": "tsv", "pairs": "tsv", "entities": "conll", "answers": "json"}
"""Name of each labelled set and the suffix of its files: `classify.en.tsv`, `classify.zh.tsv` ..."""


def corpus(folder: Path, languages: tuple[str, ...] = LANGUAGES) -> list[Path]:
    """Writes the embedded corpus into `folder`: a file a source, a line a paragraph, blank lines between documents."""
    paths = []
    for language in languages:
        path = folder / f"prose.{language}.txt"
        write_bytes(path, prose(language).read_bytes())
        paths.append(path)
    if "en" in languages:
        paths.append(folder / "python.en.txt")
        write_bytes(paths[-1], "\n".join(_python()).encode())
    return sorted(paths)


def documents(language: str = "en") -> Iterator[str]:
    """The documents of the embedded corpus in one language, their paragraphs as lines."""
    yield from prose(language).read_text("utf-8").rstrip("\n").split("\n\n")
    if language == "en":
        yield from (text.rstrip("\n") for text in _python())


def prose(language: str) -> Path:
    """The file of essays that the project wrote in `language`."""
    return _file(f"prose.{_known(language, LANGUAGES, 'language')}.txt")


def labelled(task: str, language: str) -> Path:
    """The file of the labelled set `task`, one of `TASKS`, in `language`."""
    suffix = TASKS[_known(task, tuple(TASKS), "labelled set")]
    return _file(f"{task}.{_known(language, LANGUAGES, 'language')}.{suffix}")


def parted(task: str, language: str, folder: Path) -> tuple[Path, Path]:
    """Writes a labelled set of rows or sentences as two files in `folder`: to train on, and a third of each label or,
    of sentences, every third one to test on."""
    path = labelled(task, language)
    between = "\n" if path.suffix == ".tsv" else "\n\n"
    rows = path.read_text("utf-8").rstrip("\n").split(between)
    opening = [rows.pop(0)] if path.suffix == ".tsv" else []
    order = sorted(rows, key=lambda row: row.split("\t")[-1]) if opening else rows
    parts = {"train": [row for at, row in enumerate(order) if at % 3], "test": order[::3]}
    made = {part: folder / f"{task}.{language}.{part}{path.suffix}" for part in parts}
    for part, chosen in parts.items():
        write_bytes(made[part], between.join([*opening, *chosen, ""]).encode())
    return made["train"], made["test"]


def _python() -> Iterator[str]:
    for _, paragraphs in standard_library(Path(sysconfig.get_path("stdlib"))):
        yield "\n".join(paragraphs) + "\n"


def _known(name: str, names: tuple[str, ...], noun: str) -> str:
    if name not in names:
        raise BadConfig(f"There is no embedded {noun} {name!r}; choose one of {', '.join(names)}.")
    return name


def _file(name: str) -> Path:
    path = Path(str(files(__name__) / name))
    if not path.is_file():
        raise Damaged(f"{path} is missing from the installation; install firth again, unpacked.")
    return path
