"""Word vector files: word2vec text and binary, GloVe text, fastText `.vec`; read and written block by block.

In: a plain or compressed file; its first bytes decide the format. Out: blocks of words and rows of float32, in the
order of the file. Memory holds one block and all words so far. A text file has `word number number ...` on each line.
word2vec and `.vec` have a first line with the number of words and the width, GloVe has none. A binary file has the same
first line, then for each word its bytes, a space and the row as little-endian float32.
"""

import logging
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
log = logging.getLogger(__name__)

Block = tuple[list[str], np.ndarray]
"""Words and their rows."""
_ROWS_PER_BLOCK = 2048
_LONGEST = 1 << 20
"""Bytes of a line, or of a word in a binary file, above which the file is not considered a file of vectors."""
_READ_SIZE = 1 << 20
_HEADER = re.compile(rb"\s*(\d+)[ \t]+(\d+)\s*$")


@dataclass
class VectorFile:
    """A file of word vectors; `blocks` reads it once."""

    path: Path
    kind: Kind
    width: int
    count: int | None
    """The number of words in the first line; None if the file has no such line."""
    skip_bad: bool = False
    """Skip rows that cannot be used instead of raising at the first."""
    skipped: int = 0
    places: dict[str, int] = field(default_factory=dict)
    """Where each word was first found: a line, or a byte in a binary file."""

    def blocks(self) -> Iterator[Block]:
        """Words and rows, a block at a time."""
        with _opened(self.path) as file:
            if self.kind == "binary":
                yield from _binary_blocks(self, file)
            else:
                yield from _text_blocks(self, file)

    @property
    def place(self) -> str:
        """The unit of `places`."""
        return "byte" if self.kind == "binary" else "line"

    def refuse(self, what: str, remedy: str, *, at: int) -> None:
        """Raises because of a row that cannot be used, or counts it as skipped."""
        self.skipped += 1
        if not self.skip_bad:
            raise BadInput(
                f"{self.path}, {self.place} {at:,}: {what}; {remedy}, or leave such rows out with `skip_bad=True`."
            )

    def take(self, word: bytes, at: int) -> str | None:
        """The word as text; None if it cannot be used."""
        try:
            text = word.decode()
        except UnicodeDecodeError:
            self.refuse(f"the word {word[:40]!r} is not UTF-8", "convert the file to UTF-8", at=at)
            return None
        first = self.places.setdefault(text, at)  # `at` itself for a new word
        if not text:
            self.refuse("a row without a word", "remove it", at=at)
            return None
        if first != at:
            self.refuse(f"the word {text!r} is already at {self.place} {first:,}", "remove one of them", at=at)
            return None
        return text

    def keep(self, words: list[str], rows_VD: np.ndarray, places: list[int]) -> Block:
        """The block without the rows that have NaN or infinity."""
        is_finite = np.isfinite(rows_VD).all(1)
        if is_finite.all():
            return words, rows_VD
        for i in np.flatnonzero(~is_finite):
            self.refuse(f"the row of {words[i]!r} holds NaN or infinity", "remove it", at=places[i])
        kept = [word for word, finite in zip(words, is_finite, strict=True) if finite]
        return kept, rows_VD[is_finite]


def open_vectors(path: Path, *, skip_bad: bool = False) -> VectorFile:
    """Determines the format of a file from its first bytes; raises if it is not a file of word vectors."""
    with _opened(path) as file:
        first_line = file.readline(_LONGEST)
        start = file.read(1 << 16)
    # Two numbers on the first line are a header. Anything else must be a first row, as GloVe has it.
    header = _HEADER.match(first_line)
    if header:
        count = int(header[1])
        width = int(header[2])
        if not count or not width:
            raise BadInput(f"{path}, line 1: a header of {count} words of width {width} describes no vectors.")
        kind: Kind = "binary" if _is_binary(start) else "text"
        return VectorFile(path, kind, width, count, skip_bad)
    fields = first_line.split()
    if len(fields) < 3 or not _are_numbers(fields[-2:]):
        raise BadInput(
            f"{path}, line 1: neither a word2vec header, as in '400000 100', nor a word and its numbers; "
            "it is not a file of word vectors."
        )
    return VectorFile(path, "headless", _count_numbers(fields), None, skip_bad)


def _count_numbers(fields: list[bytes]) -> int:
    """How many fields at the end of a line are numbers; the first field is always part of the word."""
    count = 0
    for text in reversed(fields[1:]):
        if not _are_numbers([text]):
            break
        count += 1
    return count


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The decompressed file; raises `BadInput` if it cannot be read to its end."""
    try:
        with open_binary(path) as file:
            yield file
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        what = "unreadable"
        if path.suffix in COMPRESSED:
            what = f"cut short or not a {path.suffix} file"
        raise BadInput(f"{path} is {what} ({error}); fetch or make it again.") from None


def write_vectors(path: Path, blocks: Iterable[Block], *, count: int, width: int, kind: str) -> None:
    """Writes words and rows as word2vec text or binary, or as fastText's `.vec`, which equals word2vec's text."""
    if kind not in FORMATS:
        raise BadConfig(f"There is no vector format named '{kind}' (known: {', '.join(FORMATS)}).")
    line_format = " ".join(["%.9g"] * width)  # nine digits restore every float32 exactly
    with atomic_file(path) as file:
        file.write(f"{count} {width}\n".encode())
        for words, rows in blocks:
            for word, row in zip(words, rows, strict=True):
                if word.split() != [word]:
                    raise BadInput(f"The word {word!r} has a space in it, which a vector file cannot hold.")
                if kind == "word2vec-binary":
                    values = row.astype("<f4").tobytes()
                else:
                    values = (line_format % tuple(row)).encode()
                file.write(word.encode() + b" " + values + b"\n")


def _text_blocks(source: VectorFile, file: IO[bytes]) -> Iterator[Block]:
    """The blocks of a text file."""
    line_number = 0
    if source.kind == "text":
        file.readline()  # the header
        line_number = 1
    num_rows = 0
    words: list[str] = []
    numbers: list[bytes] = []
    places: list[int] = []
    while True:
        line = file.readline(_LONGEST)
        line_number += 1
        if not line:
            break
        if not line.strip():
            continue
        num_rows += 1
        word, values = _split_row(source, line, line_number)
        if word is None:
            continue
        text = source.take(word, line_number)
        if text is None:
            continue
        words.append(text)
        numbers.append(values)
        places.append(line_number)
        if len(words) == _ROWS_PER_BLOCK:
            yield source.keep(words, _parse(source, numbers, places), places)
            words = []
            numbers = []
            places = []
    if words:
        yield source.keep(words, _parse(source, numbers, places), places)
    if source.count is not None and num_rows != source.count:
        _tell_of_count(source, source.count, num_rows)


def _tell_of_count(source: VectorFile, promised: int, found: int) -> None:
    """Raises because a file does not have the words of its header, or warns where bad rows may be left out."""
    what = f"{source.path}, line 1: the header promises {promised:,} words, the file has {found:,}; "
    what += "it was cut short or its header is wrong"
    if not source.skip_bad:
        raise BadInput(f"{what}; fetch it again, or take the words that it has with `skip_bad=True`.")
    log.warning(f"{what}.")


def _split_row(source: VectorFile, line: bytes, line_number: int) -> tuple[bytes | None, bytes]:
    """The word and the numbers of a line; the word is None if the line cannot be used."""
    line = line.strip(b" \t\r\n").replace(b"\t", b" ")
    word, space, values = line.partition(b" ")
    # Counting spaces is much faster than splitting, and right for almost all lines.
    num_values = values.count(b" ") + 1 if space else 0
    if num_values == source.width:
        return word, values
    # Everything before the last `width` fields is the word: it may contain spaces.
    fields = line.split()
    word_fields = fields[: -source.width]
    number_fields = fields[-source.width :]
    rest_of_word = word_fields[1:]
    # A word whose other fields are all numbers is more likely a row with too many numbers.
    has_too_many_numbers = bool(rest_of_word) and _are_numbers(rest_of_word)
    if not word_fields or not _are_numbers(number_fields) or has_too_many_numbers:
        source.refuse(f"{len(fields) - 1} numbers instead of {source.width}", "fix the row", at=line_number)
        return None, b""
    return b" ".join(word_fields), b" ".join(number_fields)


def _parse(source: VectorFile, numbers: list[bytes], places: list[int]) -> np.ndarray:
    """Lines of numbers as rows."""
    # The fast way: all lines at once. numpy only warns about text that is not a number, so the warning is an error.
    with suppress(ValueError, DeprecationWarning), warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        return np.fromstring(b" ".join(numbers), np.float32, sep=" ").reshape(-1, source.width)
    # Some line is wrong. Rows that cannot be read stay NaN, and are skipped as such.
    rows_VD = np.full((len(numbers), source.width), np.nan, np.float32)
    for i, values in enumerate(numbers):
        fields = values.split()
        problem = _problem(fields, source.width)
        if not problem:
            rows_VD[i] = [float(text) for text in fields]
        elif not source.skip_bad:
            source.refuse(problem, "fix the row", at=places[i])
    return rows_VD


def _problem(fields: list[bytes], width: int) -> str:
    """What is wrong with the numbers of a row; empty if nothing is."""
    for text in fields:
        if not _are_numbers([text]):
            shown = text.decode(errors="replace")
            return f"'{shown:.40}' is not a number"
    if len(fields) != width:
        return f"{len(fields)} numbers instead of {width}"
    return ""


def _binary_blocks(source: VectorFile, file: IO[bytes]) -> Iterator[Block]:
    """The blocks of a binary file."""
    assert source.count is not None
    reader = _BufferedReader(file)
    reader.until(b"\n")  # the header
    row_size = 4 * source.width
    num_left = source.count
    while num_left:
        rows_VD = np.empty((min(_ROWS_PER_BLOCK, num_left), source.width), np.float32)
        words: list[str] = []
        places: list[int] = []
        for _ in range(len(rows_VD)):
            place = reader.place
            word = _read_word(source, reader)
            values = reader.read(row_size)
            if len(values) < row_size:
                num_done = source.count - num_left
                raise BadInput(
                    f"{source.path} ends at byte {reader.place:,}, within word {num_done + 1:,} "
                    f"of the {source.count:,} that its header promises; fetch it again."
                )
            num_left -= 1
            # Some programs write a newline after each row, which comes before the next word.
            text = source.take(word.lstrip(b"\r\n"), place)
            if text is not None:
                rows_VD[len(words)] = np.frombuffer(values, "<f4")
                words.append(text)
                places.append(place)
        if words:
            yield source.keep(words, rows_VD[: len(words)], places)
    rest = reader.read(_LONGEST).strip()
    if rest:
        raise BadInput(
            f"{source.path} goes on after the {source.count:,} words of its header "
            f"({len(rest):,} bytes or more); its header is wrong."
        )


def _read_word(source: VectorFile, reader: "_BufferedReader") -> bytes:
    """The bytes before the next space."""
    start = reader.place
    word = reader.until(b" ")
    if word is not None:
        return word
    reached_end = len(reader.read(_LONGEST)) < _LONGEST
    what = f"has no word at byte {start:,}"
    if reached_end:
        what = f"ends at byte {reader.place:,}, within a word"
    raise BadInput(f"{source.path} {what}, though its header promises {source.count:,}; fetch it again.")


class _BufferedReader:
    """Reads a file in large pieces and returns small ones: a binary file has millions of words."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.buffer = b""
        self.position = 0
        """The next byte of the buffer."""
        self.buffer_start = 0
        """The byte of the file where the buffer begins."""

    @property
    def place(self) -> int:
        """The next byte of the file."""
        return self.buffer_start + self.position

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer at the end of the file."""
        self._fill(size)
        piece = self.buffer[self.position : self.position + size]
        self.position += len(piece)
        return piece

    def until(self, end: bytes) -> bytes | None:
        """The bytes before the next `end`, which is skipped; None if there is no `end` within `_LONGEST` bytes."""
        found = self.buffer.find(end, self.position, self.position + _LONGEST)
        if found < 0:
            self._fill(_LONGEST)
            found = self.buffer.find(end, self.position, self.position + _LONGEST)
        if found < 0:
            return None
        piece = self.buffer[self.position : found]
        self.position = found + 1
        return piece

    def _fill(self, size: int) -> None:
        """Reads on if the buffer has fewer than `size` bytes left."""
        if self.position + size > len(self.buffer):
            left = self.buffer[self.position :]
            self.buffer_start += self.position
            self.buffer = left + self.file.read(max(_READ_SIZE, size))
            self.position = 0


def _is_binary(start: bytes) -> bool:
    """Whether the bytes after the header are float32: they have control characters or are not UTF-8."""
    first_line = start.partition(b"\n")[0]
    last_fields = first_line.split()[1:][-2:]
    if last_fields and _are_numbers(last_fields):
        return False  # a word and its numbers
    try:
        # Up to the last newline: after it, a character may be cut in two.
        start[: start.rfind(b"\n")].decode()
    except UnicodeDecodeError:
        return True
    return any(byte < 32 and byte not in b"\t\n\r\v\f" for byte in start)


def _are_numbers(fields: list[bytes]) -> bool:
    try:
        for text in fields:
            float(text)
    except ValueError:
        return False
    return True
