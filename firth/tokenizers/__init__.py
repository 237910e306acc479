"""Text -> ids. Each tokenizer is a row of `TABLE`; `load` opens one from a folder's own files."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from firth.config import resolve as _resolve

if TYPE_CHECKING:
    import numpy as np

    from firth.tokenizers.vocab import Vocab
    from firth.types import Encoding

TABLE = {
    "wordpiece": "firth.tokenizers.wordpiece:WordPiece",
    "bpe": "firth.tokenizers.bpe:BPE",
    "words": "firth.tokenizers.word_list:Words",
    "subwords": "firth.tokenizers.subwords:Subwords",
    "characters": "firth.tokenizers.characters:Characters",
    "templates": "firth.tokenizers.templates:Templates",
}
READ = {"unigram": "firth.tokenizers.unigram:Unigram"}
"""Tokenizers that are read from folders and not trained here."""
CLASSES: dict[str, str] = {
    "FirthWords": "words",
    "FirthSubwords": "subwords",
    "FirthCharacters": "characters",
    "FirthTemplates": "templates",
    **dict.fromkeys(("GPT2Tokenizer", "GPT2TokenizerFast", "RobertaTokenizer", "RobertaTokenizerFast"), "bpe"),
    **dict.fromkeys(
        ("AlbertTokenizer", "AlbertTokenizerFast", "XLMRobertaTokenizer", "XLMRobertaTokenizerFast"), "unigram"
    ),
}
"""What `tokenizer_config.json` calls a tokenizer -> its row, where it is not a WordPiece."""


class Tokenizer(Protocol):
    """What the rest of the house asks of a tokenizer."""

    @property
    def vocab(self) -> "Vocab": ...
    @property
    def continues(self) -> "np.ndarray":
        """True for the ids of pieces that go on with a word."""
        ...

    @property
    def fingerprint(self) -> str:
        """sha256 of all that decides the ids of plain text."""
        ...

    @classmethod
    def train(cls, texts: Iterable[str], config: Any, *, fewer: bool = False) -> Self: ...
    @classmethod
    def load(cls, folder: Path) -> Self: ...
    def save(self, folder: Path, *, max_length: int | None = None) -> tuple[str, ...]:
        """Writes the tokenizer's files and gives their names."""
        ...

    def ids_batch(self, texts: list[str]) -> list[list[int]]: ...
    def word_starts_batch(self, texts: list[str]) -> list[tuple["np.ndarray", "np.ndarray"]]: ...
    def encode(self, text: str, *, specials: bool = False, masks: bool = False) -> "Encoding": ...
    def encode_batch(self, texts: list[str], *, specials: bool = False, masks: bool = False) -> list["Encoding"]: ...
    def decode(self, ids: Iterable[int]) -> str: ...


def resolve(name: str) -> Any:
    return _resolve(TABLE, name, "tokenizer")


def load(folder: Path) -> Tokenizer:
    """The tokenizer that the files of `folder` describe; a folder that describes none is an error."""
    from firth.files import read_json

    settings = folder / "tokenizer_config.json"
    kind = read_json(settings).get("tokenizer_class", "") if settings.is_file() else ""
    merges = not kind and (folder / "merges.txt").is_file()  # GPT-2's first folders do not name their class
    scored = not kind and any((folder / name).is_file() for name in ("spiece.model", "sentencepiece.bpe.model"))
    name = CLASSES.get(kind, "bpe" if merges else "unigram" if scored else "wordpiece")
    tokenizer: Tokenizer = _resolve({**TABLE, **READ}, name, "tokenizer").load(folder)
    return tokenizer
