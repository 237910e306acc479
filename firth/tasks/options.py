"""Files of prompts with options -> examples: SWAG's CSV, rows of JSON, DREAM's dialogues, CODAH's table.

In: rows that name a context and perhaps a stem (a question, or the beginning of the sentence to be completed), their
options as a list or as columns `ending0`, `ending1` ..., and the right one as its text, its letter or its index from 0.
Out: examples whose gold is the text of the right option.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from firth.errors import BadInput
from firth.tasks.table_files import MAX_ROW, Rows, read_rows, read_text
from firth.types import Example, Problem

CONTEXTS = ("sent1", "context", "passage", "article", "premise", "prompt", "dialogue", "text")
STEMS = ("sent2", "question", "stem", "ctx_b")
OPTIONS = ("options", "choices", "endings", "choice")
ANSWERS = ("label", "answer", "gold")
"""The names that real files use, the first one found counts."""
_NUMBERED = re.compile(r"(?:ending|option|choice|answer)_?\d+")

Values = Mapping[str, object]
Row = tuple[int, object]
"""The number of a row, and its values by name or what is wrong with it."""


@dataclass(frozen=True)
class MultipleChoice(Example):
    """`texts` are the context and the options; gold is the text of the right one."""

    stem: str = ""
    """The text between the context and each option."""

    @property
    def endings(self) -> list[str]:
        """The options, each after the stem."""
        return [f"{self.stem} {option}".strip() for option in self.texts[1:]]


def read(path: Path, form: str, problems: list[Problem], *, labelled: bool) -> list[MultipleChoice]:
    if form == "guess":
        form = _guess_form(path)
    readers: dict[str, Callable[[Path], Iterator[Row]]] = {
        "dream": _dream,
        "codah": _codah,
        "rows": _named,
    }
    examples = []
    for row, values in readers[form](path):
        made = values if isinstance(values, Problem) else _choice(row, values, labelled=labelled)
        if isinstance(made, Problem):
            problems.append(made)
        else:
            examples.append(made)
    return examples


def example(value: object) -> MultipleChoice:
    """A row with names, or a list of the context and the options."""
    if isinstance(value, list | tuple):
        value = {"context": value[0] if value else "", "options": list(value[1:])}
    made: MultipleChoice | Problem = Problem(0, "it is a text alone")
    if isinstance(value, Mapping):
        made = _choice(0, value, labelled=False)
    if isinstance(made, Problem):
        raise BadInput(
            f"An input must be a context and at least two options ({made.what}); it is {value!r:.80}. Give a list of "
            "these texts, or rows by `file=` with the fields context and options."
        )
    return made


# The forms of files


def _guess_form(path: Path) -> str:
    if ".json" in path.suffixes[-2:]:
        # DREAM's file is a list of lists.
        return "dream" if re.match(r"\s*\[\s*\[", read_text(path)) else "rows"
    _, first = read_rows(path).lines[0]
    last = ""
    if isinstance(first, list) and len(first) == 7:
        # CODAH has no header; the last of its seven columns is the number of the right option.
        last = first[-1].strip()
    return "codah" if last.isdigit() else "rows"


def _named(path: Path) -> Iterator[Row]:
    """Rows with names: of a table with a header, or of JSON."""
    rows = read_rows(path)
    if not any(name in OPTIONS or _is_numbered(name) for name in rows.columns):
        raise BadInput(
            f"{path} has no options: give rows a list 'options' or columns ending0, ending1 ... "
            f"(it has {rows.shown_columns})."
        )
    lines = rows.lines
    _, first = lines[0]
    if isinstance(first, list):
        # The first line of a table is its header.
        lines = lines[1:]
    for row, fields in lines:
        if isinstance(fields, list):
            yield row, _by_name(row, fields, rows)
        else:
            yield row, fields


def _by_name(row: int, fields: Sequence[str], rows: Rows) -> Values | Problem:
    num_columns = len(rows.columns)
    if len(fields) != num_columns:
        return _wrong_number_of_columns(row, len(fields), num_columns)
    return dict(zip(rows.columns, fields, strict=True))


def _wrong_number_of_columns(row: int, number: int, wanted: int) -> Problem:
    return Problem(row, f"the number of columns is {number}, not {wanted}", "correct or remove the row")


def _codah(path: Path) -> Iterator[Row]:
    """A table without header: category, prompt, four endings, the index of the right one."""
    for row, fields in read_rows(path).lines:
        if not isinstance(fields, list):
            yield row, fields
        elif len(fields) not in (6, 7):
            yield row, _wrong_number_of_columns(row, len(fields), 7)
        else:
            values: dict[str, object] = {"prompt": fields[1], "options": fields[2:6]}
            if len(fields) == 7:
                values["label"] = fields[6]
            yield row, values


def _dream(path: Path) -> Iterator[Row]:
    """Dialogues with their questions, which are counted from 1."""
    row = 0
    try:
        for turns, questions, *_ in json.loads(read_text(path)):
            for question in questions:
                row += 1
                yield row, {"dialogue": "\n".join(turns), **question}
    except (ValueError, TypeError, RecursionError) as error:
        raise BadInput(f"{path}: after question {row} it is not of DREAM's form ({error}); correct it.") from None


# A row


def _choice(row: int, values: object, *, labelled: bool) -> MultipleChoice | Problem:
    """A row's values as an example, or what is wrong with them."""
    if not isinstance(values, Mapping):
        return Problem(row, "not a JSON object", "write rows with a context, options and a label")
    options = _options(row, values)
    if isinstance(options, Problem):
        return options
    context = _first(values, CONTEXTS)
    stem = _first(values, STEMS)
    if not isinstance(context, str) or not isinstance(stem, str):
        return _not_texts(row)
    if len(options) < 2:
        return Problem(row, "fewer than two options", "add it or remove the row")
    if not all(options):
        return Problem(row, "an empty option", "add it or remove the row")
    context = context.strip()
    stem = stem.strip()
    if not context:
        # A question alone is the context.
        context = stem
        stem = ""
    if not context:
        return Problem(row, "neither a context nor a question", "fill it in or remove the row")
    if len(context) + len(stem) + sum(map(len, options)) > MAX_ROW:
        return Problem(row, f"a row of more than {MAX_ROW:,} characters", "split it")
    gold = None
    if labelled:
        label = _first(values, ANSWERS)
        gold = _right_option(label, options)
        if gold is None:
            what = f"the label {str(label)!r:.40} is none of the options"
            return Problem(row, what, "give the right option's text, letter or place from 0")
    return MultipleChoice((context, *options), gold, row, stem)


def _options(row: int, values: Values) -> list[str] | Problem:
    """The options of a row, from a list or from numbered columns."""
    given = _first(values, OPTIONS)
    if given != "":
        if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
            return _not_texts(row)
        return [text.strip() for text in given]
    numbered = sorted((name for name in values if _is_numbered(name)), key=_number)
    options = []
    for name in numbered:
        text = values[name]
        if not isinstance(text, str):
            return _not_texts(row)
        options.append(text.strip())
    # A table has as many columns as the row with most options; other rows leave the last ones empty.
    while options and not options[-1]:
        options.pop()
    return options


def _not_texts(row: int) -> Problem:
    return Problem(row, "context, question or options are not texts", "correct or remove the row")


def _right_option(label: object, options: Sequence[str]) -> str | None:
    """The right option by its text, its index from 0, or its letter."""
    text = str(label).strip()
    # A whole number is an index, even if an option has the same text.
    if text in options and not isinstance(label, int):
        return text
    if re.fullmatch(r"[A-Z]", text):
        text = str(ord(text) - ord("A"))
    if text.isdecimal() and int(text) < len(options):
        return options[int(text)]
    return None


def _first(values: Values, names: Sequence[str]) -> object:
    """The value of the first of some names that a row has; empty if it has none."""
    for name in names:
        value = values.get(name)
        if value is not None:
            return value
    return ""


def _is_numbered(name: str) -> bool:
    return _NUMBERED.fullmatch(name) is not None


def _number(name: str) -> int:
    return int(re.sub(r"\D", "", name))
