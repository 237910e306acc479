"""Files -> documents, streaming: in go paths, out come `Document`s of raw lines.

Plain text (.txt and any other ending), JSON lines (.jsonl, .json) and Parquet; text may be .gz, .xz or .zst. Memory
does not grow with a file: a line longer than `MAX_LINE` and a document longer than `MAX_DOCUMENT` characters are cut
there, and the cuts are counted in the tally. What cannot be read raises one `BadInput` that names file and line.
"""

import glob
import io
import json
import lzma
import zlib
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from firth.console import say
from firth.errors import BadConfig, BadInput, Unsupported
from firth.files import COMPRESSED, ending, open_binary
from firth.types import Document

Documents = Literal["blank-line", "file", "line", "field"]
"""What ends a document of a text file; a row of JSON lines or Parquet is always one document."""
Paths = str | Path | Iterable[str | Path]

MAX_LINE = 1 << 16
MAX_DOCUMENT = 1 << 22
_MAX_ROW = 1 << 24  # a JSON row cannot be cut, so one this long is refused
_BLOCK = 1 << 20
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_BINARY = "a NUL byte; this is a binary file, give text"
_ROWS = (".jsonl", ".json")
TABLES = (".csv", ".tsv")
_IN_FOLDERS = (".txt", ".jsonl", ".parquet")  # .json is read when named: in folders it is mostly something else

Lines = Iterator[tuple[int, str]]


def read_documents(
    paths: Paths,
    *,
    documents: Documents = "blank-line",
    field: str = "text",
    tally: Counter[str] | None = None,
) -> Iterator[Document]:
    """The documents of files, folders (recursive, sorted) and globs, in order."""
    if documents not in get_args(Documents):
        raise BadConfig(f"documents must be one of {', '.join(get_args(Documents))}; it is '{documents}'.")
    tally = Counter() if tally is None else tally
    for path in find_files(paths, tally=tally):
        found = False
        for document in _read(path, documents, field, tally):
            found = True
            yield document
        if not found:
            raise BadInput(f"{path} holds no text; leave it out or replace it.")


def find_files(paths: Paths, *, tally: Counter[str] | None = None) -> list[Path]:
    """The files that paths, folders and globs name, each once; others in the folders are counted as skipped."""
    tally = Counter() if tally is None else tally
    found: dict[Path, None] = {}
    for path in [paths] if isinstance(paths, str | Path) else paths:
        found.update(dict.fromkeys(_expand(Path(path), tally)))
    if not found:
        raise BadInput("No files were given; name a file, a folder or a pattern such as 'texts/*.txt'.")
    return list(found)


def expected_bytes(files: Iterable[Path]) -> int:
    """A guess at how much text files hold: compressed text grows about fourfold, Parquet twofold."""
    factors = {**dict.fromkeys(COMPRESSED, 4), ".parquet": 2}
    return sum(path.stat().st_size * factors.get(path.suffix, 1) for path in files)


def _expand(path: Path, tally: Counter[str]) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        inside = [p for p in sorted(path.rglob("*")) if p.is_file() and not _hidden(p.relative_to(path))]
        files = [p for p in inside if ending(p) in _IN_FOLDERS]
        tally["skipped_files"] += len(inside) - len(files)
        if not files:
            raise BadInput(
                f"{path} holds no {', '.join(_IN_FOLDERS)} files; name the files themselves or another folder."
            )
        return files
    if glob.has_magic(str(path)):
        files = [p for name in sorted(glob.glob(str(path), recursive=True)) if (p := Path(name)).is_file()]
        if files:
            return files
        raise BadInput(f"{path} matches no file; check the pattern.")
    raise BadInput(f"{path} does not exist; check the path.")


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _read(path: Path, documents: Documents, field: str, tally: Counter[str]) -> Iterator[Document]:
    kind = ending(path)
    if kind == ".parquet":
        yield from _rows_to_documents(path, _parquet_texts(path, field, tally), tally)
    elif kind in _ROWS:
        yield from _rows_to_documents(path, _json_texts(path, field, tally), tally)
    elif documents == "field":
        raise BadInput(
            f"{path} is plain text and has no field '{field}'; choose blank-line, file or line for documents."
        )
    else:
        yield from _group(path, _text_lines(path, MAX_LINE, tally), documents, tally)


def _group(path: Path, lines: Lines, documents: Documents, tally: Counter[str]) -> Iterator[Document]:
    """Lines -> documents. Pieces of a cut line share its number."""
    block: list[str] = []
    size = start = last = 0
    for number, line in lines:
        over = size + len(line) > MAX_DOCUMENT
        ends = number != last if documents == "line" else documents == "blank-line" and not line.strip()
        if block and (over or ends):
            tally["cut_documents"] += over and not ends
            yield Document(tuple(block), f"{path}:{start}")
            block, size = [], 0
        if line and not line.isspace():
            start = start if block else number
            block.append(line)
            size += len(line)
        last = number
    if block:
        yield Document(tuple(block), f"{path}:{start}")


def _rows_to_documents(path: Path, texts: Lines, tally: Counter[str]) -> Iterator[Document]:
    for number, text in texts:
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        pieces = ((number, piece) for line in lines for piece in _cut(line, MAX_LINE, tally))
        yield from _group(path, pieces, "file", tally)


def _cut(line: str, limit: int, tally: Counter[str]) -> Iterator[str]:
    """A line in pieces of at most `limit` characters, cut at a space where there is one."""
    while len(line) > limit:
        tally["cut_lines"] += 1
        place = line.rfind(" ", limit // 2, limit) + 1 or limit
        yield line[:place]
        line = line[place:]
    yield line


def _text_lines(path: Path, limit: int, tally: Counter[str]) -> Lines:
    """The numbered lines of a text file in UTF-8, whatever its line ends; a byte order mark is dropped."""
    number, rest = 1, ""
    for text in _text_blocks(path, tally):
        *whole, rest = (rest + text).split("\n")
        for line in whole:
            if len(line) > limit:
                yield from ((number, piece) for piece in _cut(line, limit, tally))
            else:
                yield number, line
            number += 1
        if len(rest) > limit:
            *pieces, rest = _cut(rest, limit, tally)
            yield from ((number, piece) for piece in pieces)
    if rest:
        yield number, rest


def _text_blocks(path: Path, tally: Counter[str]) -> Iterator[str]:
    decoder = io.IncrementalNewlineDecoder(getincrementaldecoder("utf-8")(), translate=True)
    line, first = 1, True
    for block in _byte_blocks(path):
        if first and block[:2] in _UTF_16:
            raise BadInput(f"{path} is UTF-16; {conversion(block)}.")
        if b"\0" in block:
            line += _line_ends(block[: block.index(b"\0")])
            raise BadInput(f"{path}, line {line}: {_BINARY}, JSON lines or Parquet.")
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            line += _line_ends(error.object[: error.start])
            raise BadInput(
                f"{path}, line {line}: not valid UTF-8 (byte 0x{error.object[error.start]:02x}); "
                f"{conversion(error.object)}."
            ) from None
        tally["bytes"] += len(block)
        text = text.removeprefix("\ufeff") if first else text
        first = False
        line += text.count("\n")
        yield text


def conversion(data: bytes) -> str:
    """What to do with bytes that are not UTF-8: China's encoding where they give Chinese, else the one of any byte."""
    text = data[:4096].decode("gb18030", "replace")
    chinese = sum("\u4e00" <= character <= "\u9fff" for character in text) > len(text) // 4
    name = "UTF-16" if data[:2] in _UTF_16 else "GB18030" if chinese else "LATIN1"
    return f"convert the file, for example with iconv -f {name} -t UTF-8"


def _line_ends(data: bytes) -> int:
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")


def _byte_blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file in blocks; the last one is empty."""
    try:
        with open_binary(path) as file:
            while block := file.read(_BLOCK):
                yield block
        yield b""
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        what = f"cut short or not a {path.suffix} file" if path.suffix in COMPRESSED else "unreadable"
        raise BadInput(f"{path} is {what} ({error}); fetch or make it again.") from None


def _json_texts(path: Path, field: str, tally: Counter[str]) -> Lines:
    cuts = tally["cut_lines"]
    for number, line in _text_lines(path, _MAX_ROW, tally):
        where = f"{path}, line {number}"
        if tally["cut_lines"] > cuts:
            raise BadInput(f"{where}: a row of more than {_MAX_ROW >> 20} MB; split its text over several rows.")
        if not line or line.isspace():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{where}: not a JSON row ({error}); give one object a line.") from None
        yield number, _field(row, field, where)
        cuts = tally["cut_lines"]  # the text's own lines may have been cut meanwhile


def _field(row: Any, field: str, where: str) -> str:
    if not isinstance(row, dict):
        raise BadInput(f'{where}: a row must be an object such as {{"{field}": "..."}}; mend or remove it.')
    if field not in row:
        names = ", ".join(row) or "none"
        raise BadInput(f"{where}: the row has no field '{field}' but {names}; name the field of the text.")
    if not isinstance(row[field], str):
        raise BadInput(f"{where}: the field '{field}' is not text; name the field of the text or remove the row.")
    return str(row[field])


def _parquet_texts(path: Path, field: str, tally: Counter[str]) -> Lines:
    if path.suffix != ".parquet":
        raise BadInput(f"{path}: Parquet is compressed inside; decompress the file first.")
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise Unsupported(f"{path} needs pyarrow: pip install 'firth[data]'.") from None
    number = 0
    try:
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BLOCK) as file:
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


def read_lines(path: Path, *, remedy: str = "put one text on each line") -> list[str]:
    """The lines of a small UTF-8 file, such as texts to embed; `remedy` says what to put into an empty one."""
    if path.is_dir():
        raise BadInput(f"{path} is a folder; name a file in it.")
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist.") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 (byte {error.start}); {conversion(error.object)}.") from None
    if not text:
        raise BadInput(f"{path} is empty; {remedy}.")
    if "\0" in text:
        raise BadInput(f"{path}, line {1 + text[: text.index(chr(0))].count(chr(10))}: {_BINARY}.")
    # Not splitlines: it also cuts at form feeds and line separators, and the rows would no longer be the file's lines.
    return text.removesuffix("\n").split("\n")


def read_texts(path: Path) -> list[str]:
    """The same where every line is a text to answer; blank ones too, so that answers stay beside their lines."""
    lines = read_lines(path)
    tell_of_table(path)
    if blank := sum(not line.strip() for line in lines):
        say(f"{path} has {blank:,} blank {'line' if blank == 1 else 'lines'}, answered like the others.")
    return lines


def tell_of_table(path: Path) -> None:
    """Says so where the lines of a file, which are about to be read as texts, are rows by its name."""
    if ending(path) in (*TABLES, *_ROWS, ".conll"):
        say(
            f"Warning: {path}: every line of a file of rows is read as one text, with all its columns; write the texts "
            "to a .txt file first (such as cut -f 2 ROWS.tsv > TEXT.txt)."
        )
