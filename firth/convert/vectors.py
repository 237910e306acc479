"""Word vector files: word2vec text and binary, GloVe text, fastText `.vec`; read and written block by block.

In: a file whose first bytes say what it is, plain or compressed. Out: blocks of words and rows of float32, in the order
of the file; memory holds one block and the words met so far. Text has `word number number ...` on each line; word2vec
and `.vec` have a first line with the number of words and the width, GloVe has none. Binary has the same first line,
then for each word its bytes, a space and the row as little-endian float32.
"""

import lzma
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

import numpy as np

from firth.errors import BadConfig, BadInput
from firth.files import COMPRESSED, atomic_file, open_binary

FORMATS = ("word2vec", "word2vec-binary", "vec")
Kind = Literal["text", "headless", "binary"]
Block = tuple[list[str], np.ndarray]
_ROWS = 2048
_LONGEST = 1 << 20
"""Bytes of a line, or of a word in a binary file, beyond which the file is taken for something else."""
_header = re.compile(rb"\s*(\d+)[ \t]+(\d+)\s*$")


@dataclass
class VectorFile:
    """An open file of word vectors; `blocks` reads it once."""

    path: Path
    kind: Kind
    width: int
    count: int | None
    """What the first line says; None where there is none."""
    skip_bad: bool = False
    """Leave out rows that cannot be used instead of stopping at the first."""
    skipped: int = 0
    places: dict[str, int] = field(default_factory=dict)
    """Where each word was first met: a line, or a byte in a binary file."""

    def blocks(self) -> Iterator[Block]:
        with _opened(self.path) as file:
            yield from _binary(self, file) if self.kind == "binary" else _text(self, file)

    @property
    def place(self) -> str:
        return "byte" if self.kind == "binary" else "line"

    def refuse(self, what: str, remedy: str, *, at: int) -> None:
        """Stops at a row that cannot be used, or counts it."""
        self.skipped += 1
        if not self.skip_bad:
            raise BadInput(
                f"{self.path}, {self.place} {at:,}: {what}; {remedy}, or leave such rows out with --skip-bad."
            )

    def take(self, word: bytes, at: int) -> str | None:
        """The word as text, or None where it cannot be used."""
        try:
            text = word.decode()
        except UnicodeDecodeError:
            self.refuse(f"the word {word[:40]!r} is not UTF-8", "convert the file to UTF-8", at=at)
            return None
        first = self.places.setdefault(text, at)
        if not text or first != at:
            what = f"the word {text!r} stands at {self.place} {first:,} already" if text else "a row without a word"
            self.refuse(what, "remove one of them" if text else "remove it", at=at)
            return None
        return text

    def keep(self, words: list[str], rows: np.ndarray, places: list[int]) -> Block:
        """The block without the rows that hold NaN or infinity."""
        good = np.isfinite(rows).all(1)
        for i in np.flatnonzero(~good):
            self.refuse(f"the row of {words[i]!r} holds NaN or infinity", "remove it", at=places[i])
        return ([w for w, ok in zip(words, good, strict=True) if ok], rows[good]) if not good.all() else (words, rows)


def open_vectors(path: Path, *, skip_bad: bool = False) -> VectorFile:
    """Finds out by its first bytes what a file is; raises where it holds no word vectors."""
    with _opened(path) as file:
        first, start = file.readline(_LONGEST), file.read(1 << 16)
    if header := _header.match(first):
        count, width = (int(number) for number in header.groups())
        if not count or not width:
            raise BadInput(f"{path}, line 1: a header of {count} words of width {width} promises nothing.")
        return VectorFile(path, "binary" if _is_binary(start) else "text", width, count, skip_bad)
    words = first.split()
    if len(words) < 3 or not _are_numbers(words[-2:]):
        raise BadInput(
            f"{path}, line 1: neither a word2vec header, as in '400000 100', nor a word and its numbers; "
            "it is no file of word vectors."
        )
    width = next((i for i, word in enumerate(reversed(words[1:])) if not _are_numbers([word])), len(words) - 1)
    return VectorFile(path, "headless", width, None, skip_bad)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file, whatever its compression; one that cannot be read to its end is refused."""
    try:
        with open_binary(path) as file:
            yield file
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        what = f"cut short or not a {path.suffix} file" if path.suffix in COMPRESSED else "unreadable"
        raise BadInput(f"{path} is {what} ({error}); fetch or make it again.") from None


def write_vectors(path: Path, blocks: Iterable[Block], *, count: int, width: int, kind: str) -> None:
    """Writes words and rows as word2vec text or binary, or as fastText's `.vec`, which is word2vec's text."""
    if kind not in FORMATS:
        raise BadConfig(f"There is no vector format named '{kind}' (known: {', '.join(FORMATS)}).")
    line = " ".join(["%.9g"] * width)  # nine digits bring every float32 back exactly
    with atomic_file(path) as file:
        file.write(f"{count} {width}\n".encode())
        for words, rows in blocks:
            for word, row in zip(words, rows, strict=True):
                if word.split() != [word]:
                    raise BadInput(f"The word {word!r} has a space in it, which a vector file cannot hold.")
                values = row.astype("<f4").tobytes() if kind == "word2vec-binary" else (line % (*row,)).encode()
                file.write(word.encode() + b" " + values + b"\n")


def _text(source: VectorFile, file: IO[bytes]) -> Iterator[Block]:
    number = 0
    if source.kind == "text":
        file.readline()
        number = 1
    found, done = 0, False
    while not done:
        words: list[str] = []
        numbers: list[bytes] = []
        places: list[int] = []
        while len(words) < _ROWS:
            line = file.readline(_LONGEST)
            number += 1
            if not line.strip():
                done = not line
                if done:
                    break
                continue
            found += 1
            word, values = _row(source, line, number)
            if (text := source.take(word, number) if word is not None else None) is not None:
                words.append(text)
                numbers.append(values)
                places.append(number)
        if words:
            yield source.keep(words, _parse(source, numbers, places), places)
    if source.count is not None and found != source.count:
        raise BadInput(
            f"{source.path}, line 1: the header promises {source.count:,} words, the file has {found:,}; "
            "it was cut short or its header is wrong."
        )


def _row(source: VectorFile, line: bytes, number: int) -> tuple[bytes | None, bytes]:
    """A line's word and its numbers; what stands before the last `width` fields is the word, spaces and all."""
    line = line.strip(b" \t\r\n").replace(b"\t", b" ")
    word, space, values = line.partition(b" ")
    if values.count(b" ") + bool(space) == source.width:
        return word, values
    fields = line.split()
    spare, rest = fields[: -source.width], fields[-source.width :]
    if not spare or not _are_numbers(rest) or (spare[1:] and _are_numbers(spare[1:])):
        source.refuse(f"{len(fields) - 1} numbers where {source.width} should stand", "mend the row", at=number)
        return None, b""
    return b" ".join(spare), b" ".join(rest)


def _parse(source: VectorFile, numbers: list[bytes], places: list[int]) -> np.ndarray:
    with suppress(ValueError, DeprecationWarning), warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # so it tells of text that is no number
        return np.fromstring(b" ".join(numbers), np.float32, sep=" ").reshape(-1, source.width)
    rows = np.full((len(numbers), source.width), np.nan, np.float32)  # what cannot be read is refused as NaN is
    for i, (values, place) in enumerate(zip(numbers, places, strict=True)):
        fields = values.split()
        if wrong := [one for one in fields if not _are_numbers([one])]:
            shown = wrong[0].decode(errors="replace")
            if not source.skip_bad:
                source.refuse(f"'{shown:.40}' is not a number", "mend the row", at=place)
        elif len(fields) == source.width:
            rows[i] = [float(one) for one in fields]
        elif not source.skip_bad:
            source.refuse(f"{len(fields)} numbers where {source.width} should stand", "mend the row", at=place)
    return rows


def _binary(source: VectorFile, file: IO[bytes]) -> Iterator[Block]:
    assert source.count is not None
    pieces, size = _Pieces(file), 4 * source.width
    pieces.until(b"\n")
    left = source.count
    while left:
        rows = np.empty((min(_ROWS, left), source.width), np.float32)
        words: list[str] = []
        places: list[int] = []
        for _ in range(len(rows)):
            place, word = pieces.place, _word(source, pieces)
            values = pieces.read(size)
            if len(values) < size:
                done = source.count - left
                raise BadInput(
                    f"{source.path} ends at byte {pieces.place:,}, within word {done + 1:,} of the {source.count:,} "
                    "that its header promises; fetch it again."
                )
            left -= 1
            if (text := source.take(word.lstrip(b"\r\n"), place)) is not None:
                rows[len(words)] = np.frombuffer(values, "<f4")
                words.append(text)
                places.append(place)
        if words:
            yield source.keep(words, rows[: len(words)], places)
    if rest := pieces.read(_LONGEST).strip():
        raise BadInput(f"{source.path} goes on after the {source.count:,} words of its header ({len(rest):,} bytes or "
                       "more); its header is wrong.")  # fmt: skip


def _word(source: VectorFile, pieces: "_Pieces") -> bytes:
    """The bytes before the next space; one written after a row's newline keeps it."""
    start = pieces.place
    if (word := pieces.until(b" ")) is None:
        over = len(pieces.read(_LONGEST)) < _LONGEST
        what = f"ends at byte {pieces.place:,}, within a word" if over else f"has no word at byte {start:,}"
        raise BadInput(f"{source.path} {what}, though its header promises {source.count:,}; fetch it again.")
    return word


class _Pieces:
    """A file read in large pieces and given out in small ones, of which a binary file has millions."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.buffer, self.at, self.before = file, b"", 0, 0

    @property
    def place(self) -> int:
        """The byte of the file that comes next."""
        return self.before + self.at

    def read(self, size: int) -> bytes:
        self._hold(size)
        piece = self.buffer[self.at : self.at + size]
        self.at += len(piece)
        return piece

    def until(self, end: bytes) -> bytes | None:
        """What stands before the next `end`, which is passed over; None where there is none within `_LONGEST`."""
        if (found := self.buffer.find(end, self.at, self.at + _LONGEST)) < 0:
            self._hold(_LONGEST)
            found = self.buffer.find(end, self.at, self.at + _LONGEST)
        if found < 0:
            return None
        piece = self.buffer[self.at : found]
        self.at = found + 1
        return piece

    def _hold(self, size: int) -> None:
        if self.at + size > len(self.buffer):
            self.before += self.at
            self.buffer, self.at = self.buffer[self.at :] + self.file.read(max(1 << 20, size)), 0


def _is_binary(start: bytes) -> bool:
    """Whether rows are float32: their bytes hold control characters or are no UTF-8. A first row of numbers is text."""
    first = start.partition(b"\n")[0].split()[1:][-2:]
    if first and _are_numbers(first):
        return False
    try:
        start[: start.rfind(b"\n")].decode()
    except UnicodeDecodeError:
        return True
    return any(byte < 32 and byte not in b"\t\n\r\v\f" for byte in start)


def _are_numbers(words: list[bytes]) -> bool:
    try:
        return all(float(word) is not None for word in words)
    except ValueError:
        return False
