"""Text -> ids. Each tokenizer is a row of `TABLE`; `load` opens one from a folder's own files."""

from pathlib import Path
from typing import TYPE_CHECKING

from firth.config import resolve

if TYPE_CHECKING:
    from firth.tokenizers.wordpiece import WordPiece

TABLE = {
    "wordpiece": "firth.tokenizers.wordpiece:WordPiece",
}


def load(folder: Path) -> "WordPiece":
    """The tokenizer that the files of `folder` describe; a folder that describes none is an error."""
    tokenizer: WordPiece = resolve(TABLE, "wordpiece", "tokenizer").load(folder)
    return tokenizer
