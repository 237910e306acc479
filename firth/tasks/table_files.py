"""Files of rows and columns -> dictionaries: TSV, CSV and JSON lines, with the quirks of real files.

In: a path and the columns wanted. Out: (row number, values by column). A tab file has no quotes; a comma file is read
by the rules of CSV; a byte-order mark is dropped. A column named by a number counts the columns of a file without
header.
"""

import csv
import io
import json
import lzma
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from firth.corpus.text_lines import conversion
from firth.errors import BadInput
from firth.files import ending, open_binary
from firth.types import Problem

MAX_ROW = 1_000_000
"""Characters of the longest row; a longer one is taken for a mistake."""
END_OF_FILE = "\x1e"
"""A mark after the last row of a comma file, which is a row of its own if all quotes are closed."""
_JSON = (".json", ".jsonl")
JSON_ROW = '{"text": "...", "label": "..."}'
"""How a row of JSON is written."""

SHOWN = 60
"""Characters of a column's name that a message shows."""
MOST_SHOWN = 20
"""Columns that a message names."""

Fields = list[str] | Mapping[str, object] | Problem
"""A row of a table, a JSON object, or what is wrong with the row."""
Line = tuple[int, Fields]
"""The number of a row, as editors count, and its fields."""


@dataclass(frozen=True)
class Rows:
    """A file's rows, cut into fields."""

    path: Path
    columns: Sequence[str]
    """Names from the header, or the keys of the first JSON row."""
    lines: Sequence[Line]
    """All rows of the file, the header included."""
    quoted: Mapping[int, int] = field(default_factory=dict)
    """Columns of a tab file whose cells a spreadsheet seems to have put in quotes, each with the first such row."""

    def has_columns(self, wanted: Sequence[str]) -> bool:
        """Whether these columns can be read here."""
        return all(_is_number(name) or name in self.columns for name in wanted)

    @property
    def shown_columns(self) -> str:
        """The columns for a message: without a header they may be long texts, and a broken table has thousands."""
        names = [_shortened(name) for name in self.columns[:MOST_SHOWN]]
        num_left_out = len(self.columns) - len(names)
        if num_left_out:
            names.append(f"and {num_left_out:,} more")
        return ", ".join(names)

    def refuse_commas(self) -> None:
        """Raises if a tab file seems to be cut at commas; called once its columns are not found."""
        if ending(self.path) != ".csv" and _has_separator(self.lines, ","):
            raise BadInput(
                f"{self.path}: the columns seem to be separated by commas; let the name of the file end in .csv."
            )

    def take(self, wanted: Sequence[str], problems: list[Problem]) -> Iterator[tuple[int, dict[str, object]]]:
        """The wanted columns of every row; rows that lack one go to the problems."""
        num_counted = sum(_is_number(name) for name in wanted)
        num_named = sum(bool(name) for name in wanted) - num_counted
        if "0" in wanted and (num_counted or "0" not in self.columns):
            raise BadInput(f"{self.path} has no column 0: columns are counted from 1, so the first column is 1.")
        last_counted = max((int(name) for name in wanted if _is_number(name)), default=0)
        if last_counted > len(self.columns):
            self.refuse_commas()
        if num_counted and num_named:
            raise BadInput(f"{self.path}: name all columns or count them all; {', '.join(wanted)} mixes both.")
        for name in wanted:
            if not self.has_columns([name]):
                raise BadInput(f"{self.path} has no column '{name}'; its columns are {self.shown_columns}.")
            # Counted columns may have equal cells in the first row, which is no header.
            if not num_counted and self.columns.count(name) > 1:
                raise BadInput(f"{self.path} has several columns '{name}'; give them different names in its first row.")
        # Counted columns are those of a file without header.
        for number, fields in self._body(has_header=not num_counted):
            taken = self._values(number, fields, wanted)
            if isinstance(taken, Problem):
                problems.append(taken)
            else:
                yield number, taken
        problems += self._quote_warnings(wanted)

    def _quote_warnings(self, wanted: Sequence[str]) -> list[Problem]:
        """A warning for each wanted column whose cells have quotes."""
        warnings = []
        for name in wanted:
            place = self._place(name)
            if place in self.quoted:
                what = f"cells of column '{name}' are in quotes, which are read as part of the text"
                remedy = "if a spreadsheet put them there, save the table as .csv with commas"
                warnings.append(Problem(self.quoted[place], what, remedy, bad=False))
        return warnings

    def _place(self, name: str) -> int:
        """The column's index."""
        if _is_number(name):
            return int(name) - 1
        return self.columns.index(name)

    def _body(self, *, has_header: bool) -> Sequence[Line]:
        """The rows without the header."""
        is_table = bool(self.lines) and isinstance(self.lines[0][1], list)
        if has_header and is_table:
            return self.lines[1:]
        return self.lines

    def _values(self, number: int, fields: Fields, wanted: Sequence[str]) -> dict[str, object] | Problem:
        """The wanted columns of one row."""
        if isinstance(fields, Problem):
            return fields
        values: dict[str, object] = {}
        if isinstance(fields, Mapping):
            for name in wanted:
                values[name] = fields.get(name)
                if values[name] is None:
                    return Problem(number, f"the row has no '{name}'", "add it or remove the row")
            return values
        places = [self._place(name) for name in wanted]
        needed = max(places) + 1
        # Counted columns may be followed by others; under a header every row has as many columns as the header.
        is_counted = any(_is_number(name) for name in wanted)
        expected = needed if is_counted else len(self.columns)
        if len(fields) < needed or (not is_counted and len(fields) > expected):
            return Problem(
                number, f"the number of columns is {len(fields)}, not {expected}", "correct or remove the row"
            )
        for name, place in zip(wanted, places, strict=True):
            values[name] = fields[place]
        return values


def shown_json(value: object) -> str:
    """The beginning of a JSON value as a message shows it."""
    return json.dumps(value, ensure_ascii=False, default=str)[:SHOWN]


def _shortened(name: str) -> str:
    """The name of a column as a message shows it; without a header it may be a long text."""
    if len(name) <= SHOWN:
        return name
    return f"{name[:SHOWN]}…"


def as_texts(value: object) -> tuple[str, ...] | None:
    """The texts of a list or a tuple; None if it is neither or holds something else."""
    if not isinstance(value, list | tuple):
        return None
    if not all(isinstance(text, str) for text in value):
        return None
    return tuple(value)


def _is_number(name: str) -> bool:
    """Whether it counts a column, from 1 on."""
    return name.isascii() and name.isdigit() and int(name) > 0


def read_rows(path: Path) -> Rows:
    """Cuts a file into rows by its ending. A comma file without commas in its header is cut at tabs."""
    text = read_text(path)
    if not text.strip():
        raise BadInput(f"{path} is empty; give it one example a row.")
    if "\n" not in text:
        text = text.replace("\r", "\n")  # the line ends of old Macs
    if ending(path) in _JSON:
        return _json_rows(path, text)
    header = text.split("\n", 1)[0]
    has_commas = ending(path) == ".csv" and "\t" not in header
    split = _comma_lines if has_commas else _tab_lines
    lines = list(split(text))
    if not lines:
        raise BadInput(f"{path} has only empty rows; give it one example a row.")
    if _has_separator(lines, ";"):
        raise BadInput(
            f"{path}: the columns are separated by semicolons; save the file with commas (.csv) or tabs (.tsv)."
        )
    _, first = lines[0]
    columns: list[str] = []
    if isinstance(first, list):
        columns = [name.strip() for name in first]
    quoted = {} if has_commas else _quoted_columns(lines)
    return Rows(path, columns, lines, quoted)


def _has_separator(lines: Sequence[Line], separator: str) -> bool:
    """Whether it separates the columns: the first row is a single cell with some, and most rows have as many."""
    if len(lines) < 2:
        return False
    _, first = lines[0]
    if not isinstance(first, list) or len(first) > 1:
        return False
    num_wanted = first[0].count(separator)
    num_alike = 0
    for _, fields in lines:
        if not isinstance(fields, list):
            continue
        # A comma in a text may have cut its row into several fields.
        num_separators = sum(cell.count(separator) for cell in fields)
        if num_separators >= num_wanted:
            num_alike += 1
    return num_wanted > 0 and 2 * num_alike > len(lines)


def _quoted_columns(lines: Sequence[Line]) -> dict[int, int]:
    """Columns in which a spreadsheet put quotes around cells, each with the first such row."""
    cells: dict[int, list[str]] = defaultdict(list)
    in_quotes: dict[int, list[str]] = defaultdict(list)
    first_rows: dict[int, int] = {}
    for number, fields in lines:
        if not isinstance(fields, list):
            continue
        for place, cell in enumerate(fields):
            cells[place].append(cell)
            if _is_in_quotes(cell):
                in_quotes[place].append(cell)
                first_rows.setdefault(place, number)
    found: dict[int, int] = {}
    for place, first_row in first_rows.items():
        if _are_spreadsheet_quotes(cells[place], in_quotes[place]):
            found[place] = first_row
    return found


def _is_in_quotes(cell: str) -> bool:
    return len(cell) > 2 and cell[0] == cell[-1] == '"'


def _are_spreadsheet_quotes(cells: Sequence[str], in_quotes: Sequence[str]) -> bool:
    """Whether a spreadsheet put the quotes around some cells of a column, not the author of the text."""
    if 2 * len(in_quotes) > len(cells):
        return True
    # A spreadsheet quotes exactly the cells with a comma ...
    num_commas = sum("," in cell for cell in cells)
    num_quoted_commas = sum("," in cell for cell in in_quotes)
    if num_quoted_commas > 1 and num_quoted_commas == num_commas:
        return True
    # ... and doubles the quotes inside a cell.
    return any('""' in cell[1:-1] for cell in in_quotes)


def read_text(path: Path) -> str:
    """A whole file as text, decompressed if its ending says so."""
    try:
        with open_binary(path) as file:
            data = file.read()
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise BadInput(f"{path} cannot be read ({error}); copy or compress it again.") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BadInput(f"{path}, row {line}: not UTF-8; {conversion(data)}.") from None


def _tab_lines(text: str) -> Iterator[Line]:
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if line.strip():
            yield number, _too_long(number, len(line)) or line.split("\t")


def _comma_lines(text: str) -> Iterator[Line]:
    csv.field_size_limit(1 << 30)
    body = text.removesuffix("\n")
    reader = csv.reader(io.StringIO(f"{body}\n{END_OF_FILE}", newline=""))
    rows: list[tuple[int, int, list[str]]] = []  # number of the row, lines after its first one, fields
    last_line = 0
    for fields in reader:
        # A cell may have line breaks: a row begins after the last line of the row before it.
        number = last_line + 1
        last_line = reader.line_num
        rows.append((number, last_line - number, fields))
    _, _, last_fields = rows[-1]
    # The mark is part of a cell if a quote is still open at the end.
    ends_in_quote = last_fields != [END_OF_FILE]
    if not ends_in_quote:
        rows.pop()
    for place, (number, num_taken, fields) in enumerate(rows):
        is_open = ends_in_quote and place == len(rows) - 1
        # A later quote may have closed it by chance; then the row has the wrong columns.
        if is_open or (num_taken and len(fields) != len(rows[0][2])):
            yield number, _open_quote(number, num_taken - is_open)
        elif any(cell.strip() for cell in fields):
            size = sum(map(len, fields))
            yield number, _too_long(number, size) or fields


def _open_quote(number: int, num_taken: int) -> Problem:
    what = f"a quote that opens here is never closed, so the {num_taken:,} line(s) after it are read as part of it"
    return Problem(number, what, "close the quote, or double it if it belongs to the text")


def _json_rows(path: Path, text: str) -> Rows:
    """One JSON object a line, or a list of objects."""
    values: list[tuple[int, object]] = []
    if text.lstrip().startswith("["):
        try:
            values += enumerate(json.loads(text), 1)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{path} is not valid JSON ({error}); correct it.") from None
    else:
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                values.append((number, _json_row(number, line)))
    if not values:
        raise BadInput(f"{path} has no rows; give it one example a row.")
    lines: list[Line] = []
    columns: list[str] | None = None
    for number, value in values:
        if isinstance(value, dict) and columns is None:
            columns = list(value)
        if isinstance(value, dict | Problem):
            lines.append((number, value))
        else:
            remedy = f"write rows such as {JSON_ROW}"
            lines.append((number, Problem(number, "not a JSON object", remedy)))
    return Rows(path, columns or [], lines)


def _json_row(number: int, line: str) -> object:
    too_long = _too_long(number, len(line))
    if too_long:
        return too_long
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return Problem(number, f"broken JSON ({error})", "correct or remove the row")


def _too_long(number: int, size: int) -> Problem | None:
    if size <= MAX_ROW:
        return None
    return Problem(number, f"a row of {size:,} characters", "split it or correct a missing line break")
