"""A model of word vectors -> the table of names that a frozen encoder is given (`nn/knowledge.py`).

The names are the words of the model, frequent ones first, as the encoder's tokenizer spells them. So what firth's own
word2vec or GloVe learned about the words of a text reaches an encoder that knows them only by their pieces.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from firth import checkpoint as checkpoints
from firth.encoders.static import Static
from firth.errors import BadConfig, Unsupported
from firth.nn.knowledge import NameTable, name_key
from firth.tokenizers import Tokenizer
from firth.tokenizers.vocab import Vocab
from firth.tokenizers.wordpiece import WordPiece

MAX_NAMES = 100_000
LONGEST = 8
"""Tokens of a name; longer ones are left out."""


@dataclass(frozen=True)
class KnownNames:
    """Names by the hashes of their token ids, ascending, with a unit vector for each."""

    keys_M: Tensor
    vectors_ME: Tensor
    continues_V: Tensor
    longest: int


def read_known_names(folder: str, tokenizer: Tokenizer, *, vocab_size: int) -> KnownNames:
    """The words of a model of word vectors; `vocab_size` is that of the encoder."""
    if not isinstance(tokenizer, WordPiece):
        raise Unsupported("Word vectors are fused only with encoders that have WordPiece tokens.")
    model = checkpoints.load(Path(folder))
    if not isinstance(model.encoder, Static):
        raise BadConfig(f"{folder} is no model of word vectors, such as word2vec or glove make; name one of those.")
    rows, longest = _rows_by_key(model.tokenizer.vocab, tokenizer)
    if not rows:
        raise BadConfig(f"No word of {folder} can be spelled with the tokens of the model.")
    keys = sorted(rows)
    chosen_rows = [rows[key] for key in keys]
    vectors_ME = model.encoder.table.weight.detach()[chosen_rows].float()
    unit_ME = torch.nn.functional.normalize(vectors_ME, dim=-1)
    continues_V = torch.zeros(vocab_size, dtype=torch.bool)
    continues_V[: len(tokenizer.continues)] = torch.from_numpy(tokenizer.continues)
    return KnownNames(torch.tensor(keys), unit_ME, continues_V, longest)


def _rows_by_key(vocab: Vocab, tokenizer: Tokenizer) -> tuple[dict[int, int], int]:
    """The row of each word's vector by the hash of its token ids, and how many tokens the longest word has."""
    words = [number for number in range(len(vocab)) if number not in vocab.specials]
    numbers = words[:MAX_NAMES]
    spelled = tokenizer.ids_batch([vocab.tokens[number] for number in numbers])
    rows: dict[int, int] = {}
    longest = 1
    for number, ids in zip(numbers, spelled, strict=True):
        if not 0 < len(ids) <= LONGEST or tokenizer.vocab.unk in ids:
            continue
        key = name_key(ids)
        # Frequent words come first and keep their name.
        if key not in rows:
            rows[key] = number
            longest = max(longest, len(ids))
    return rows, longest


def fill(table: NameTable, names: KnownNames) -> None:
    """Copies the names into a table of their size."""
    with torch.no_grad():
        table.keys_M.copy_(names.keys_M)
        table.vectors_ME.copy_(names.vectors_ME)
        table.continues_V.copy_(names.continues_V)
