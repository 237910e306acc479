"""The embedded corpus: its size, its form, the same twice, and read without importing what it reads."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from firth import samples
from firth.errors import BadConfig
from firth.samples.docstrings import prose, standard_library

CHINESE = re.compile(r"[\u4e00-\u9fff]")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return samples.corpus(tmp_path_factory.mktemp("corpus"))


def test_corpus_is_large_enough_and_has_a_file_a_source(written: list[Path]) -> None:
    assert [path.name for path in written] == ["prose.en.txt", "prose.zh.txt", "python.en.txt"]
    assert 1_500_000 < sum(path.stat().st_size for path in written) < 4_000_000


def test_paragraphs_are_single_lines_without_markup(written: list[Path]) -> None:
    for path in written:
        lines = path.read_text("utf-8").split("\n")
        assert lines[-1] == ""
        assert all(line == line.strip() for line in lines)
        assert not any(first == second == "" for first, second in pairwise(lines))
    text = written[-1].read_text("utf-8")
    lines = [line for line in text.split("\n") if line]
    assert not any(line.startswith((">>>", "...", "* ", ".. ")) for line in lines)
    assert not any(mark in text for mark in (":class:`", ":func:`", "----", "===="))
    assert len(set(lines)) == len(lines)


def test_a_second_reading_gives_the_same_documents(written: list[Path]) -> None:
    english = "\n".join(path.read_text("utf-8") for path in written if path.name.endswith("en.txt"))
    assert "\n\n".join(samples.documents("en")) + "\n" == english


def test_corpus_of_one_language(tmp_path: Path) -> None:
    (path,) = samples.corpus(tmp_path, ("zh",))
    assert path.read_bytes() == samples.prose("zh").read_bytes()


def test_reading_imports_nothing_of_what_it_reads() -> None:
    script = (
        "import sys, ast, inspect, sysconfig\n"
        "from firth import samples\n"
        "samples.prose('en'), sysconfig.get_path('stdlib')\n"  # what finding the files needs
        "before = set(sys.modules)\n"
        "count = sum(1 for _ in samples.documents())\n"
        "assert count > 300, count\n"
        "print([name for name in set(sys.modules) - before if not name.startswith('encodings.')])\n"
        "assert not {'torch', 'numpy', 'this', 'turtle', 'pydoc_data.topics'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


@pytest.mark.parametrize(("language", "least", "most"), [("en", 25_000, 40_000), ("zh", 20_000, 30_000)])
def test_prose_has_pages_enough(language: str, least: int, most: int) -> None:
    text = samples.prose(language).read_text("utf-8")
    essays = list(samples.documents("zh")) if language == "zh" else text.rstrip("\n").split("\n\n")
    assert least <= len(text.encode()) <= most
    assert len(essays) >= 20
    assert all(len(essay.split("\n")) >= 3 for essay in essays)
    share = len(CHINESE.findall(text)) / len(text)
    assert share > 0.8 if language == "zh" else share == 0
    lines = [line for line in text.split("\n") if line]
    assert len(set(lines)) == len(lines)


def test_prose_of_a_docstring_leaves_out_what_is_not_text() -> None:
    docstring = """\
    Return the *largest* item of ``values``, as
    :func:`max` does [1]_.

    Title of a part
    ===============

    * The first item is kept as a paragraph
      of its own.
    * So is the second one.

    >>> largest([1, 2])
    2

    width      an integer
    height     another integer

    --verbose prints a good deal more

    Anchor, background, bitmap, border, cursor, font

    for value in values:
        print(value)
    """
    assert list(prose(docstring)) == [
        "Return the largest item of values, as max does.",
        "The first item is kept as a paragraph of its own.",
        "So is the second one.",
    ]


def test_standard_library_skips_tests_packages_and_what_does_not_parse(tmp_path: Path) -> None:
    texts = {
        "b.py": '"""The module b says one thing."""\nclass C:\n    """A class comes second here."""\n',
        "a.py": 'def f():\n  """The module b says one thing."""\n  def g():\n    """Inner functions speak too."""\n',
        "broken.py": '"""This module has a fault."""\ndef (:\n',
        "test/t.py": '"""A test speaks of other things."""\n',
        "site-packages/p.py": '"""A package belongs to somebody else."""\n',
        "pydoc_data/topics.py": "topics = {'z': 'The last topic is explained here.\\n', 'y': 'x = 1\\n'}\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert list(standard_library(tmp_path)) == [
        ("a.py", ["The module b says one thing.", "Inner functions speak too."]),
        ("b.py", ["A class comes second here."]),
        ("pydoc_data/topics.py:z", ["The last topic is explained here."]),
    ]


def test_an_unknown_language_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"'fr'.*en, zh"):
        samples.corpus(tmp_path, ("fr",))
