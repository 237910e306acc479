"""Files of tagged words -> examples: columns as in the CoNLL shared tasks, or words parted by spaces.

In: a file with a word a line, its tag in another column and a blank line between sentences; or, for segmentation, a
sentence a line whose words become characters tagged B, M, E or S. Out: each sentence's text, its words' places in it,
and their tags.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from firth import metrics
from firth.errors import BadInput
from firth.tasks.table_files import MAX_ROW, read_text
from firth.tokenizers.units import normal
from firth.tokenizers.words import CHINESE, has_chinese
from firth.types import Example, Problem

MAX_WORDS = 5_000
"""Words of the longest sentence that is taken for one and not for a missing blank line."""
MAX_CHARACTERS = 100_000
"""Characters of the longest line of segmented text."""
_tag = re.compile(r"/[A-Za-z]+$")
_word = re.compile(rf"[{CHINESE}]|(?:(?![{CHINESE}])\w)+(?:['’.-](?:(?![{CHINESE}])\w)+)*|\S")


@dataclass(frozen=True)
class Sentence(Example):
    """A text with its words; gold has a tag for each."""

    words: tuple[tuple[int, int], ...] = ()
    """Characters [start, end) of each word."""


def sentence(words: Sequence[str], tags: tuple[str, ...] | None = None, row: int = 0) -> Sentence:
    """Words as a text: parted by spaces, except around Chinese characters."""
    text, spans = "", []
    for word in words:
        gap = text and not (has_chinese(text[-1]) or has_chinese(word[0]))
        start = len(text) + (1 if gap else 0)
        text += (" " if gap else "") + word
        spans.append((start, start + len(word)))
    return Sentence((text,), tags, row, tuple(spans))


def split(text: str, *, unit: str) -> Sentence:
    """A raw text: cut into characters, at spaces, or into words, punctuation and single Chinese characters."""
    found = {"character": re.compile(r"\S"), "space": re.compile(r"\S+")}.get(unit, _word).finditer(text)
    return Sentence((text,), None, 0, tuple(match.span() for match in found))


def spelled(example: Sentence) -> Sentence:
    """The sentence with a space between all its words (or characters), so that no piece has two; wide ones narrow."""
    text = example.texts[0]
    characters = [normal(text[start:end]) for start, end in example.words]
    ends = accumulate(len(c) + 1 for c in characters)
    places = tuple((end - 1 - len(c), end - 1) for end, c in zip(ends, characters, strict=True))
    return replace(example, texts=(" ".join(characters),), words=places)


def repaired(example: Sentence, scheme: str) -> Sentence:
    """Every run of tags of one entity gets a legal beginning; where the scheme marks ends, also a legal end."""
    tags: Sequence[str] = example.gold
    continues = [place > 0 and _continues(tags[place - 1], tag) for place, tag in enumerate(tags)]
    fixed: list[str] = []
    for place, tag in enumerate(tags):
        prefix, kind = metrics.split_tag(tag)
        is_first = not continues[place]
        is_last = place + 1 == len(tags) or not continues[place + 1]
        if scheme == "BIO":
            prefix = "B" if prefix == "I" and is_first else prefix
        elif prefix not in ("O", "S"):
            middle = "M" if scheme == "BMES" else "I"
            prefix = {(True, True): "S", (True, False): "B", (False, True): "E"}.get((is_first, is_last), middle)
        fixed.append(f"{prefix}-{kind}" if kind else prefix)
    return replace(example, gold=tuple(fixed))


def _continues(before: str, tag: str) -> bool:
    """Whether a tag belongs to the entity of the tag before it."""
    prefix_before, kind_before = metrics.split_tag(before)
    prefix, kind = metrics.split_tag(tag)
    return prefix_before in ("B", "I", "M") and prefix in ("I", "M", "E") and kind_before == kind


def read_columns(
    path: Path, problems: list[Problem], *, word_column: int, tag_column: int, word_index: bool, labelled: bool
) -> Iterator[Sentence]:
    needed = max(word_column, 2, abs(tag_column)) if labelled else word_column
    usual = 0
    for row, lines in _blocks(path):
        usual = usual or len(lines[0])
        if len(lines) > MAX_WORDS:
            problems.append(Problem(row, f"a sentence of {len(lines):,} words", "put blank lines between sentences"))
            continue
        short = next((i for i, line in enumerate(lines) if len(line) < needed), None)
        if short is not None:
            count = len(lines[short])
            what = "a word without its columns" if count < 2 else f"{count} columns where {needed} are needed"
            problems.append(Problem(row + short, what, "mend or remove the sentence, or count the columns again"))
            continue
        odd = next((i for i, line in enumerate(lines) if len(line) != usual), None) if labelled else None
        if odd is not None:  # counted from either end, a column may be another one here
            what = f"{len(lines[odd])} columns where the file's first row has {usual}"
            problems.append(Problem(row + odd, what, "give all rows the same columns or remove the sentence"))
            continue
        words = tuple(line[word_column - 1] for line in lines)
        if words[0] == "-DOCSTART-":
            continue
        tags = tuple(line[tag_column if tag_column < 0 else tag_column - 1] for line in lines) if labelled else None
        # Some files write each character with its place in its word: 北0 京1.
        words = tuple(w[:-1] if word_index and len(w) > 1 and w[-1].isdigit() else w for w in words)
        yield sentence(words, tags, row)


def read_words(path: Path, problems: list[Problem], *, drop_tags: bool = False) -> Iterator[Sentence]:
    """Segmented text: every character gets the part of its word that it is."""
    for row, words in _lines(path, problems):
        if drop_tags:
            words = [_tag.sub("", word) or word for word in words]
        tags = [tag for word in words for tag in segment_tags(len(word))]
        text = "".join(words)
        places = tuple((i, i + 1) for i in range(len(text)))
        yield Sentence((text,), tuple(tags), row, places)


def read_tagged(path: Path, problems: list[Problem], *, labelled: bool = True) -> Iterator[Sentence]:
    """Words with their tags after a slash; without gold also bare words."""
    for row, words in _lines(path, problems):
        pairs = [word.rpartition("/") for word in words]
        bare = next((i for i, (word, _, tag) in enumerate(pairs) if not word or not tag), None)
        if not labelled:
            yield sentence(
                [word if word and tag else whole for whole, (word, _, tag) in zip(words, pairs, strict=True)]
            )
        elif bare is not None:
            what = f"word {bare + 1} ({words[bare]:.20}) has no tag"
            problems.append(Problem(row, what, "write every word as word/tag or remove the sentence"))
        else:
            yield sentence([word for word, _, _ in pairs], tuple(tag for _, _, tag in pairs), row)


def _lines(path: Path, problems: list[Problem]) -> Iterator[tuple[int, list[str]]]:
    """The lines that hold words, with their numbers."""
    for row, line in enumerate(read_text(path).split("\n"), 1):
        words = line.split()
        if len(line) > MAX_ROW or sum(map(len, words)) > MAX_CHARACTERS:
            problems.append(Problem(row, f"a sentence of {len(line):,} characters", "split it into sentences"))
        elif words:
            yield row, words


def segment_tags(length: int) -> str:
    return "S" if length == 1 else f"B{'M' * (length - 2)}E"


def _blocks(path: Path) -> Iterator[tuple[int, list[list[str]]]]:
    """Runs of lines between blank ones, each with the number of its first line."""
    text = read_text(path)
    if not text.strip():
        raise BadInput(f"{path} is empty; give it a word and its tag a line, with blank lines between sentences.")
    block: list[list[str]] = []
    start = 1
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if fields := line.split():
            start = start if block else number
            block.append(fields)
        elif block:
            yield start, block
            block = []
