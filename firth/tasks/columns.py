"""Which columns of a table are texts and labels, and the examples they make; shared by tasks that read tables.

Names come from the config or the preset. Without either, well-known names are used, but only if there is one possible
reading: otherwise the error lists the columns and the user chooses. If there is a label and a single other column, that
column is the text whatever its name.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from firth.config import from_dict, to_dict
from firth.errors import BadConfig, BadInput
from firth.tasks import glue
from firth.tasks.glue import TextsAndLabels
from firth.tasks.table_files import JSON_ROW, Rows, as_texts, read_rows, shown_json
from firth.tasks.task import TaskConfig
from firth.types import Example, Problem

READING = ("text_column", "second_column", "target_column", "label_columns", "label_names", "format", "target_ending")
"""Settings of tasks that only say where a file has its texts and labels; a fine-tuned model's may be replaced."""


class ColumnSettings(Protocol):
    """The fields of a config that say which columns are texts and labels, and what a label is."""

    @property
    def preset(self) -> str: ...
    @property
    def text_column(self) -> str: ...
    @property
    def second_column(self) -> str: ...
    @property
    def label_columns(self) -> tuple[str, ...]: ...
    @property
    def label_names(self) -> tuple[str, ...]: ...
    @property
    def kind(self) -> str: ...
    @property
    def label_separator(self) -> str: ...


# Which columns


def with_columns(config: TaskConfig, options: Mapping[str, object]) -> TaskConfig:
    """A fine-tuned model's settings for a file with other columns than its training files."""
    if not options:
        return config
    values = to_dict(config)
    for name in options:
        if name not in READING or name not in values:
            raise BadConfig(f"The model remembers its task's settings; leave out `{name}=`.")
    # A preset names columns, too.
    if "preset" in values:
        values["preset"] = ""
    changed = from_dict(type(config), {**values, **options})
    num_trained = len(values.get("label_columns") or ("label",))
    num_given = len(getattr(changed, "label_columns", ()) or ("label",))
    if num_given != num_trained:
        raise BadConfig(f"The model learned {num_trained} label column(s); name as many with `label_columns=`.")
    return changed


def find_columns(rows: Rows, config: ColumnSettings, *, labelled: bool, in_file: bool = True) -> TextsAndLabels:
    """The text columns and the label columns of a file; `in_file=False` for rows that a program gives."""
    if config.preset:
        return glue.preset_columns(rows, config.preset, labelled=labelled)
    if config.second_column and not config.text_column:
        raise BadConfig("`second_column=` names the second text of a pair; name the first with `text_column=`.")
    texts = tuple(name for name in (config.text_column, config.second_column) if name)
    if not texts:
        readings = glue.known_columns(tuple(rows.columns)) or _only_other_column(rows, config)
        option = "`text_column=`" if in_file else ""
        texts = _only_reading(rows, readings, "the text", option=option, labelled=labelled)
    labels = config.label_columns
    if labelled and not labels:
        # Each known name is one possible reading.
        known = [(name,) for name in _known_labels(rows)]
        labels = _only_reading(rows, known, "the label", option="`label_columns=`", labelled=True)
    return texts, labels


def text_column(path: Path, config: ColumnSettings) -> str:
    """The text column to save in the config: the one it has, or the only column that is not the label."""
    if config.preset or config.text_column or config.second_column:
        return config.text_column
    rows = read_rows(path)
    # A well-known name is found again in every file, so it need not be saved.
    if glue.known_columns(tuple(rows.columns)):
        return ""
    for (name,) in _only_other_column(rows, config):
        return name
    return ""


def _only_other_column(rows: Rows, config: ColumnSettings) -> list[tuple[str]]:
    """The only column that is not a label, as a reading; none if no label is found or several columns are left."""
    labels = config.label_columns or _known_labels(rows)
    has_labels = bool(labels) and all(name in rows.columns for name in labels)
    others = [name for name in rows.columns if name and name not in labels]
    if has_labels and len(others) == 1:
        return [(others[0],)]
    return []


def _known_labels(rows: Rows) -> tuple[str, ...]:
    """The columns with a well-known name of a label."""
    return tuple(name for name in glue.LABELS if name in rows.columns)


def _only_reading(
    rows: Rows,
    readings: Sequence[tuple[str, ...]],
    what: str,
    *,
    option: str,
    labelled: bool,
) -> tuple[str, ...]:
    """The only possible reading; raises if there is none or several, and names the option that decides, if any."""
    if len(readings) == 1:
        return readings[0]
    if not rows.columns and not option:
        raise BadInput(f"{rows.path} has no columns; give it those of the training file.")
    if not rows.columns:
        raise BadInput(
            f"{rows.path} has no rows with named columns{_first_problem(rows)}; "
            f"write rows such as {JSON_ROW}, one on each line."
        )
    rows.refuse_commas()
    found = "several columns could be" if readings else "no column is known to be"
    names = rows.shown_columns
    if rows.columns and all(_is_quoted(name) for name in rows.columns):
        raise BadInput(f"{rows.path}: the names of its columns are in quotes ({names}); save the table as .csv.")
    if labelled and len(rows.columns) == 1:
        raise BadInput(
            f"{rows.path} has only one column ({names}), so its texts have no labels; add a column of labels."
        )
    if not option:
        raise BadInput(f"{rows.path}: {found} {what} (it has {names}); name it as the training file does.")
    # Columns are named or counted all together.
    counted = "`text_column='1'` and `label_columns='2'`" if labelled else "`text_column='1'`"
    presets = [f"use `preset='{name}'`, " for name in glue.fitting_presets(rows)]
    raise BadInput(
        f"{rows.path}: {found} {what}; {''.join(presets[:1])}name it with {option}, or, if the file has no header, "
        f"count columns: {counted} (the first row has {names})."
    )


def _first_problem(rows: Rows) -> str:
    """What is wrong with the first row, in brackets; empty if it could be read."""
    for _, fields in rows.lines[:1]:
        if isinstance(fields, Problem):
            return f" (row {fields.row}: {fields.what})"
    return ""


def _is_quoted(name: str) -> bool:
    return name[:1] == name[-1:] == '"'


# Examples


def read(path: Path, config: ColumnSettings, problems: list[Problem], *, labelled: bool) -> list[Example]:
    """The rows as examples: one or two texts, and names, numbers or tuples of names as gold."""
    rows = read_rows(path)
    text_names, label_names = find_columns(rows, config, labelled=labelled)
    if not labelled:
        label_names = ()
    _check_named(rows, text_names[:1], "`text_column=`")
    _check_named(rows, text_names[1:], "`second_column=`")
    _check_named(rows, label_names, "`label_columns=`")
    _refuse_counted_header(rows, text_names, label_names)
    for name in label_names:
        if name in text_names:
            raise BadInput(f"{path}: the column '{name}' is read as the text; name another with `label_columns=`.")
    examples: list[Example] = []
    for row, values in rows.take([*text_names, *label_names], problems):
        texts = [values[name] for name in text_names]
        labels = [values[name] for name in label_names]
        made = _example(row, texts, labels, config)
        if isinstance(made, Problem):
            problems.append(made)
        else:
            examples.append(made)
    return examples


def _check_named(rows: Rows, names: Sequence[str], option: str) -> None:
    """Raises if the file lacks one of the columns, and names the option that says which one it is here."""
    for name in names:
        if name and name != "0" and not rows.has_columns([name]):
            rows.refuse_commas()
            raise BadInput(
                f"{rows.path} has no column '{name}'; its columns are {rows.shown_columns}: "
                f"name the right one with {option}."
            )


def _refuse_counted_header(rows: Rows, text_names: Sequence[str], label_names: Sequence[str]) -> None:
    """Raises if all columns are counted, which is for files without header, and the first row is one."""
    texts = [_first_cell(rows, name) for name in text_names]
    labels = [_first_cell(rows, name) for name in label_names]
    is_counted = all((*texts, *labels))
    has_label_name = any(label in glue.LABELS for label in labels)
    has_known_names = all(cell in glue.KNOWN for cell in (*texts, *labels))
    is_header = has_label_name or has_known_names
    if is_counted and is_header:
        raise BadInput(
            f"{rows.path} has a header ({rows.shown_columns}), and columns are counted only without one; "
            "name them with `text_column=` and `label_columns=`."
        )


def _first_cell(rows: Rows, name: str) -> str:
    """What the first row of a table has in a column that is counted; "" for a named column."""
    is_table = bool(rows.lines) and isinstance(rows.lines[0][1], list)
    if is_table and name.isdecimal() and 0 < int(name) <= len(rows.columns):
        return rows.columns[int(name) - 1].lower()
    return ""


def example(value: object, config: ColumnSettings) -> Example:
    """A text, a pair of texts, or a row with named columns."""
    given = value
    if isinstance(value, Mapping):
        # The keys are searched like the header of a file.
        rows = Rows(Path("An input"), list(value), ())
        names, _ = find_columns(rows, config, labelled=False, in_file=False)
        missing = [name for name in names if name not in value]
        if missing:
            raise BadInput(f"An input has no '{missing[0]}' but {', '.join(map(str, value))}.")
        value = [value[name] for name in names]
    texts = (value,) if isinstance(value, str) else as_texts(value)
    if texts is None or len(texts) not in (1, 2):
        raise BadInput(f"An input must be a text or a pair of texts; it is {given!r:.80}.")
    return Example(texts)


def _example(row: int, texts: Sequence[object], labels: Sequence[object], config: ColumnSettings) -> Example | Problem:
    """The example that the cells of a row make, or what is wrong with them."""
    stripped = []
    for text in texts:
        if not isinstance(text, str):
            return Problem(row, f"the text is {shown_json(text)}, not text", "correct or remove the row")
        if not text.strip():
            return Problem(row, "an empty text", "fill it in or remove the row")
        stripped.append(text.strip())
    try:
        golds = [_gold(label, config) for label in labels]
    except ValueError as error:
        return Problem(row, str(error), "correct or remove the row")
    if not golds:
        return Example(tuple(stripped), None, row)
    gold = tuple(golds) if len(golds) > 1 else golds[0]
    return Example(tuple(stripped), gold, row)


def _gold(label: object, config: ColumnSettings) -> str | float | tuple[str, ...]:
    """A cell as a name, a number or several names; raises ValueError if it is none."""
    if config.kind == "many":
        # A row may have none of the names.
        parts = label if isinstance(label, list) else str(label).split(config.label_separator)
        names = {_name(part, config) for part in parts if str(part).strip()}
        return tuple(sorted(names))
    if not str(label).strip():
        raise ValueError("the label is empty")
    if config.kind == "number":
        return _number(label)
    if isinstance(label, list | dict):
        raise ValueError("the label is a list or an object; choose kind=many or another column")
    return _name(label, config)


def _number(label: object) -> float:
    try:
        number = float(label)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"the label {str(label)!r:.40} is not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"the label {label} is not a finite number")
    return number


def _name(label: object, config: ColumnSettings) -> str:
    """A label's name; a number counts `label_names` from 0 if there are any."""
    text = str(label).strip()
    if not config.label_names or text in config.label_names:
        return text
    if text.isdigit() and int(text) < len(config.label_names):
        return config.label_names[int(text)]
    raise ValueError(f"the label '{text:.40}' is neither one of the names nor a number below {len(config.label_names)}")
