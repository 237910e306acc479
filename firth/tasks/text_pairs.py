"""Files of sources and targets -> examples: a table, JSON lines, or two files whose lines belong together.

In: rows with two columns, named or counted; or `train.en` and `train.de`, where the target of a line is the same line
of the other file. Out: examples with the source as their text and the target as gold.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from firth.errors import BadConfig, BadInput
from firth.files import COMPRESSED
from firth.tasks.table_files import MAX_ROW, Rows, read_rows, read_text, shown_json
from firth.types import Example, Problem

KNOWN_COLUMNS = (
    ("source", "target"),
    ("src", "tgt"),
    ("input", "output"),
    ("input", "target"),
    ("text", "target"),
    ("text", "summary"),
    ("document", "summary"),
    ("article", "summary"),
    ("abstract", "title"),
)
"""Well-known names of the columns of source and target."""

HEADER_ROWS = 200
"""Rows that the first one is compared with, to see whether it is a header."""

Columns = tuple[str, str]
"""The names of the columns of source and target."""


def read_table(
    path: Path,
    *,
    text_column: str,
    target_column: str,
    problems: list[Problem],
    labelled: bool,
) -> list[Example]:
    """The rows of a table or of JSON lines."""
    rows = read_rows(path)
    source, target = find_columns(rows, text_column=text_column, target_column=target_column, labelled=labelled)
    wanted = [source, target] if labelled else [source]
    examples = []
    for row, values in rows.take(wanted, problems):
        gold = values[target] if labelled else None
        made = _example(row, values[source], gold)
        if isinstance(made, Problem):
            problems.append(made)
        else:
            examples.append(made)
    return examples


def find_columns(rows: Rows, *, text_column: str, target_column: str, labelled: bool) -> Columns:
    """The columns that are named, or well-known ones; the first and the second column of a table without such names."""
    if bool(text_column) != bool(target_column) and labelled:
        raise BadConfig("Name both columns or none: `text_column=` for the source, `label_columns=` for the target.")
    if text_column:
        return text_column, target_column
    columns = rows.columns
    for source, target in KNOWN_COLUMNS:
        if source in columns and target in columns:
            return source, target
    if not labelled:
        # A file to predict needs no targets.
        for source, target in KNOWN_COLUMNS:
            if source in columns:
                return source, target
    is_table = bool(rows.lines) and isinstance(rows.lines[0][1], list)
    if is_table and len(columns) == 2:
        _refuse_unknown_header(rows)
        # A table without header: its first row is an example like all others.
        return "1", "2"
    if is_table and len(columns) == 1 and not labelled:
        return "1", "2"
    rows.refuse_commas()
    raise BadInput(
        f"{rows.path}: no columns are known to be source and target; name them with `text_column=` and "
        "`label_columns=`, or, if the file has no header, count columns: `text_column='1'` and `label_columns='2'` "
        f"(the first row has {rows.shown_columns})."
    )


def _refuse_unknown_header(rows: Rows) -> None:
    """Raises if the first row of a table looks like names of columns and the others do not."""
    top_rows = [fields for _, fields in rows.lines[:HEADER_ROWS]]
    first, *others = [fields for fields in top_rows if isinstance(fields, list)]
    num_like_it = sum(_are_names(fields) for fields in others)
    if _are_names(first) and num_like_it < len(others) / 2:
        raise BadInput(
            f"{rows.path}: the first row ({', '.join(first)}) looks like names of columns; name source and target with "
            "`text_column=` and `label_columns=`, or count columns if it is an example: `text_column='1'` and "
            "`label_columns='2'`."
        )


def _are_names(fields: Sequence[str]) -> bool:
    """Whether all fields are single words, as names of columns are."""
    for field in fields:
        name = field.strip().replace("-", "_")
        if not name.isidentifier():
            return False
    return True


def target_path(path: Path, target_ending: str) -> Path:
    """The file of targets: the same name with another ending, before that of a compression."""
    compression = path.suffix if path.suffix in COMPRESSED else ""
    plain = path.with_suffix("") if compression else path
    ending = target_ending.removeprefix(".")
    return plain.with_name(f"{plain.stem}.{ending}{compression}")


def read_parallel(path: Path, target_ending: str, problems: list[Problem]) -> list[Example]:
    """The lines of two files, each with its counterpart."""
    other = target_path(path, target_ending)
    if other == path:
        raise BadInput(f"{path} already ends in .{target_ending}; name the file of sources, whose targets are there.")
    sources = _lines(path)
    targets = _lines(other)
    if len(sources) != len(targets):
        longer = path
        shorter = other
        if len(targets) > len(sources):
            longer = other
            shorter = path
        num_shared = min(len(sources), len(targets))
        raise BadInput(
            f"{longer}, line {num_shared + 1:,} has no counterpart: {shorter} has only {num_shared:,} lines; "
            "give both files the same lines."
        )
    examples = []
    for row, (source, target) in enumerate(zip(sources, targets, strict=True), 1):
        made = _example(row, source, target)
        if isinstance(made, Problem):
            problems.append(made)
        else:
            examples.append(made)
    return examples


def _lines(path: Path) -> list[str]:
    text = read_text(path)
    if not text.strip():
        raise BadInput(f"{path} is empty; put one text on each line.")
    lines = text.removesuffix("\n").split("\n")
    return [line.removesuffix("\r") for line in lines]


def _example(row: int, source: object, target: object) -> Example | Problem:
    """An example, or what is wrong with the row; without gold if the target is None."""
    for name, text in _named_texts(source, target):
        if not isinstance(text, str):
            return Problem(row, f"the {name} is {shown_json(text)}, not text", "correct or remove the row")
        if not text.strip():
            return Problem(row, f"an empty {name}", "fill it in or remove the row")
        if len(text) > MAX_ROW:
            return Problem(row, f"a {name} of {len(text):,} characters", "split it or correct a missing line break")
    assert isinstance(source, str)
    gold = target.strip() if isinstance(target, str) else None
    return Example((source.strip(),), gold, row)


def _named_texts(source: object, target: object) -> Iterator[tuple[str, object]]:
    yield "source", source
    if target is not None:
        yield "target", target


def example(value: object, text_column: str) -> Example:
    """An input of `predict`: a text, or a row with the column of the source."""
    if isinstance(value, Mapping):
        names = [text_column] if text_column else [source for source, _ in KNOWN_COLUMNS]
        found = [name for name in names if name in value]
        if not found:
            raise BadInput(f"An input has no '{names[0]}' but {', '.join(map(str, value))}.")
        value = value[found[0]]
    if not isinstance(value, str):
        raise BadInput(f"An input to rewrite must be one text; it is {value!r:.80}.")
    return Example((value,))
