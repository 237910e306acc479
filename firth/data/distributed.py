"""Text files -> a vocabulary and shards by an engine of many workers, with the very bytes that one process writes.

Workers read and clean pieces of the files. This process decides in the order of the corpus which documents and lines
are duplicates, for which it needs a few bytes of each line. Workers then encode what is left, or count its words, and
this process appends their arrays in order. The clean text stays with the workers, and only a few pieces are in progress
at a time, so no process needs more memory for a larger corpus, save eight bytes for each document and long line.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from firth import tokenizers
from firth.corpus.cleaning import Seen
from firth.corpus.languages import TextSource, find_sources, language_names
from firth.corpus.readers import Paths, check_documents, find_files, no_text
from firth.data.encoding import Chunk, encode_documents
from firth.data.health import Health
from firth.data.pieces import (
    Draw,
    Kept,
    Piece,
    Reading,
    Summary,
    clean_piece,
    count_documents,
    count_lines,
    cut,
    drop_seen,
    kept_documents,
    read_piece,
)
from firth.data.prepare import Progress, write_text
from firth.data.simhash import NearIndex, fingerprint
from firth.data.vocabulary_sample import SAMPLE_BYTES
from firth.engines.engine import Engine, Handle, ahead, window
from firth.files import read_files, write_files
from firth.ragged import starts_of
from firth.tokenizers import Tokenizer
from firth.types import Document

TokenizerFiles = dict[str, bytes]
"""The files of a saved tokenizer, by name."""


@dataclass(frozen=True)
class CleanPiece:
    """A piece whose clean text is with a worker."""

    piece: Piece
    text: Handle[bytes]
    summary: Summary
    kept: Kept


def prepare(
    engine: Engine,
    paths: Paths,
    out: Path,
    *,
    tokenizer: Tokenizer,
    reading: Reading,
    replace: bool = False,
    near: int | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Health:
    """Writes shards as `firth.data.prepare.prepare` does, whose arguments these are."""
    check_documents(reading.documents)
    tally: Counter[str] = Counter()
    sources = find_sources(paths, tally=tally)
    languages = language_names(sources)
    clean = _clean(engine, cut(sources, reading), reading, tally=tally)
    if near is not None:
        clean = _without_near(engine, clean, within=near, tally=tally)

    def encoded(tokenizer_folder: Path) -> Iterator[Chunk]:
        return _encoded(engine, clean, engine.share(read_files(tokenizer_folder)), languages)

    return write_text(
        encoded,
        sources,
        out,
        tokenizer=tokenizer,
        tally=tally,
        info={"documents_by": reading.documents, "repair": reading.repair},
        replace=replace,
        fresh=fresh,
        progress=progress,
    )


def _clean(
    engine: Engine,
    pieces: Iterable[Piece],
    reading: Reading,
    *,
    tally: Counter[str],
    draws: Iterable[Draw] = (),
) -> Iterator[CleanPiece]:
    """The pieces in order, without exact duplicates."""
    seen = Seen()
    for piece, text, summary in _read(engine, pieces, reading, draws=draws):
        tally.update(summary.tally)
        yield CleanPiece(piece, text, summary, drop_seen(summary, seen, tally))


def _read(
    engine: Engine,
    pieces: Iterable[Piece],
    reading: Reading,
    *,
    draws: Iterable[Draw] = (),
) -> Iterator[tuple[Piece, Handle[bytes], Summary]]:
    """Each piece with its clean text and its summary; a file without documents is an error."""
    path: Path | None = None
    num_read = 0
    for piece, (text, waiting) in ahead(_submitted(engine, pieces, reading, draws), window(engine)):
        summary = engine.result(waiting)
        if path is not None and piece.path != path and not num_read:
            raise no_text(path)
        if piece.path != path:
            path = piece.path
            num_read = 0
        num_read += summary.num_read
        yield piece, text, summary
    if path is not None and not num_read:
        raise no_text(path)


def _submitted(
    engine: Engine,
    pieces: Iterable[Piece],
    reading: Reading,
    draws: Iterable[Draw],
) -> Iterator[tuple[Piece, tuple[Handle[bytes], Handle[Summary]]]]:
    next_draw = iter(draws)
    for piece in pieces:
        yield piece, engine.submit_pair(clean_piece, piece, reading, next(next_draw, None))


# Near duplicates


def _without_near(
    engine: Engine,
    clean: Iterable[CleanPiece],
    *,
    within: int,
    tally: Counter[str],
) -> Iterator[CleanPiece]:
    """The pieces without documents that are nearly an earlier one."""
    index = NearIndex(within)

    def submitted() -> Iterator[tuple[CleanPiece, Handle[list[int]]]]:
        for one in clean:
            yield one, engine.submit(fingerprint_kept, one.text, one.kept)

    for one, waiting in ahead(submitted(), window(engine)):
        is_far = [index.add_if_far(mark) for mark in engine.result(waiting)]
        tally["near_duplicate_documents"] += is_far.count(False)
        kept_D = one.kept.kept_D.copy()
        kept_D[np.flatnonzero(kept_D)] = is_far
        yield CleanPiece(one.piece, one.text, one.summary, Kept(kept_D, one.kept.kept_L))


def fingerprint_kept(text: bytes, kept: Kept) -> list[int]:
    """A worker's part: the SimHash of every document that is left."""
    return [fingerprint("\n".join(lines)) for lines in kept_documents(text, kept)]


def fingerprints_of(engine: Engine, paths: Paths, reading: Reading, *, shingle: int) -> tuple[list[str], list[int]]:
    """Where each document of the files begins, and its SimHash."""
    check_documents(reading.documents)
    source = TextSource(tuple(find_files(paths)))
    pieces = cut([source], reading)

    def submitted() -> Iterator[tuple[Piece, Handle[Marks]]]:
        for piece in pieces:
            yield piece, engine.submit(fingerprint_piece, piece, reading, shingle)

    sources: list[str] = []
    fingerprints: list[int] = []
    numbering = _Numbering()
    num_read: Counter[Path] = Counter()
    for piece, waiting in ahead(submitted(), window(engine)):
        marks = engine.result(waiting)
        lines_before = numbering.lines_before(piece, marks.num_lines)
        sources += [f"{piece.path}:{lines_before + line}" for line in marks.lines]
        fingerprints += marks.fingerprints
        num_read[piece.path] += len(marks.lines)
    for path, count in num_read.items():
        if not count:
            raise no_text(path)
    return sources, fingerprints


@dataclass(frozen=True)
class Marks:
    """The documents of a piece, without their text."""

    lines: list[int]
    """The first line of each, counted from the beginning of the piece."""
    fingerprints: list[int]
    num_lines: int
    """Lines of the piece, by which those of the next one are numbered."""


class _Numbering:
    """The number of a file's lines before each of its pieces, which come in order."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.num_lines = 0
        self.num_bytes = 0

    def lines_before(self, piece: Piece, num_lines: int) -> int:
        """How much to add to the numbers of the piece's lines, of which it has `num_lines`."""
        part = piece.part
        # What this process reads has the numbers of the file, and so has a file that is one piece.
        if part is None or part.end is None:
            return 0
        if piece.path != self.path:
            self.path = piece.path
            self.num_lines = 0
            self.num_bytes = 0
        # Between two pieces there may be some that this process has read.
        before = self.num_lines + count_lines(part.path, self.num_bytes, part.start)
        self.num_lines = before + num_lines
        self.num_bytes = part.end
        return before


def fingerprint_piece(piece: Piece, reading: Reading, shingle: int) -> Marks:
    """A worker's part: the SimHash of every document."""
    lines: list[int] = []
    fingerprints: list[int] = []
    for document in read_piece(piece, reading, Counter()):
        lines.append(int(document.source.rpartition(":")[2]))
        fingerprints.append(fingerprint("\n".join(document.lines), shingle=shingle))
    num_lines = 0
    if piece.part is not None and piece.part.end is not None:
        num_lines = count_lines(piece.path, piece.part.start, piece.part.end)
    return Marks(lines, fingerprints, num_lines)


# Encoding


def _encoded(
    engine: Engine,
    clean: Iterable[CleanPiece],
    files: Handle[TokenizerFiles],
    languages: Sequence[str],
) -> Iterator[Chunk]:
    def submitted() -> Iterator[Handle[Chunk]]:
        for one in clean:
            yield engine.submit(encode_kept, files, one.text, one.kept, one.piece.languages, tuple(languages))

    for waiting in ahead(submitted(), window(engine)):
        yield engine.result(waiting)


def encode_kept(
    files: TokenizerFiles,
    text: bytes,
    kept: Kept,
    piece_languages: tuple[str, ...],
    languages: tuple[str, ...],
) -> Chunk:
    """A worker's part: encodes the documents of a piece that are left."""
    documents = (Document(tuple(lines), "", piece_languages) for lines in kept_documents(text, kept))
    hashable = tuple(sorted(files.items()))
    tokenizer = _loaded(hashable)
    return encode_documents(tokenizer, documents, languages)


@lru_cache(2)
def _loaded(files: tuple[tuple[str, bytes], ...]) -> Tokenizer:
    """The tokenizer of these files; a worker keeps it for the next piece."""
    with TemporaryDirectory() as folder:
        write_files(Path(folder), dict(files))
        return tokenizers.load(Path(folder))


# The vocabulary


def count_words(engine: Engine, paths: Paths, cls: Any, config: Any, *, seed: int, reading: Reading) -> dict[str, int]:
    """How often each word occurs in the sample that `vocabulary_sample.sample_texts` draws, for one language."""
    sources = find_sources(paths)
    sample_bytes = None if cls.counts_all_words else SAMPLE_BYTES
    expected = max(sum(source.expected_bytes() for source in sources), 1)
    draws: Iterable[Draw] = ()
    if sample_bytes is not None and sample_bytes < expected:
        draws = _draws(engine, sources, reading, rate=sample_bytes / expected, seed=seed)
    clean = _clean(engine, cut(sources, reading), reading, tally=Counter(), draws=draws)
    if sample_bytes is not None:
        clean = _up_to(clean, 2 * sample_bytes)

    def submitted() -> Iterator[Handle[dict[str, int]]]:
        for one in clean:
            yield engine.submit(count_kept, one.text, one.kept, cls, config)

    counts: Counter[str] = Counter()
    for waiting in ahead(submitted(), window(engine)):
        piece_counts = engine.result(waiting)
        counts.update(piece_counts)
    return counts


def _draws(
    engine: Engine,
    sources: Sequence[TextSource],
    reading: Reading,
    *,
    rate: float,
    seed: int,
) -> Iterator[Draw]:
    """What to draw of each piece: a document's random number depends on its place in the corpus."""
    first = 0
    waiting = (engine.submit(count_documents, piece, reading) for piece in cut(sources, reading))
    for handle in ahead(waiting, window(engine)):
        yield Draw(rate, seed, first)
        first += engine.result(handle)


def _up_to(clean: Iterable[CleanPiece], limit_bytes: int) -> Iterator[CleanPiece]:
    """The pieces until more than `limit_bytes` of their lines were given."""
    for one in clean:
        in_kept_document_L = np.repeat(one.kept.kept_D, one.summary.num_lines_D)
        is_kept_L = one.kept.kept_L & in_kept_document_L
        kept_bytes_L = one.summary.line_bytes_L * is_kept_L
        bytes_before_L = starts_of(kept_bytes_L)
        kept_L = is_kept_L & (bytes_before_L <= limit_bytes)
        yield CleanPiece(one.piece, one.text, one.summary, Kept(one.kept.kept_D, kept_L))
        limit_bytes -= int(kept_bytes_L.sum())
        if limit_bytes < 0:
            return


def count_kept(text: bytes, kept: Kept, cls: Any, config: Any) -> dict[str, int]:
    """A worker's part: counts the words of the documents that are left."""
    lines = chain.from_iterable(kept_documents(text, kept))
    counts: dict[str, int] = cls.count(lines, config)
    return dict(counts)
