"""Which columns of a table are texts and labels, and the examples they make; shared by tasks that read tables.

Names are taken from the config or the preset; without either, only well-known names are used, and only when one
reading is possible: otherwise the columns are listed and the person chooses. Beside the label, a single other column is
the text whatever its name.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from firth.errors import BadInput
from firth.tasks import glue
from firth.tasks.table_files import Rows, read_rows
from firth.types import Example, Problem


class Named(Protocol):
    """The fields of a config that say where texts and labels stand."""

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


def read(path: Path, config: Named, problems: list[Problem], *, labelled: bool) -> list[Example]:
    """The rows as examples: one or two texts, and names, numbers or tuples of names as gold."""
    rows = read_rows(path)
    texts, labels = find(rows, config, labelled=labelled)
    examples: list[Example] = []
    for row, values in rows.take([*texts, *(labels if labelled else ())], problems):
        golds = [values[column] for column in labels] if labelled else []
        made = _example(row, [values[column] for column in texts], golds, config)
        if isinstance(made, Problem):
            problems.append(made)
        else:
            examples.append(made)
    return examples


def find(rows: Rows, config: Named, *, labelled: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The text columns and the label columns of a file."""
    if config.preset:
        return glue.preset_columns(rows, config.preset, labelled=labelled)
    texts = tuple(name for name in (config.text_column, config.second_column) if name)
    if not texts:
        option = "`text_column=`" if labelled else ""
        readings = glue.known_columns(tuple(rows.columns)) or _beside_label(rows, config)
        texts = _only(rows, readings, "the text", option)
    labels = config.label_columns
    if not labels and labelled:
        known = tuple((name,) for name in glue.LABELS if name in rows.columns)
        labels = _only(rows, known, "the label", "`label_columns=`")
    return texts, labels


def text_column(path: Path, config: Named) -> str:
    """The text column to remember: the config's, or one of no well-known name that is alone beside the label."""
    if config.preset or config.text_column or config.second_column:
        return config.text_column
    rows = read_rows(path)
    if glue.known_columns(tuple(rows.columns)):
        return ""
    return next((name for (name,) in _beside_label(rows, config)), "")


def _beside_label(rows: Rows, config: Named) -> tuple[tuple[str, ...], ...]:
    """The only column that is not a label, as a reading; none if no label is found or several columns are left."""
    labels = config.label_columns or tuple(name for name in glue.LABELS if name in rows.columns)
    has_labels = bool(labels) and all(name in rows.columns for name in labels)
    others = [name for name in rows.columns if name and name not in labels]
    return ((others[0],),) if has_labels and len(others) == 1 else ()


def example(value: Any, config: Named) -> Example:
    """A text, a pair of texts, or a row with named columns."""
    if isinstance(value, Mapping):
        rows = Rows(Path("the input"), list(value), ())
        texts, _ = find(rows, config, labelled=False)
        if missing := [name for name in texts if name not in value]:
            raise BadInput(f"An input has no '{missing[0]}' but {', '.join(map(str, value))}.")
        value = [value[name] for name in texts]
    texts = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not 1 <= len(texts) <= 2 or not all(isinstance(text, str) for text in texts):
        raise BadInput(f"An input must be a text or a pair of texts; it is {value!r:.80}.")
    return Example(texts)


def _only(rows: Rows, readings: Sequence[tuple[str, ...]], what: str, option: str) -> tuple[str, ...]:
    if len(readings) == 1:
        return readings[0]
    found = "several columns could be" if readings else "no column is known to be"
    names = ", ".join(rows.columns)
    if rows.columns and all(str(name)[:1] == str(name)[-1:] == '"' for name in rows.columns):
        raise BadInput(f"{rows.path}: the names of its columns stand in quotes ({names}); save the table as .csv.")
    if not option:
        raise BadInput(f"{rows.path}: {found} {what} (the first row has {names}); name it as the training file does.")
    raise BadInput(
        f"{rows.path}: {found} {what}; name it with {option}, or count columns if the file has no header "
        f"(the first row has {names})."
    )


def _example(row: int, texts: list[Any], labels: list[Any], config: Named) -> Example | Problem:
    for text in texts:
        if not isinstance(text, str):
            return Problem(row, f"the text is {type(text).__name__}, not text", "mend or remove the row")
        if not text.strip():
            return Problem(row, "an empty text", "fill it in or remove the row")
    gold: Any = None
    if labels:
        try:
            golds = [_gold(label, config) for label in labels]
        except ValueError as error:
            return Problem(row, str(error), "mend or remove the row")
        gold = tuple(golds) if len(golds) > 1 else golds[0]
    return Example(tuple(text.strip() for text in texts), gold, row)


def _gold(label: Any, config: Named) -> Any:
    if config.kind == "number":
        try:
            number = float(label)
        except (TypeError, ValueError):
            raise ValueError(f"the label {str(label)!r:.40} is not a number") from None
        if abs(number) == float("inf") or number != number:
            raise ValueError(f"the label {label} is not a finite number")
        return number
    if config.kind == "many":
        parts = label if isinstance(label, list) else str(label).split(config.label_separator)
        names = sorted({_name(part, config) for part in parts if str(part).strip()})
        return tuple(names)
    if isinstance(label, list | dict):
        raise ValueError("the label is a list or an object; choose kind=many or another column")
    return _name(label, config)


def _name(label: Any, config: Named) -> str:
    text = str(label).strip()
    if not text:
        raise ValueError("an empty label")
    if not config.label_names or text in config.label_names:
        return text
    if text.isdigit() and int(text) < len(config.label_names):
        return config.label_names[int(text)]
    raise ValueError(f"the label '{text:.40}' is neither one of the names nor a number below {len(config.label_names)}")
