"""Files of prompts with options -> examples: SWAG's CSV, rows of JSON, DREAM's dialogues, CODAH's table.

In: rows that name a context and perhaps a stem (a question, the beginning of the sentence to be ended), their options
as a list or as columns `ending0`, `ending1` ..., and the right one as its text, its letter or its place from 0. Out:
choices whose gold is the text of the right option.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firth.errors import BadInput
from firth.tasks.table_files import MAX_ROW, Rows, read_rows, read_text
from firth.types import Example, Problem

CONTEXTS = ("sent1", "context", "passage", "article", "premise", "prompt", "dialogue", "text")
STEMS = ("sent2", "question", "stem", "ctx_b")
OPTIONS = ("options", "choices", "endings", "choice")
ANSWERS = ("label", "answer", "gold")
_numbered = re.compile(r"(?:ending|option|choice|answer)_?\d+")
Row = tuple[int, Any]


@dataclass(frozen=True)
class MultipleChoice(Example):
    """`texts` are the context and the options; gold is the text of the right one."""

    stem: str = ""
    """What stands between the context and each option."""

    @property
    def endings(self) -> list[str]:
        return [f"{self.stem} {option}".strip() for option in self.texts[1:]]


def read(path: Path, form: str, problems: list[Problem], *, labelled: bool) -> list[MultipleChoice]:
    form = _guess(path) if form == "guess" else form
    rows = {"dream": _dream, "codah": _codah, "rows": _named}[form](path)
    examples = []
    for row, values in rows:
        made = values if isinstance(values, Problem) else _choice(row, values, labelled=labelled)
        if isinstance(made, Problem):
            problems.append(made)
        else:
            examples.append(made)
    return examples


def example(value: Any) -> MultipleChoice:
    """A row with names, or a list of the context and the options."""
    if isinstance(value, list | tuple):
        value = {"context": value[0] if value else "", "options": list(value[1:])}
    made = _choice(0, value, labelled=False) if isinstance(value, Mapping) else Problem(0, "it is a text alone")
    if isinstance(made, Problem):
        raise BadInput(f"An input must be a context and at least two options ({made.what}); it is {value!r:.80}.")
    return made


# The forms


def _guess(path: Path) -> str:
    if ".json" in path.suffixes[-2:]:
        return "dream" if re.match(r"\s*\[\s*\[", read_text(path)) else "rows"
    first = read_rows(path).lines[0][1]
    is_codah = isinstance(first, list) and len(first) == 7 and first[-1].strip().isdigit()
    return "codah" if is_codah else "rows"


def _named(path: Path) -> Iterator[Row]:
    rows = read_rows(path)
    if not any(name in OPTIONS or _numbered.fullmatch(name) for name in rows.columns):
        raise BadInput(
            f"{path} has no options: give rows a list 'options' or columns ending0, ending1 ... "
            f"(it has {', '.join(rows.columns)})."
        )
    is_table = isinstance(rows.lines[0][1], list)
    for row, fields in rows.lines[1:] if is_table else rows.lines:
        yield row, _by_name(row, fields, rows) if isinstance(fields, list) else fields


def _by_name(row: int, fields: Sequence[str], rows: Rows) -> Any:
    if len(fields) != len(rows.columns):
        return Problem(
            row, f"the number of columns is {len(fields)}, not {len(rows.columns)}", "mend or remove the row"
        )
    return dict(zip(rows.columns, fields, strict=True))


def _codah(path: Path) -> Iterator[Row]:
    """Category, prompt, four endings, the place of the right one."""
    for row, fields in read_rows(path).lines:
        if isinstance(fields, Problem):
            yield row, fields
        elif len(fields) not in (6, 7):
            yield row, Problem(row, f"the number of columns is {len(fields)}, not 7", "mend or remove the row")
        else:
            label = {"label": fields[6]} if len(fields) == 7 else {}
            yield row, {"prompt": fields[1], "options": list(fields[2:6]), **label}


def _dream(path: Path) -> Iterator[Row]:
    """Dialogues with their questions, which are counted from 1."""
    row = 0
    try:
        for turns, questions, *_ in json.loads(read_text(path)):
            for asked in questions:
                row += 1
                yield row, {"dialogue": "\n".join(turns), **asked}
    except (ValueError, TypeError, RecursionError) as error:
        raise BadInput(f"{path}: after question {row} it is not of DREAM's form ({error}); mend it.") from None


# A row


def _choice(row: int, values: Any, *, labelled: bool) -> MultipleChoice | Problem:
    if not isinstance(values, Mapping):
        return Problem(row, "not a JSON object", "write rows with a context, options and a label")
    context, stem = _first(values, CONTEXTS), _first(values, STEMS)
    given = _first(values, OPTIONS)
    found = [values[name] for name in sorted(filter(_is_numbered, values), key=_number)] if given == "" else given
    if not isinstance(found, list) or not all(isinstance(text, str) for text in (context, stem, *found)):
        return Problem(row, "context, question or options are not texts", "mend or remove the row")
    names = [text.strip() for text in found]
    while given == "" and names and not names[-1]:
        names.pop()  # a table has columns for the row with most options
    if len(names) < 2 or not all(names):
        return Problem(
            row, "an empty option" if len(names) > 1 else "fewer than two options", "add it or remove the row"
        )
    context, stem = (context.strip(), stem.strip()) if context.strip() else (stem.strip(), "")
    if not context:
        return Problem(row, "neither a context nor a question", "fill it in or remove the row")
    if len(context) + len(stem) + sum(map(len, names)) > MAX_ROW:
        return Problem(row, f"a row of more than {MAX_ROW:,} characters", "split it")
    if not labelled:
        return MultipleChoice((context, *names), None, row, stem)
    gold = _gold(_first(values, ANSWERS), names)
    if gold is None:
        what = f"the label {str(_first(values, ANSWERS))!r:.40} is none of the options"
        return Problem(row, what, "give the right option's text, letter or place from 0")
    return MultipleChoice((context, *names), gold, row, stem)


def _gold(label: Any, names: Sequence[str]) -> str | None:
    """The right option by its text, its place from 0, or its letter."""
    text = str(label).strip()
    if text in names and not isinstance(label, int):
        return text
    if re.fullmatch(r"[A-Z]", text):
        text = str(ord(text) - ord("A"))
    return names[int(text)] if text.isdecimal() and int(text) < len(names) else None


def _first(values: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), "")


def _is_numbered(name: str) -> bool:
    return _numbered.fullmatch(name) is not None


def _number(name: str) -> int:
    return int(re.sub(r"\D", "", name))
