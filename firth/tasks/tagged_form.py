"""Whether a file is what a tagger reads: a word and its tag on each line. A file of another task says what it is like.

In: the text of a file. Out: nothing, or an error that names the form of the file and what is expected in its place.
"""

from pathlib import Path

from firth.errors import BadInput
from firth.tokenizers.segmentation import has_chinese

LOOKED_AT = 1_000
"""Lines that are looked at."""
LONG_WORD = 4
"""So many characters no Chinese word has on average."""


def check_columns(path: Path, text: str, *, labelled: bool) -> None:
    """Raises for a file whose lines are texts or rows of a table, and not words in columns."""
    lines = text.split("\n")[:LOOKED_AT]
    filled = [line.strip() for line in lines if line.strip()]
    form = _other_form(filled)
    is_one_block = "" not in [line.strip() for line in text.strip().split("\n")]
    if not form and is_one_block and _is_ragged(filled):
        form = "a text on each line"
    if not form:
        return
    if not labelled:
        raise BadInput(
            f"{path} does not look like columns of words but like {form}; without tags, write each text on a line of "
            "its own into a file that ends in .txt."
        )
    raise BadInput(
        f"{path} does not look like columns of tagged words but like {form}; a word and its tag are expected on each "
        "line, with a blank line between sentences. `task='classify'` reads a text and its label in a row; "
        "`format='words'` or `format='tagged'` reads a sentence of separated words on each line."
    )


def _other_form(lines: list[str]) -> str:
    """What the lines look like if they are certainly not words in columns, else nothing."""
    if all(line.startswith("{") and line.endswith("}") for line in lines):
        return "JSON lines"
    widths = {len(line.split()) for line in lines}
    # Columns that tabs and spaces separate have the same number everywhere.
    if len(widths) > 1 and _is_mostly([_has_text_cell(line) for line in lines]):
        return "a table of texts"
    chinese = [len(word) for word in _first_words(lines) if has_chinese(word)]
    if 2 * len(chinese) > len(lines) and sum(chinese) >= LONG_WORD * len(chinese):
        return "a text on each line"
    return ""


def _has_text_cell(line: str) -> bool:
    """Whether a cell between tabs has several words."""
    cells = line.split("\t")
    return len(cells) > 1 and any(" " in cell.strip() for cell in cells)


def _is_ragged(lines: list[str]) -> bool:
    """Whether most lines have another number of columns than the first one."""
    widths = [len(line.split()) for line in lines]
    return _is_mostly([width != widths[0] for width in widths])


def _first_words(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines]


def _is_mostly(marks: list[bool]) -> bool:
    return 2 * sum(marks) > len(marks)
