"""A corpus in pieces that are read and cleaned independently of each other.

In: files and what ends a document. Out: pieces of a few megabytes, in order; for each its clean text, and a summary by
which one process decides for all pieces which documents and lines are duplicates. The documents are those that one
process reads: a file is cut only where a document ends anyway.

Suffixes: D documents of a piece, L lines of its documents, K keys: for each document its own and those of its lines.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path

import numpy as np

from firth import rng
from firth.corpus.cleaning import MIN_LINE_BYTES, Seen, clean_documents, fingerprints
from firth.corpus.languages import TextSource, read_sources
from firth.corpus.readers import ROWS, Documents, FilePart, expected_bytes, line_ends, read_part
from firth.errors import BadInput
from firth.files import COMPRESSED, ending, open_stored, stored_bytes
from firth.types import Document

PIECE_BYTES = 1 << 21
"""About the bytes of text in a piece."""
WHOLE_BYTES = 1 << 26
"""A file that cannot be cut is one piece up to this size; a larger one is read by the process that asks."""
_LINE_END = re.compile(rb"\n")
_BLANK_LINE = re.compile(rb"\n\r?\n")
_SCAN = 1 << 16
"""Bytes that are searched at once for a place to cut."""


@dataclass(frozen=True)
class Reading:
    """How a corpus is read, the same for all its pieces."""

    documents: Documents = "blank-line"
    field: str = "text"
    repair: bool = False


@dataclass(frozen=True)
class Piece:
    """Some consecutive documents: a part of a file, or documents that were read already."""

    path: Path
    languages: tuple[str, ...] = ()
    part: FilePart | None = None
    read: tuple[Document, ...] = ()
    tally: Counter[str] = field(default_factory=Counter)
    """What was counted while `read` was read."""

    @property
    def is_pair(self) -> bool:
        """Whether its documents are texts with their translations."""
        return len(self.languages) == 2


@dataclass(frozen=True)
class Draw:
    """Which documents to draw: each with probability `rate`, by a random number of its place in the corpus."""

    rate: float
    seed: int
    first: int
    """The place of the piece's first document."""


@dataclass(frozen=True)
class Summary:
    """What decides which documents of a piece stay; a few bytes for each line."""

    num_read: int
    """Documents before cleaning."""
    num_lines_D: np.ndarray
    line_bytes_L: np.ndarray
    is_checked_L: np.ndarray
    """Which lines are compared with earlier lines."""
    keys_K: np.ndarray
    """A fingerprint of each document, followed by those of its checked lines."""
    tally: Counter[str]


@dataclass(frozen=True)
class Kept:
    """Which documents and lines of a piece stay."""

    kept_D: np.ndarray
    kept_L: np.ndarray


def cut(sources: Iterable[TextSource], reading: Reading, *, piece_bytes: int = PIECE_BYTES) -> Iterator[Piece]:
    """The pieces of all files, in order."""
    for source in sources:
        if source.is_parallel:
            tally: Counter[str] = Counter()
            pairs = read_sources([source], documents=reading.documents, field=reading.field, tally=tally)
            yield from _read_here(source.files[0], source.languages, pairs, tally=tally, piece_bytes=piece_bytes)
            continue
        for path in source.files:
            for part in _parts(path, reading.documents, piece_bytes):
                yield from _pieces_of(part, source.languages, reading, piece_bytes)


def _pieces_of(part: FilePart, languages: tuple[str, ...], reading: Reading, piece_bytes: int) -> Iterator[Piece]:
    """One piece; several for a large part, which this process reads because a worker would need too much memory."""
    size = expected_bytes([part.path]) if part.end is None else part.end - part.start
    if size <= WHOLE_BYTES:
        yield Piece(part.path, languages, part)
        return
    if part.start:
        part = replace(part, first_line=1 + count_lines(part.path, 0, part.start))
    tally: Counter[str] = Counter()
    found = read_part(part, documents=reading.documents, field=reading.field, tally=tally)
    documents = (replace(document, languages=languages) for document in found)
    yield from _read_here(part.path, languages, documents, tally=tally, piece_bytes=piece_bytes)


def _can_be_cut(path: Path, documents: Documents) -> bool:
    """Whether reading may begin in the middle of a file."""
    if path.suffix in COMPRESSED or ending(path) == ".parquet":
        return False
    return ending(path) in ROWS or documents in ("blank-line", "line")


def _parts(path: Path, documents: Documents, piece_bytes: int) -> Iterator[FilePart]:
    """A file in parts of about `piece_bytes`, each of which ends where a document does."""
    size = stored_bytes(path)
    if not size or not _can_be_cut(path, documents):
        yield FilePart(path)
        return
    by_line = documents == "line" or ending(path) in ROWS
    border = _LINE_END if by_line else _BLANK_LINE
    start = 0
    while start < size:
        end = _next_end(path, start + piece_bytes, border, size)
        yield FilePart(path, start, end)
        start = end


def _next_end(path: Path, place: int, border: re.Pattern[bytes], size: int) -> int:
    """Where the first border at or after `place` ends; the end of the file if there is none."""
    if place >= size:
        return size
    with open_stored(path) as file:
        file.seek(place)
        # The end of the block before: a border may lie across two blocks.
        before = b""
        while block := file.read(_SCAN):
            text = before + block
            found = border.search(text)
            if found is not None:
                return place - len(before) + found.end()
            place += len(block)
            before = text[-2:]
    return size


def _read_here(
    path: Path,
    languages: tuple[str, ...],
    documents: Iterable[Document],
    *,
    tally: Counter[str],
    piece_bytes: int,
) -> Iterator[Piece]:
    """Pieces of documents that this process reads."""
    block: list[Document] = []
    size = 0
    for document in documents:
        block.append(document)
        size += sum(map(len, document.lines))
        if size >= piece_bytes:
            yield Piece(path, languages, None, tuple(block), Counter(tally))
            tally.clear()
            block = []
            size = 0
    yield Piece(path, languages, None, tuple(block), Counter(tally))


def read_piece(piece: Piece, reading: Reading, tally: Counter[str]) -> Iterator[Document]:
    """The documents of a piece; an error names the line of the file, whichever piece it is in."""
    if piece.part is None:
        tally.update(piece.tally)
        yield from piece.read
        return
    try:
        for document in read_part(piece.part, documents=reading.documents, field=reading.field, tally=tally):
            yield replace(document, languages=piece.languages)
    except BadInput:
        if piece.part.start == 0:
            raise
        # Only now the number of the first line is worth counting. Reading again raises the error with it.
        numbered = replace(piece.part, first_line=1 + count_lines(piece.path, 0, piece.part.start))
        for _ in read_part(numbered, documents=reading.documents, field=reading.field, tally=Counter()):
            pass
        raise


def count_lines(path: Path, start: int, end: int) -> int:
    """How many lines end between two places of a file."""
    num_lines = 0
    num_left = end - start
    last = b""
    with open_stored(path) as file:
        file.seek(start)
        while block := file.read(min(1 << 20, num_left)):
            num_left -= len(block)
            # A carriage return and the line feed after it may be in two blocks.
            num_lines += line_ends(last + block) - line_ends(last)
            last = block[-1:]
    return num_lines


# What workers do with a piece


def count_documents(piece: Piece, reading: Reading) -> int:
    """How many documents a piece has before cleaning."""
    return sum(1 for _ in read_piece(piece, reading, Counter()))


def clean_piece(piece: Piece, reading: Reading, draw: Draw | None = None) -> tuple[bytes, Summary]:
    """The clean text of a piece, and its summary. An empty line of the text ends a document."""
    tally: Counter[str] = Counter()
    found = list(read_piece(piece, reading, tally))
    num_read = len(found)
    if draw is not None:
        key = rng.key(draw.seed, "vocabulary sample")
        numbers = draw.first + np.arange(num_read)
        is_drawn = rng.uniform(key, numbers) < draw.rate
        found = list(compress(found, is_drawn.tolist()))
    texts: list[str] = []
    num_lines: list[int] = []
    line_bytes: list[int] = []
    is_checked: list[bool] = []
    keyed: list[bytes] = []
    for document in clean_documents(found, repair=reading.repair):
        lines = [line.encode() for line in document.lines]
        may_repeat = len(lines) == 1 or piece.is_pair
        checked = [len(line) >= MIN_LINE_BYTES and not may_repeat for line in lines]
        texts.append("\n".join(document.lines))
        num_lines.append(len(lines))
        line_bytes += map(len, lines)
        is_checked += checked
        keyed.append(b"\n".join(lines))
        keyed += compress(lines, checked)
    summary = Summary(
        num_read=num_read,
        num_lines_D=np.array(num_lines, np.int64),
        line_bytes_L=np.array(line_bytes, np.int64),
        is_checked_L=np.array(is_checked, bool),
        keys_K=fingerprints(keyed),
        tally=tally,
    )
    return "\n\n".join(texts).encode(), summary


def kept_documents(text: bytes, kept: Kept) -> Iterator[list[str]]:
    """The lines of each document that stays."""
    if not len(kept.kept_D):
        return
    line = 0
    for document, is_kept in zip(text.decode().split("\n\n"), kept.kept_D.tolist(), strict=True):
        lines = document.split("\n")
        kept_lines = kept.kept_L[line : line + len(lines)].tolist()
        line += len(lines)
        if is_kept:
            yield list(compress(lines, kept_lines))


# What one process decides for all pieces


def drop_seen(summary: Summary, seen: Seen, tally: Counter[str]) -> Kept:
    """Which documents and lines occur for the first time; the same as `corpus.cleaning.drop_duplicates`."""
    num_documents = len(summary.num_lines_D)
    owner_L = np.repeat(np.arange(num_documents), summary.num_lines_D)
    num_checked_D = np.bincount(owner_L[summary.is_checked_L], minlength=num_documents)
    is_new_K = seen.first_times(summary.keys_K)
    # The key of a document comes before those of its lines.
    document_keys_D = np.cumsum(num_checked_D + 1) - num_checked_D - 1
    is_document_key_K = np.zeros(len(is_new_K), bool)
    is_document_key_K[document_keys_D] = True
    is_new_D = is_new_K[is_document_key_K]
    kept_L = np.ones(len(owner_L), bool)
    kept_L[summary.is_checked_L] = is_new_K[~is_document_key_K]

    num_kept_D = np.bincount(owner_L[kept_L], minlength=num_documents)
    num_dropped_D = summary.num_lines_D - num_kept_D
    tally["documents_read"] += num_documents
    tally["lines_read"] += len(owner_L)
    tally["duplicate_documents"] += int((~is_new_D).sum())
    tally["duplicate_lines"] += int(num_dropped_D[is_new_D].sum())
    tally["emptied_documents"] += int((is_new_D & (num_kept_D == 0)).sum())
    return Kept(is_new_D & (num_kept_D > 0), kept_L)
