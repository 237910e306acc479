"""Bytes of a file -> numbered lines of text, in blocks, so that memory use does not grow with the file.

UTF-8 with any line ends, compressed or not. What is not UTF-8 text raises a `BadInput` that names file and line.
"""

import io
import lzma
import sys
import zlib
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from firth.errors import BadInput
from firth.files import COMPRESSED, open_binary

BLOCK = 1 << 20
"""Bytes that are read at once."""
BINARY = "a NUL byte; this is a binary file, give text"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")

Lines = Iterator[tuple[int, str]]
"""Lines or rows with their numbers in the file."""


@dataclass(frozen=True)
class FilePart:
    """The bytes of a file from `start` to `end`; a part of plain text begins at the beginning of a line."""

    path: Path
    start: int = 0
    end: int | None = None
    first_line: int = 1
    """The number of its first line in the file, for messages."""

    def __str__(self) -> str:
        return str(self.path)


def decoded_lines(part: FilePart, limit: int, tally: Counter[str]) -> Lines:
    """The numbered lines of UTF-8 text with any line ends; a byte order mark is dropped.

    A line of more than `limit` characters comes in several pieces with the same number.
    """
    number = part.first_line
    rest = ""  # the beginning of a line that goes on in the next block
    for text in _text_blocks(part, tally):
        *whole_lines, rest = (rest + text).split("\n")
        for line in whole_lines:
            if len(line) > limit:
                for piece in cut_line(line, limit, tally):
                    yield number, piece
            else:
                yield number, line
            number += 1
        if len(rest) > limit:
            *pieces, rest = cut_line(rest, limit, tally)
            for piece in pieces:
                yield number, piece
    if rest:
        yield number, rest


def cut_line(line: str, limit: int, tally: Counter[str]) -> Iterator[str]:
    """A line in pieces of at most `limit` characters, cut at a space where there is one."""
    while len(line) > limit:
        tally["cut_lines"] += 1
        space = line.rfind(" ", limit // 2, limit)
        end = limit if space < 0 else space + 1
        yield line[:end]
        line = line[end:]
    yield line


def _text_blocks(part: FilePart, tally: Counter[str]) -> Iterator[str]:
    """The decoded text in blocks, with line feeds as line ends."""
    path = part.path
    decoder = io.IncrementalNewlineDecoder(getincrementaldecoder("utf-8")(), translate=True)
    line = part.first_line
    is_first = part.start == 0
    for block in _byte_blocks(part):
        if is_first and block[:2] in _UTF_16:
            raise BadInput(f"{path} is UTF-16; {conversion(block)}.")
        if b"\0" in block:
            line += line_ends(block[: block.index(b"\0")])
            raise BadInput(f"{path}, line {line}: {BINARY}, JSON lines or Parquet.")
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            line += line_ends(error.object[: error.start])
            raise BadInput(
                f"{path}, line {line}: not valid UTF-8 (byte 0x{error.object[error.start]:02x}); "
                f"{conversion(error.object)}."
            ) from None
        tally["bytes"] += len(block)
        if is_first:
            text = text.removeprefix("\ufeff")
            is_first = False
        line += text.count("\n")
        yield text


def conversion(data: bytes) -> str:
    """Advice for a file that is not UTF-8, with a guess at its encoding."""
    if b"\0" in data and data[:2] not in _UTF_16:
        return "it seems to be a binary file, give text"
    return f"convert the file, for example with iconv -f {_guess_encoding(data)} -t UTF-8"


def _guess_encoding(data: bytes) -> str:
    """GB18030 if the bytes then read as Chinese; otherwise Latin-1, which can decode any byte."""
    if data[:2] in _UTF_16:
        return "UTF-16"
    text = data[:4096].decode("gb18030", "replace")
    num_chinese = sum("\u4e00" <= character <= "\u9fff" for character in text)
    if num_chinese > len(text) // 4:
        return "GB18030"
    return "LATIN1"


def line_ends(data: bytes) -> int:
    """How many lines end in the bytes, by any of the three line ends."""
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")


def _byte_blocks(part: FilePart) -> Iterator[bytes]:
    """The bytes in blocks; the last one is empty."""
    path = part.path
    try:
        with open_binary(path) as file:
            if part.start:
                file.seek(part.start)
            num_left = sys.maxsize if part.end is None else part.end - part.start
            while block := file.read(min(BLOCK, num_left)):
                num_left -= len(block)
                yield block
        yield b""
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        fault = "unreadable"
        if path.suffix in COMPRESSED:
            fault = f"cut short or not a {path.suffix} file"
        raise BadInput(f"{path} is {fault} ({error}); fetch or make it again.") from None
