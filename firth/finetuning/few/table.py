"""Examples with one label each as a file: lines of JSON with the columns text, second (of pairs) and label."""

import json
from collections.abc import Sequence
from pathlib import Path

from firth.errors import Damaged
from firth.files import write_bytes
from firth.types import Example

COLUMNS = ("text", "second")


def write_table(path: Path, examples: Sequence[Example]) -> None:
    """Writes the examples; folders on the way are made."""
    lines = []
    for example in examples:
        row = dict(zip(COLUMNS, example.texts, strict=False))
        row["label"] = example.gold
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, "".join(lines).encode("utf-8", "replace"))


def read_table(path: Path) -> list[Example]:
    """The examples of a file that `write_table` wrote."""
    examples: list[Example] = []
    if not path.exists():
        raise Damaged(f"{path} does not exist any more; start the run again.")
    written = path.read_text("utf-8")
    # Not `splitlines`: a text may hold other line separators of Unicode.
    lines = written.removesuffix("\n").split("\n") if written else []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            texts = [row[column] for column in COLUMNS if column in row]
            examples.append(Example(tuple(texts), row["label"], number))
        except (ValueError, KeyError, TypeError):
            raise Damaged(f"{path}, line {number} is not a row that firth wrote; start the run again.") from None
    return examples


def table_options(examples: Sequence[Example]) -> dict[str, object]:
    """The options that say how the file is read as a user's own."""
    options: dict[str, object] = {"text_column": COLUMNS[0], "label_columns": ["label"]}
    if len(examples[0].texts) > 1:
        options["second_column"] = COLUMNS[1]
    return options
