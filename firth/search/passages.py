"""Files of text -> passages: runs of whole sentences of one line, each with its place in the file."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from firth.corpus.readers import find_files, text_lines
from firth.corpus.sentences import split
from firth.errors import BadConfig

MAX_CHARACTERS = 600
"""A passage takes sentences up to this many characters; a longer sentence is a passage by itself."""


@dataclass(frozen=True)
class Passage:
    text: str
    file: str
    line: int
    """The number of its line in the file, from 1."""
    start: int
    """Where it begins in the line, in characters."""
    end: int


def read_passages(texts: Sequence[Path], *, max_characters: int = MAX_CHARACTERS) -> Iterator[Passage]:
    """The passages of files, folders and patterns, in order."""
    if max_characters < 1:
        raise BadConfig(f"A passage needs at least one character; {max_characters} were given.")
    for path in find_files(texts):
        for number, line in text_lines(path, tally=Counter()):
            for start, end in passage_spans(line, max_characters):
                yield Passage(line[start:end], str(path), number, start, end)


def passage_spans(line: str, max_characters: int) -> list[tuple[int, int]]:
    """Where the passages of a line begin and end."""
    spans: list[tuple[int, int]] = []
    for start, end in _sentence_spans(line):
        if spans and end - spans[-1][0] <= max_characters:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def _sentence_spans(line: str) -> Iterator[tuple[int, int]]:
    """Where the sentences of a line begin and end; the white space between them belongs to none."""
    place = 0
    for sentence in split(line):
        start = line.find(sentence, place)
        if start < 0:
            # The splitter changed white space inside the sentence; the rest of the line is one passage.
            rest = line[place:].strip()
            start = line.index(rest, place)
            yield start, start + len(rest)
            return
        place = start + len(sentence)
        yield start, place
