"""A small text file, or standard input -> its lines, all at once: texts for a model, lists of names."""

import logging
import sys
from pathlib import Path

from firth import remote
from firth.console import counted
from firth.corpus.finding import ROWS, TABLES
from firth.corpus.text_lines import BINARY, conversion
from firth.errors import BadInput
from firth.files import ending

log = logging.getLogger(__name__)

STANDARD_INPUT = Path("-")
"""The path by which `read_lines` reads standard input."""


def read_lines(path: Path, *, remedy: str = "put one text on each line") -> list[str]:
    """The lines of a small UTF-8 file, such as texts to embed; `remedy` says what to put into an empty one.

    The path "-" is standard input.
    """
    if path.is_dir():
        raise BadInput(f"{path} is a folder; name a file in it.")
    is_standard_input = path == STANDARD_INPUT
    source = "standard input" if is_standard_input else str(path)
    try:
        text = _read_standard_input() if is_standard_input else _read_text(path)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist.") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{source} is not UTF-8 (byte {error.start}); {conversion(error.object)}.") from None
    if not text:
        raise BadInput(f"{source} is empty; {remedy}.")
    if "\0" in text:
        before = text[: text.index("\0")]
        line = 1 + before.count("\n")
        raise BadInput(f"{source}, line {line}: {BINARY}.")
    # Not splitlines: it also cuts at form feeds and line separators, and the rows would no longer be the file's lines.
    return text.removesuffix("\n").split("\n")


def _read_text(path: Path) -> str:
    if not remote.is_remote(path):
        return path.read_text("utf-8-sig")
    with remote.open_remote(path) as file:
        text = file.read().decode("utf-8-sig")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read_standard_input() -> str:
    # Opened again, because its encoding may be another one than a file's.
    with open(sys.stdin.fileno(), encoding="utf-8-sig", closefd=False) as file:
        return file.read()


def read_texts(path: Path) -> list[str]:
    """`read_lines` where every line is an input of the model; blank ones, too, so that line numbers do not change."""
    lines = read_lines(path)
    tell_of_table(path)
    num_blank = sum(not line.strip() for line in lines)
    if num_blank:
        log.info(f"{path} has {counted(num_blank, 'blank line')}, answered like the others.")
    return lines


def tell_of_table(path: Path) -> None:
    """Warns if a file whose lines are read as texts is a table or a file of rows by its name."""
    is_table = ending(path) in (*TABLES, *ROWS, ".conll")
    if is_table:
        log.warning(
            f"{path}: every line of a file of rows is read as one text, with all its columns; write the texts "
            "to a .txt file first (such as cut -f 2 ROWS.tsv > TEXT.txt)."
        )
