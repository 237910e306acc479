"""Texts with their languages: `en=FILE` is text in one language, `en+de=...` are pairs of a text and its translation.

In: paths as a user gives them. Out: sources, and the documents of a source with their languages. Pairs are two files
with a comma between them, in which each line has its translation in the same line of the other, or one file whose lines
are two columns with a tab between them. A path without a language is text as ever.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from firth import remote
from firth.corpus.readers import Documents, Paths, expected_bytes, find_files, read_documents, text_lines
from firth.errors import BadConfig, BadInput
from firth.types import Document

MAX_LANGUAGES = 256
"""A language is one byte of prepared text."""
_NAMED = re.compile(r"([A-Za-z][\w-]*)(?:\+([A-Za-z][\w-]*))?=(.+)", re.ASCII)


@dataclass(frozen=True)
class TextSource:
    """Files of one language, or of pairs of two."""

    files: tuple[Path, ...]
    languages: tuple[str, ...] = ()

    @property
    def is_parallel(self) -> bool:
        return len(self.languages) == 2

    def expected_bytes(self) -> int:
        """An estimate of how much text it holds."""
        return expected_bytes(self.files)

    def bytes_in(self, language: str) -> int:
        """An estimate of its text in one language; the columns of a table are taken as equally long."""
        if language not in self.languages:
            return 0
        if not self.is_parallel:
            return self.expected_bytes()
        if len(self.files) == 1:
            return self.expected_bytes() // 2
        return expected_bytes([self.files[self.languages.index(language)]])


def find_sources(paths: Paths, *, tally: Counter[str] | None = None) -> list[TextSource]:
    """The sources that paths name; raises if only some of them have a language."""
    if isinstance(paths, str | Path):
        paths = [paths]
    named: list[TextSource] = []
    plain: list[str | Path] = []
    for path in paths:
        found = _NAMED.fullmatch(str(path))
        if found is None or (not remote.is_remote(found[3]) and Path(path).exists()):
            plain.append(path)
        elif found[2]:
            named.append(_parallel(found[1], found[2], found[3]))
        else:
            files = find_files(found[3], tally=tally)
            named.append(TextSource(tuple(files), (found[1],)))
    if not named:
        files = find_files(plain, tally=tally)
        return [TextSource(tuple(files))]
    if plain:
        raise BadConfig(f"{plain[0]} has no language, but other texts have; write it as LANGUAGE={plain[0]}.")
    if len(language_names(named)) > MAX_LANGUAGES:
        raise BadConfig(f"There are more than {MAX_LANGUAGES} languages; prepare fewer.")
    return named


def _parallel(first: str, second: str, paths: str) -> TextSource:
    """Pairs in two files, or in one of two columns."""
    if first == second:
        raise BadConfig(f"{first}+{second}={paths}: a text and its translation need two languages.")
    is_one_file = not remote.is_remote(paths) and Path(paths).exists()
    names = [paths] if is_one_file else paths.split(",")
    if len(names) > 2:
        raise BadConfig(f"{first}+{second}={paths}: name one file of two columns, or two files and a comma.")
    files = []
    for name in names:
        file_exists = remote.is_file if remote.is_remote(name) else os.path.isfile
        if not file_exists(name):
            raise BadInput(f"{name} does not exist or is not a file; check the path.")
        files.append(Path(name))
    return TextSource(tuple(files), (first, second))


def language_names(sources: Iterable[TextSource]) -> tuple[str, ...]:
    """All languages, in the order in which they first occur."""
    names: dict[str, None] = {}  # an ordered set
    for source in sources:
        names.update(dict.fromkeys(source.languages))
    return tuple(names)


def read_sources(
    sources: Iterable[TextSource],
    *,
    documents: Documents,
    field: str,
    tally: Counter[str] | None = None,
) -> Iterator[Document]:
    """The documents of all sources, in order, with their languages; each pair is a document of two lines."""
    if tally is None:
        tally = Counter()
    for source in sources:
        if source.is_parallel:
            yield from _read_pairs(source, tally)
            continue
        for document in read_documents(source.files, documents=documents, field=field, tally=tally):
            yield replace(document, languages=source.languages)


def _read_pairs(source: TextSource, tally: Counter[str]) -> Iterator[Document]:
    is_one_file = len(source.files) == 1
    rows = _columns(source.files[0], tally) if is_one_file else _aligned(source.files, tally)
    is_empty = True
    for where, first, second in rows:
        if not first.strip() or not second.strip():
            raise BadInput(f"{where}: one of the two texts is empty; fill it in or remove the pair.")
        is_empty = False
        yield Document((first, second), where, source.languages)
    if is_empty:
        raise BadInput(f"{source.files[0]} holds no text; leave it out or replace it.")


def _columns(path: Path, tally: Counter[str]) -> Iterator[tuple[str, str, str]]:
    """The rows of a file of two columns, with their places."""
    for number, line in text_lines(path, tally=tally):
        cells = line.split("\t")
        where = f"{path}, line {number:,}"
        if len(cells) != 2:
            raise BadInput(f"{where}: {len(cells)} column(s) instead of a text, a tab and its translation.")
        yield where, cells[0], cells[1]


def _aligned(files: tuple[Path, ...], tally: Counter[str]) -> Iterator[tuple[str, str, str]]:
    """The lines of two files, each with its counterpart and their place."""
    first_path, second_path = files
    first_lines = text_lines(first_path, tally=tally)
    second_lines = text_lines(second_path, tally=tally)
    for row, (first, second) in enumerate(zip_longest(first_lines, second_lines), 1):
        if first is None:
            raise _without_counterpart(second_path, first_path, row)
        if second is None:
            raise _without_counterpart(first_path, second_path, row)
        _, first_text = first
        _, second_text = second
        yield f"{first_path}, line {row:,}", first_text, second_text


def _without_counterpart(longer: Path, shorter: Path, row: int) -> BadInput:
    """The error for two files of which one has more lines."""
    return BadInput(
        f"{longer}, line {row:,} has no counterpart: {shorter} has only {row - 1:,} lines; "
        "give both files the same lines."
    )
