"""What learning from few labels adds to a fine-tuning run: the rows that self-training labelled.

In: RUN's config; the path of a file of rows, each a JSON object with `texts` and `label`. Out: more training rows.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from firth.errors import Damaged
from firth.files import write_bytes
from firth.finetuning.extension import Extension
from firth.finetuning.few.settings import FewConfig
from firth.types import Example


class FewExtension(Extension):
    """The base of all ways: it only adds rows."""

    def __init__(self, config: FewConfig) -> None:
        self.few = config

    def more_rows(self, name: str, examples: Sequence[Example]) -> Sequence[Example]:
        if not self.few.pseudo_rows:
            return examples
        return [*examples, *read_rows(Path(self.few.pseudo_rows))]


def read_rows(path: Path) -> list[Example]:
    """Rows that `write_rows` wrote."""
    rows: list[Example] = []
    # Not `splitlines`: a text may hold other line separators of Unicode.
    lines = path.read_text("utf-8").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            rows.append(Example(tuple(values["texts"]), values["label"], number))
        except (ValueError, KeyError, TypeError):
            raise Damaged(
                f"{path}, line {number} is not a row that self-training wrote; begin the run again."
            ) from None
    return rows


def write_rows(path: Path, examples: Sequence[Example]) -> None:
    """Examples of one label each as lines of JSON."""
    lines = []
    for example in examples:
        row = {"texts": list(example.texts), "label": example.gold}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    write_bytes(path, "".join(lines).encode("utf-8"))
