"""Files of tagged words -> examples: columns as in the CoNLL shared tasks, or words separated by spaces.

In: a file with one word a line, its tag in another column and a blank line between sentences; or, for segmentation, one
sentence a line whose words become characters tagged B, M, E or S. Out: each sentence's text, its words' places in it,
and their tags.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firth import metrics
from firth.errors import BadInput
from firth.tasks.table_files import MAX_ROW, read_text
from firth.tasks.tagged_form import check_columns
from firth.tokenizers.segmentation import CHINESE, has_chinese
from firth.tokenizers.units import normal
from firth.types import Example, Problem

MAX_WORDS = 5_000
"""Words of the longest sentence; a longer one has a missing blank line."""
MAX_CHARACTERS = 100_000
"""Characters of the longest line of segmented text."""
OUTSIDE = "O"
"""The tag of words that belong to no entity."""
_SLASH_TAG = re.compile(r"/[A-Za-z]+$")
# A Chinese character; letters and digits with hyphens and the like inside; or any other single character.
_WORD = re.compile(rf"[{CHINESE}]|(?:(?![{CHINESE}])\w)+(?:['’.-](?:(?![{CHINESE}])\w)+)*|\S")
_UNITS = {"character": re.compile(r"\S"), "space": re.compile(r"\S+")}


@dataclass(frozen=True)
class Sentence(Example):
    """A text with its words; gold has a tag for each."""

    words: tuple[tuple[int, int], ...] = ()
    """Characters [start, end) of each word."""


def sentence(words: Sequence[str], tags: tuple[str, ...] | None = None, row: int = 0) -> Sentence:
    """Words as a text: separated by spaces, except next to Chinese characters."""
    text = ""
    spans = []
    for word in words:
        if text and not has_chinese(text[-1]) and not has_chinese(word[0]):
            text += " "
        start = len(text)
        text += word
        spans.append((start, len(text)))
    return Sentence((text,), tags, row, tuple(spans))


def split(text: str, *, unit: str) -> Sentence:
    """A raw text: cut into characters, at spaces, or into words, punctuation and single Chinese characters."""
    pattern = _UNITS.get(unit, _WORD)
    spans = tuple(match.span() for match in pattern.finditer(text))
    return Sentence((text,), None, 0, spans)


def spelled(example: Sentence) -> Sentence:
    """The sentence with a space between all its words (or characters), so that no token has two of them.

    Full-width characters become their usual forms.
    """
    text = example.texts[0]
    units = [normal(text[start:end]) for start, end in example.words]
    places = []
    start = 0
    for unit in units:
        end = start + len(unit)
        places.append((start, end))
        start = end + 1
    return replace(example, texts=(" ".join(units),), words=tuple(places))


# Repair


def repaired(example: Sentence, scheme: str) -> Sentence:
    """Every run of tags of one entity gets a legal beginning; where the scheme marks ends, also a legal end."""
    tags: Sequence[str] = example.gold
    fixed: list[str] = []
    for place, tag in enumerate(tags):
        before = tags[place - 1] if place else OUTSIDE
        after = tags[place + 1] if place + 1 < len(tags) else OUTSIDE
        is_first = not _continues(before, tag)
        is_last = not _continues(tag, after)
        prefix, kind = metrics.split_tag(tag)
        prefix = _repaired_prefix(prefix, scheme, is_first=is_first, is_last=is_last)
        suffix = f"-{kind}" if kind else ""
        fixed.append(f"{prefix}{suffix}")
    return replace(example, gold=tuple(fixed))


def _continues(before: str, tag: str) -> bool:
    """Whether a tag belongs to the entity of the tag before it."""
    prefix_before, kind_before = metrics.split_tag(before)
    prefix, kind = metrics.split_tag(tag)
    is_open = prefix_before in ("B", "I", "M")
    is_inner = prefix in ("I", "M", "E")
    return is_open and is_inner and kind_before == kind


def _repaired_prefix(prefix: str, scheme: str, *, is_first: bool, is_last: bool) -> str:
    if scheme == "BIO":
        if prefix == "I" and is_first:
            return "B"
        return prefix
    if prefix in ("O", "S"):
        return prefix
    if is_first and is_last:
        return "S"
    if is_first:
        return "B"
    if is_last:
        return "E"
    return "M" if scheme == "BMES" else "I"


# Columns


def read_columns(
    path: Path,
    problems: list[Problem],
    *,
    word_column: int,
    tag_column: int,
    word_index: bool,
    labelled: bool,
) -> Iterator[Sentence]:
    """Columns are counted from 1; the tag's may be counted from the end, as -1."""
    needed = word_column
    if labelled:
        needed = max(word_column, 2, abs(tag_column))
    first_width = 0
    for row, lines in _blocks(path, labelled=labelled):
        first_width = first_width or len(lines[0])
        width = first_width if labelled else None
        problem = _block_problem(row, lines, needed=needed, width=width)
        if problem:
            problems.append(problem)
            continue
        words = [line[word_column - 1] for line in lines]
        # CoNLL-2003 marks the start of a document so.
        if words[0] == "-DOCSTART-":
            continue
        if word_index:
            words = [_without_index(word) for word in words]
        tags = None
        if labelled:
            tag_place = tag_column
            if tag_column >= 0:
                tag_place -= 1
            tags = tuple(line[tag_place] for line in lines)
        yield sentence(words, tags, row)


def _block_problem(row: int, lines: Sequence[Sequence[str]], *, needed: int, width: int | None) -> Problem | None:
    """What is wrong with a sentence that begins in `row`; its lines must have `width` columns if that is given."""
    if len(lines) > MAX_WORDS:
        return Problem(row, f"a sentence of {len(lines):,} words", "put blank lines between sentences")
    for line_row, line in enumerate(lines, row):
        if len(line) < needed:
            what = f"{len(line)} columns where {needed} are needed"
            if len(line) < 2:
                what = "a word without its columns"
            return Problem(line_row, what, "correct or remove the sentence, or count the columns again")
    if width is None:
        return None
    for line_row, line in enumerate(lines, row):
        if len(line) != width:
            # Counted from either end, a column may be another one here.
            what = f"{len(line)} columns where the file's first row has {width}"
            return Problem(line_row, what, "give all rows the same columns or remove the sentence")
    return None


def _without_index(word: str) -> str:
    """Some files write each character with its place in its word: 北0 京1."""
    if len(word) > 1 and word[-1].isdigit():
        return word[:-1]
    return word


def _blocks(path: Path, *, labelled: bool) -> Iterator[tuple[int, list[list[str]]]]:
    """Runs of lines between blank ones, each with the number of its first line."""
    text = read_text(path)
    if not text.strip():
        raise BadInput(f"{path} is empty; give it a word and its tag a line, with blank lines between sentences.")
    check_columns(path, text, labelled=labelled)
    block: list[list[str]] = []
    start = 1
    # The blank line at the end closes the last block.
    for number, line in enumerate([*text.split("\n"), ""], 1):
        fields = line.split()
        if fields:
            if not block:
                start = number
            block.append(fields)
        elif block:
            yield start, block
            block = []


# A sentence a line


def read_words(path: Path, problems: list[Problem], *, drop_tags: bool = False) -> Iterator[Sentence]:
    """Segmented text: every character is tagged with the part of its word that it is."""
    for row, words in _lines(path, problems):
        if drop_tags:
            # A word that is nothing but a slash and letters stays as it is.
            words = [_SLASH_TAG.sub("", word) or word for word in words]
        text = "".join(words)
        tags = "".join(segment_tags(len(word)) for word in words)
        places = tuple((i, i + 1) for i in range(len(text)))
        yield Sentence((text,), tuple(tags), row, places)


def segment_tags(length: int) -> str:
    """The tags of a word's characters."""
    if length == 1:
        return "S"
    return f"B{'M' * (length - 2)}E"


def read_tagged(path: Path, problems: list[Problem], *, labelled: bool = True) -> Iterator[Sentence]:
    """Words with their tags after a slash; without gold also bare words."""
    for row, fields in _lines(path, problems):
        words: list[str] = []
        tags: list[str] = []
        bare = None
        for place, field in enumerate(fields):
            word, _, tag = field.rpartition("/")
            if not word or not tag:
                word = field
                if bare is None:
                    bare = place
            words.append(word)
            tags.append(tag)
        if not labelled:
            yield sentence(words)
        elif bare is not None:
            what = f"word {bare + 1} ({fields[bare]:.20}) has no tag"
            problems.append(Problem(row, what, "write every word as word/tag or remove the sentence"))
        else:
            yield sentence(words, tuple(tags), row)


def _lines(path: Path, problems: list[Problem]) -> Iterator[tuple[int, list[str]]]:
    """The lines that hold words, with their numbers."""
    for row, line in enumerate(read_text(path).split("\n"), 1):
        words = line.split()
        if len(line) > MAX_ROW or sum(map(len, words)) > MAX_CHARACTERS:
            problems.append(Problem(row, f"a sentence of {len(line):,} characters", "split it into sentences"))
        elif words:
            yield row, words
