"""Files -> documents, streaming. In: paths; out: `Document`s of raw lines.

Plain text (.txt and any other ending), JSON lines (.jsonl, .json) and Parquet; text may be .gz, .xz or .zst. Memory use
does not grow with a file: a line longer than `MAX_LINE` and a document longer than `MAX_DOCUMENT` characters are cut
there, and the tally counts the cuts. A file that cannot be read raises one `BadInput` that names file and line.
"""

import glob
import io
import json
import logging
import lzma
import sys
import zlib
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from firth import remote
from firth.errors import BadConfig, BadInput, Unsupported
from firth.files import COMPRESSED, ending, open_binary, open_stored, stored_bytes
from firth.types import Document

log = logging.getLogger(__name__)

Documents = Literal["blank-line", "file", "line", "field"]
"""What ends a document of a text file; a row of JSON lines or Parquet is always one document."""
Paths = str | Path | Iterable[str | Path]

STANDARD_INPUT = Path("-")
"""The path by which `read_lines` reads standard input."""
MAX_LINE = 1 << 16
MAX_DOCUMENT = 1 << 22
_MAX_ROW = 1 << 24  # a JSON row cannot be cut, so one this long is refused
_BLOCK = 1 << 20
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_BINARY = "a NUL byte; this is a binary file, give text"
ROWS = (".jsonl", ".json")
TABLES = (".csv", ".tsv")
_IN_FOLDERS = (".txt", ".jsonl", ".parquet")  # .json is read when named: in folders it is mostly something else

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


def read_documents(
    paths: Paths,
    *,
    documents: Documents = "blank-line",
    field: str = "text",
    tally: Counter[str] | None = None,
) -> Iterator[Document]:
    """The documents of files, folders (recursive, sorted) and globs, in order."""
    check_documents(documents)
    if tally is None:
        tally = Counter()
    for path in find_files(paths, tally=tally):
        is_empty = True
        for document in read_part(FilePart(path), documents=documents, field=field, tally=tally):
            is_empty = False
            yield document
        if is_empty:
            raise no_text(path)


def check_documents(documents: str) -> None:
    """Raises for something that cannot end a document."""
    if documents not in get_args(Documents):
        raise BadConfig(f"documents must be one of {', '.join(get_args(Documents))}; it is '{documents}'.")


def no_text(path: Path) -> BadInput:
    """The error for a file without documents."""
    return BadInput(f"{path} holds no text; leave it out or replace it.")


def find_files(paths: Paths, *, tally: Counter[str] | None = None) -> list[Path]:
    """The files that paths, folders and globs name, each once; the tally counts other files of folders as skipped."""
    if tally is None:
        tally = Counter()
    if isinstance(paths, str | Path):
        paths = [paths]
    found: dict[Path, None] = {}  # an ordered set
    for path in paths:
        files = _expand(Path(path), tally)
        found.update(dict.fromkeys(files))
    if not found:
        raise BadInput("No files were given; name a file, a folder or a pattern such as 'texts/*.txt'.")
    return list(found)


def expected_bytes(files: Iterable[Path]) -> int:
    """An estimate of how much text the files hold: compressed text grows about fourfold, Parquet twofold."""
    factors = dict.fromkeys(COMPRESSED, 4)
    factors[".parquet"] = 2
    return sum(stored_bytes(path) * factors.get(path.suffix, 1) for path in files)


def _expand(path: Path, tally: Counter[str]) -> list[Path]:
    """The files that one path, folder or glob names."""
    if remote.is_remote(path):
        return _expand_remote(path, tally)
    if path.is_file():
        return [path]
    if path.is_dir():
        return _files_of_folder(path, tally)
    if glob.has_magic(str(path)):
        matches = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
        files = [match for match in matches if match.is_file()]
        if not files:
            raise BadInput(f"{path} matches no file; check the pattern.")
        return files
    raise BadInput(f"{path} does not exist; check the path.")


def _files_of_folder(folder: Path, tally: Counter[str]) -> list[Path]:
    """The text files below `folder`, sorted; hidden files are ignored."""
    all_files = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not _hidden(path.relative_to(folder)):
            all_files.append(path)
    return _text_files(folder, all_files, tally)


def _expand_remote(path: Path, tally: Counter[str]) -> list[Path]:
    """The files that a URL of a file, folder or glob names."""
    if glob.has_magic(str(path)):
        files = remote.matches(path)
        if not files:
            raise BadInput(f"{path} matches no file; check the pattern.")
        return files
    if remote.is_file(path):
        return [path]
    if remote.is_folder(path):
        return _text_files(path, remote.files_below(path), tally)
    raise BadInput(f"{remote.url_of(path)} does not exist; check the path.")


def _text_files(folder: Path, all_files: list[Path], tally: Counter[str]) -> list[Path]:
    """The text files among those of a folder; the others are counted as skipped."""
    files = [path for path in all_files if ending(path) in _IN_FOLDERS]
    tally["skipped_files"] += len(all_files) - len(files)
    if not files:
        raise BadInput(
            f"{folder} holds no {', '.join(_IN_FOLDERS)} files; name the files themselves or another folder."
        )
    return files


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def read_part(part: FilePart, *, documents: Documents, field: str = "text", tally: Counter[str]) -> Iterator[Document]:
    """The documents of a part of a file; Parquet and compressed files are always read as a whole."""
    path = part.path
    kind = ending(path)
    if kind == ".parquet":
        yield from _rows_to_documents(path, _parquet_texts(path, field, tally), tally)
    elif kind in ROWS:
        yield from _rows_to_documents(path, _json_texts(part, field, tally), tally)
    elif documents == "field":
        raise BadInput(
            f"{path} is plain text and has no field '{field}'; choose blank-line, file or line for documents."
        )
    else:
        yield from _group(path, _text_lines(part, MAX_LINE, tally), documents, tally)


def _group(path: Path, lines: Lines, documents: Documents, tally: Counter[str]) -> Iterator[Document]:
    """Lines -> documents. The pieces of a cut line share its number."""
    block: list[str] = []
    size = 0
    start = 0  # the number of the block's first line
    last_number = 0
    for number, line in lines:
        is_too_long = size + len(line) > MAX_DOCUMENT
        is_end = _ends_document(line, documents, is_new_line=number != last_number)
        if block and (is_too_long or is_end):
            tally["cut_documents"] += is_too_long and not is_end
            yield Document(tuple(block), f"{path}:{start}")
            block = []
            size = 0
        if line and not line.isspace():
            if not block:
                start = number
            block.append(line)
            size += len(line)
        last_number = number
    if block:
        yield Document(tuple(block), f"{path}:{start}")


def _ends_document(line: str, documents: Documents, *, is_new_line: bool) -> bool:
    """Whether the document before `line` ends here."""
    if documents == "line":
        return is_new_line
    if documents == "blank-line":
        return not line.strip()
    return False


def _rows_to_documents(path: Path, texts: Lines, tally: Counter[str]) -> Iterator[Document]:
    """Each row is a document; one that is too long becomes several."""
    for number, text in texts:
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        yield from _group(path, _numbered_pieces(number, lines, tally), "file", tally)


def _numbered_pieces(number: int, lines: list[str], tally: Counter[str]) -> Lines:
    for line in lines:
        for piece in _cut(line, MAX_LINE, tally):
            yield number, piece


def _cut(line: str, limit: int, tally: Counter[str]) -> Iterator[str]:
    """A line in pieces of at most `limit` characters, cut at a space where there is one."""
    while len(line) > limit:
        tally["cut_lines"] += 1
        space = line.rfind(" ", limit // 2, limit)
        end = limit if space < 0 else space + 1
        yield line[:end]
        line = line[end:]
    yield line


def _text_lines(part: FilePart, limit: int, tally: Counter[str]) -> Lines:
    """The numbered lines of UTF-8 text with any line ends; a byte order mark is dropped.

    A line of more than `limit` characters comes in several pieces with the same number.
    """
    number = part.first_line
    rest = ""  # the beginning of a line that goes on in the next block
    for text in _text_blocks(part, tally):
        *whole_lines, rest = (rest + text).split("\n")
        for line in whole_lines:
            if len(line) > limit:
                for piece in _cut(line, limit, tally):
                    yield number, piece
            else:
                yield number, line
            number += 1
        if len(rest) > limit:
            *pieces, rest = _cut(rest, limit, tally)
            for piece in pieces:
                yield number, piece
    if rest:
        yield number, rest


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
            raise BadInput(f"{path}, line {line}: {_BINARY}, JSON lines or Parquet.")
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
            while block := file.read(min(_BLOCK, num_left)):
                num_left -= len(block)
                yield block
        yield b""
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        fault = "unreadable"
        if path.suffix in COMPRESSED:
            fault = f"cut short or not a {path.suffix} file"
        raise BadInput(f"{path} is {fault} ({error}); fetch or make it again.") from None


def _json_texts(part: FilePart, field: str, tally: Counter[str]) -> Lines:
    """The texts of JSON lines."""
    cuts = tally["cut_lines"]
    for number, line in _text_lines(part, _MAX_ROW, tally):
        where = f"{part}, line {number}"
        if tally["cut_lines"] > cuts:
            raise BadInput(f"{where}: a row of more than {_MAX_ROW >> 20} MB; split its text over several rows.")
        if not line or line.isspace():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{where}: not a JSON row ({error}); give one object a line.") from None
        yield number, _field(row, field, where)
        cuts = tally["cut_lines"]  # the consumer may have cut lines of the text in the meantime


def _field(row: object, field: str, where: str) -> str:
    """The text of a row; `where` names the row in messages."""
    if not isinstance(row, dict):
        raise BadInput(f'{where}: a row must be an object such as {{"{field}": "..."}}; correct or remove it.')
    if field not in row:
        names = ", ".join(row) or "none"
        raise BadInput(
            f"{where}: the row has no field '{field}' but {names}; name the field of the text with `field=`."
        )
    text = row[field]
    if not isinstance(text, str):
        raise BadInput(
            f"{where}: the field '{field}' is not text; name the field of the text with `field=`, or remove the row."
        )
    return text


def _parquet_texts(path: Path, field: str, tally: Counter[str]) -> Lines:
    """The texts of a Parquet file, numbered by row."""
    if path.suffix != ".parquet":
        raise BadInput(f"{path}: Parquet is compressed inside; decompress the file first.")
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise Unsupported(f"{path} needs pyarrow: pip install 'firth[data]'.") from None
    number = 0
    try:
        with open_stored(path) as stored, parquet.ParquetFile(stored, pre_buffer=False, buffer_size=_BLOCK) as file:
            if field not in file.schema_arrow.names:
                names = ", ".join(file.schema_arrow.names)
                raise BadInput(f"{path} has no column '{field}' but {names}; name the column of the text.")
            for batch in file.iter_batches(batch_size=256, columns=[field]):
                for text in batch.column(0).to_pylist():
                    number += 1
                    yield number, _field({field: text}, field, f"{path}, row {number}")
                tally["bytes"] += batch.nbytes
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(
            f"{path} cannot be read as Parquet after row {number} ({error}); fetch or make it again."
        ) from None


def text_lines(path: Path, *, tally: Counter[str]) -> Lines:
    """The numbered lines of a text file, as for documents, but each as a whole; a very long one is refused."""
    cuts = tally["cut_lines"]
    for number, line in _text_lines(FilePart(path), MAX_LINE, tally):
        if tally["cut_lines"] > cuts:
            raise BadInput(f"{path}, line {number}: a line of more than {MAX_LINE:,} characters; split it.")
        yield number, line


def read_lines(path: Path, *, remedy: str = "put one text on each line") -> list[str]:
    """The lines of a small UTF-8 file, such as texts to embed; `remedy` says what to put into an empty one.

    The path "-" is standard input.
    """
    if path.is_dir():
        raise BadInput(f"{path} is a folder; name a file in it.")
    is_standard_input = path == STANDARD_INPUT
    source = "standard input" if is_standard_input else str(path)
    try:
        text = _read_standard_input() if is_standard_input else _read_text(path)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist.") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{source} is not UTF-8 (byte {error.start}); {conversion(error.object)}.") from None
    if not text:
        raise BadInput(f"{source} is empty; {remedy}.")
    if "\0" in text:
        before = text[: text.index("\0")]
        line = 1 + before.count("\n")
        raise BadInput(f"{source}, line {line}: {_BINARY}.")
    # Not splitlines: it also cuts at form feeds and line separators, and the rows would no longer be the file's lines.
    return text.removesuffix("\n").split("\n")


def _read_text(path: Path) -> str:
    if not remote.is_remote(path):
        return path.read_text("utf-8-sig")
    with remote.open_remote(path) as file:
        text = file.read().decode("utf-8-sig")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read_standard_input() -> str:
    # Opened again, because its encoding may be another one than a file's.
    with open(sys.stdin.fileno(), encoding="utf-8-sig", closefd=False) as file:
        return file.read()


def read_texts(path: Path) -> list[str]:
    """`read_lines` where every line is an input of the model; blank ones, too, so that line numbers do not change."""
    lines = read_lines(path)
    tell_of_table(path)
    num_blank = sum(not line.strip() for line in lines)
    if num_blank:
        noun = "line" if num_blank == 1 else "lines"
        log.info(f"{path} has {num_blank:,} blank {noun}, answered like the others.")
    return lines


def tell_of_table(path: Path) -> None:
    """Warns if a file whose lines are read as texts is a table or a file of rows by its name."""
    is_table = ending(path) in (*TABLES, *ROWS, ".conll")
    if is_table:
        log.warning(
            f"{path}: every line of a file of rows is read as one text, with all its columns; write the texts "
            "to a .txt file first (such as cut -f 2 ROWS.tsv > TEXT.txt)."
        )
