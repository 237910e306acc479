"""Text -> ids. Each tokenizer is a row of `TABLE`; `load` opens one from the files of a folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

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
"""Tokenizers that can be loaded but not trained."""
CLASSES: dict[str, str] = {
    "FirthWords": "words",
    "FirthSubwords": "subwords",
    "FirthCharacters": "characters",
    "FirthTemplates": "templates",
    "GPT2Tokenizer": "bpe",
    "GPT2TokenizerFast": "bpe",
    "RobertaTokenizer": "bpe",
    "RobertaTokenizerFast": "bpe",
    "BartTokenizer": "bpe",
    "BartTokenizerFast": "bpe",
    "AlbertTokenizer": "unigram",
    "AlbertTokenizerFast": "unigram",
    "XLNetTokenizer": "unigram",
    "XLNetTokenizerFast": "unigram",
    "XLMRobertaTokenizer": "unigram",
    "XLMRobertaTokenizerFast": "unigram",
    "T5Tokenizer": "unigram",
    "T5TokenizerFast": "unigram",
    "MBartTokenizer": "unigram",
    "MBartTokenizerFast": "unigram",
    "DebertaV2Tokenizer": "unigram",
    "DebertaV2TokenizerFast": "unigram",
}
"""The class that `tokenizer_config.json` names -> its row; other classes are WordPiece."""
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that say nothing: `tokenizer.json` has the kind of model."""
MODELS = {"Unigram": "unigram", "BPE": "bpe"}
"""The model in `tokenizer.json` -> its row; others are WordPiece."""
_MERGES = "merges.txt"
_SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "spm.model")


class Tokenizer(Protocol):
    """What every tokenizer offers; `capabilities.py` says what the capabilities mean."""

    counts_all_words: ClassVar[bool]
    words_by_text: ClassVar[bool]
    keeps_space: ClassVar[bool]
    has_word_parts: ClassVar[bool]
    pieces_hold_spaces: ClassVar[bool]

    @property
    def lowercases(self) -> bool: ...

    @property
    def num_rows(self) -> int: ...

    def spelled(self, token: int) -> str: ...

    @property
    def vocab(self) -> "Vocab": ...

    @property
    def continues(self) -> "np.ndarray":
        """True for the ids of pieces that continue a word."""
        ...

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that decides the ids of plain text."""
        ...

    @classmethod
    def train(cls, texts: Iterable[str], config: Any, *, fewer: bool = False) -> Self:
        """Learns the vocabulary; `config` is of the class's own `Config`."""
        ...

    @classmethod
    def load(cls, folder: Path) -> Self: ...

    def save(self, folder: Path, *, max_length: int | None = None) -> tuple[str, ...]:
        """Writes the tokenizer's files and returns their names."""
        ...

    def ids_batch(self, texts: list[str]) -> list[list[int]]:
        """Only the ids, which is fastest."""
        ...

    def word_starts_batch(self, texts: list[str]) -> list[tuple["np.ndarray", "np.ndarray"]]:
        """For each text its ids, and whether each begins a word."""
        ...

    def encode(self, text: str, *, specials: bool = False, masks: bool = False) -> "Encoding":
        """The whole text; `specials` or `masks` decide whether special tokens spelled in it are recognised."""
        ...

    def encode_batch(self, texts: list[str], *, specials: bool = False, masks: bool = False) -> list["Encoding"]: ...

    def decode(self, ids: Iterable[int]) -> str: ...


def resolve(name: str) -> Any:
    """The class of the tokenizer `name`, one of `TABLE`."""
    return _resolve(TABLE, name, "tokenizer")


def load(folder: Path) -> Tokenizer:
    """The tokenizer that the files of `folder` describe; a folder that describes none is an error."""
    name = _name_of(folder)
    tokenizer: Tokenizer = _resolve({**TABLE, **READ}, name, "tokenizer").load(folder)
    return tokenizer


def _name_of(folder: Path) -> str:
    """The row of the tokenizer in `folder`, by its class or, where no class is named, by its files."""
    from firth.files import read_json

    settings = folder / "tokenizer_config.json"
    if settings.is_file():
        class_name = read_json(settings).get("tokenizer_class", "")
        library_file = folder / "tokenizer.json"
        if class_name in GENERIC and library_file.is_file():
            model = read_json(library_file).get("model") or {}
            return MODELS.get(model.get("type", ""), "wordpiece")
        if class_name:
            return CLASSES.get(class_name, "wordpiece")
    # GPT-2's first folders do not name their class.
    if (folder / _MERGES).is_file():
        return "bpe"
    if any((folder / name).is_file() for name in _SENTENCEPIECE):
        return "unigram"
    return "wordpiece"
