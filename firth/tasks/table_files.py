"""Files of rows and columns -> dictionaries: TSV, CSV and JSON lines, with the quirks real files have.

In: a path and the columns wanted. Out: (row number, values by column). Tabs never need quotes; a comma file is read by
the rules of CSV; a byte-order mark is dropped. A column named by a number counts the columns of a file without header.
"""

import csv
import io
import json
import lzma
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firth.corpus.readers import conversion
from firth.errors import BadInput
from firth.files import ending, open_binary
from firth.types import Problem

MAX_ROW = 1_000_000
"""Characters of the longest row that is taken for a row and not for a mistake."""
_JSON = (".json", ".jsonl")


@dataclass(frozen=True)
class Rows:
    """A file's lines cut into fields."""

    path: Path
    columns: Sequence[str]
    """Names from the header, or the keys of the first JSON row."""
    lines: Sequence[tuple[int, Any]]
    """Row number and its fields: a list (also the header's), a dict, or a `Problem`."""
    quoted: Mapping[int, int] = field(default_factory=dict)
    """Columns cut at tabs whose cells a spreadsheet seems to have put in quotes, each with the first such row."""

    def layout(self, wanted: Sequence[str]) -> bool:
        """Whether these columns can be read here."""
        return all(_is_number(name) or name in self.columns for name in wanted)

    def take(self, wanted: Sequence[str], problems: list[Problem]) -> Iterator[tuple[int, dict[str, Any]]]:
        """The wanted columns of every row; rows that lack one go to the problems."""
        by_number = [name for name in wanted if _is_number(name)]
        if by_number and len(by_number) < len([name for name in wanted if name]):
            raise BadInput(f"{self.path}: name all columns or count them all; {', '.join(wanted)} mixes both.")
        missing = [name for name in wanted if not self.layout([name])]
        if missing:
            raise BadInput(f"{self.path} has no column '{missing[0]}'; its columns are {', '.join(self.columns)}.")
        for number, fields in self._body(header=not by_number):
            taken = self._row(number, fields, wanted)
            if isinstance(taken, Problem):
                problems.append(taken)
            else:
                yield number, taken
        problems += [
            Problem(
                self.quoted[place],
                f"cells of column '{name}' stand in quotes, which are read as part of the text",
                "if a spreadsheet put them there, save the table as .csv with commas",
                bad=False,
            )
            for name in wanted
            if (place := self._place(name)) in self.quoted
        ]

    def _place(self, name: str) -> int:
        return int(name) - 1 if _is_number(name) else self.columns.index(name)

    def _body(self, *, header: bool) -> Sequence[tuple[int, Any]]:
        is_table = bool(self.lines) and isinstance(self.lines[0][1], list)
        return self.lines[1:] if header and is_table else self.lines

    def _row(self, number: int, fields: Any, wanted: Sequence[str]) -> dict[str, Any] | Problem:
        if isinstance(fields, Problem):
            return fields
        if isinstance(fields, Mapping):
            lacking = next((name for name in wanted if fields.get(name) is None), None)
            if lacking is not None:
                return Problem(number, f"the row has no '{lacking}'", "add it or remove the row")
            return {name: fields[name] for name in wanted}
        numbered = any(_is_number(name) for name in wanted)
        places = list(map(self._place, wanted))
        expected, exact = max(places) + 1 if numbered else len(self.columns), not numbered
        if len(fields) < max(places) + 1 or (exact and len(fields) > expected):
            return Problem(number, f"the number of columns is {len(fields)}, not {expected}", "mend or remove the row")
        return {name: fields[place] for name, place in zip(wanted, places, strict=True)}


def _is_number(name: str) -> bool:
    """Whether it counts a column, from 1 on."""
    return name.isascii() and name.isdigit() and int(name) > 0


def read_rows(path: Path) -> Rows:
    """Cuts a file into rows; its ending says how, and a comma file without commas in its header is cut at tabs."""
    text = read_text(path)
    if not text.strip():
        raise BadInput(f"{path} is empty; give it one example a row.")
    if ending(path) in _JSON:
        return _json_rows(path, text)
    first = text.split("\n", 1)[0]
    comma = ending(path) == ".csv" and "\t" not in first
    lines = list(_comma_lines(text) if comma else _tab_lines(text))
    if not lines:
        raise BadInput(f"{path} has only empty rows; give it one example a row.")
    columns = [str(name).strip() for name in lines[0][1]] if isinstance(lines[0][1], list) else []
    return Rows(path, columns, lines, {} if comma else _quoted(lines))


def _quoted(lines: Sequence[tuple[int, Any]]) -> dict[int, int]:
    """Columns in which a spreadsheet put quotes around cells, each with the first such row.

    Around most cells; or around some whose own quotes are doubled; or around all that have a comma.
    """
    found: dict[int, int] = {}
    rows = [(number, fields) for number, fields in lines if isinstance(fields, list)]
    for place in range(max((len(fields) for _, fields in rows), default=0)):
        cells = [(number, fields[place]) for number, fields in rows if place < len(fields)]
        within = [(number, cell) for number, cell in cells if len(cell) > 2 and cell[0] == cell[-1] == '"']
        with_comma = [cell for _, cell in within if "," in cell]
        commas = len(with_comma) > 1 and len(with_comma) == sum("," in cell for _, cell in cells)
        if 2 * len(within) > len(cells) or commas or any('""' in cell[1:-1] for _, cell in within):
            found[place] = within[0][0]
    return found


def read_text(path: Path) -> str:
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


def _tab_lines(text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if line.strip():
            yield number, _too_long(number, len(line)) or line.split("\t")


def _comma_lines(text: str) -> Iterator[tuple[int, Any]]:
    csv.field_size_limit(1 << 30)
    reader = csv.reader(io.StringIO(text, newline=""))
    before = 0
    for fields in reader:
        number, before = before + 1, reader.line_num
        if any(field.strip() for field in fields):
            yield number, _too_long(number, sum(map(len, fields))) or fields


def _json_rows(path: Path, text: str) -> Rows:
    if text.lstrip().startswith("["):
        try:
            lines = list(enumerate(json.loads(text), 1))
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{path} is not valid JSON ({error}); mend it.") from None
    else:
        lines = [(n, _json_row(n, line)) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise BadInput(f"{path} has no rows; give it one example a row.")
    checked = [(n, row if isinstance(row, dict | Problem) else _not_an_object(n)) for n, row in lines]
    columns = next((list(row) for _, row in checked if isinstance(row, dict)), [])
    return Rows(path, columns, checked)


def _json_row(number: int, line: str) -> Any:
    if long := _too_long(number, len(line)):
        return long
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return Problem(number, f"broken JSON ({error})", "mend or remove the row")


def _not_an_object(number: int) -> Problem:
    return Problem(number, "not a JSON object", 'write rows such as {"text": "...", "label": "..."}')


def _too_long(number: int, size: int) -> Problem | None:
    if size <= MAX_ROW:
        return None
    return Problem(number, f"a row of {size:,} characters", "split it or mend a missing line break")
