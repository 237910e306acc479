"""Files -> documents, streaming. In: paths; out: `Document`s of raw lines.

Plain text (.txt and any other ending), JSON lines (.jsonl, .json) and Parquet; text may be .gz, .xz or .zst. Memory use
does not grow with a file: a line longer than `MAX_LINE` and a document longer than `MAX_DOCUMENT` characters are cut
there, and the tally counts the cuts. A file that cannot be read raises one `BadInput` that names file and line.
"""

import json
from collections import Counter
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, get_args

from firth.corpus.finding import ROWS, TABLES, Paths, expected_bytes, find_files
from firth.corpus.small_files import read_lines, read_texts
from firth.corpus.text_lines import BLOCK, FilePart, Lines, cut_line, decoded_lines, line_ends
from firth.errors import BadConfig, BadInput, absent
from firth.files import ending, open_stored
from firth.types import Document

Documents = Literal["blank-line", "file", "line", "field"]
"""What ends a document of a text file; a row of JSON lines or Parquet is always one document."""

MAX_LINE = 1 << 16
MAX_DOCUMENT = 1 << 22
_MAX_ROW = 1 << 24
"""Characters of a JSON row; it cannot be cut, so a longer one is refused."""


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
    allowed = get_args(Documents)
    if documents in allowed:
        return
    nearest = get_close_matches(str(documents), allowed, n=1)
    hint = f"; did you mean '{nearest[0]}'?" if nearest else "."
    raise BadConfig(f"`documents=` must be one of {', '.join(allowed)}; it is {documents!r}{hint}")


def no_text(path: Path) -> BadInput:
    """The error for a file without documents."""
    return BadInput(f"{path} holds no text; leave it out or replace it.")


def no_field(path: Path, field: str) -> BadInput:
    """The error for a file of plain text whose documents are to be fields."""
    return BadInput(
        f"{path} is plain text and has no field '{field}'; choose blank-line, file or line for `documents=`."
    )


def read_part(part: FilePart, *, documents: Documents, field: str = "text", tally: Counter[str]) -> Iterator[Document]:
    """The documents of a part of a file; Parquet and compressed files are always read as a whole."""
    path = part.path
    kind = ending(path)
    if kind == ".parquet":
        yield from _rows_to_documents(path, _parquet_texts(path, field, tally), tally)
    elif kind in ROWS:
        yield from _rows_to_documents(path, _json_texts(part, field, tally), tally)
    elif documents == "field":
        raise no_field(path, field)
    else:
        yield from _group(path, decoded_lines(part, MAX_LINE, tally), documents, tally)


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
        for piece in cut_line(line, MAX_LINE, tally):
            yield number, piece


def _json_texts(part: FilePart, field: str, tally: Counter[str]) -> Lines:
    """The texts of JSON lines."""
    cuts = tally["cut_lines"]
    for number, line in decoded_lines(part, _MAX_ROW, tally):
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
        raise absent("pyarrow", extra="data", user=f"{path}") from None
    number = 0
    try:
        with open_stored(path) as stored, parquet.ParquetFile(stored, pre_buffer=False, buffer_size=BLOCK) as file:
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
    for number, line in decoded_lines(FilePart(path), MAX_LINE, tally):
        if tally["cut_lines"] > cuts:
            raise BadInput(f"{path}, line {number}: a line of more than {MAX_LINE:,} characters; split it.")
        yield number, line


# With what other rooms need of this one.
__all__ = [
    "ROWS",
    "TABLES",
    "Documents",
    "FilePart",
    "Paths",
    "check_documents",
    "expected_bytes",
    "find_files",
    "line_ends",
    "no_text",
    "read_documents",
    "read_lines",
    "read_part",
    "read_texts",
    "text_lines",
]
