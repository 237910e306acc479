"""SentencePiece's model file, a protocol buffer, read by hand. In: a file; out: its pieces and its table of characters.

Only unigram models are read (Kudo 2018). Fields by number: 1 pieces (1 text, 2 score, 3 kind), 2 the trainer's settings
(3 kind of model, 40 the unknown piece's id), 3 the normalizer's (2 the table of characters).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from firth.errors import BadInput, Damaged

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
_UNIGRAM = 1


@dataclass(frozen=True)
class Piece:
    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class Model:
    pieces: tuple[Piece, ...]
    unknown: int
    charsmap: bytes


def read_model(path: Path) -> Model:
    try:
        fields = list(_fields(path.read_bytes()))
        pieces = tuple(_piece(value) for number, value in fields if number == 1 and isinstance(value, bytes))
        trainer, normalizer = (
            {n: v for number, value in fields if number == part and isinstance(value, bytes) for n, v in _fields(value)}
            for part in (2, 3)
        )
    except (IndexError, ValueError, struct.error) as error:
        raise Damaged(f"{path} is not a whole SentencePiece file ({error}).") from None
    if trainer.get(3, _UNIGRAM) != _UNIGRAM:
        raise BadInput(f"{path} is a SentencePiece model of another kind than unigram.")
    unknown, charsmap = trainer.get(40, 0), normalizer.get(2, b"")
    if not pieces or not isinstance(unknown, int) or not unknown < len(pieces) or not isinstance(charsmap, bytes):
        raise Damaged(f"{path} holds no pieces; fetch it again.")
    return Model(pieces, unknown, charsmap)


def _piece(data: bytes) -> Piece:
    fields = dict(_fields(data))
    text, score, kind = fields.get(1, b""), fields.get(2, bytes(4)), fields.get(3, NORMAL)
    if not isinstance(text, bytes) or not isinstance(score, bytes) or not isinstance(kind, int):
        raise ValueError("a piece has fields of other types")
    return Piece(text.decode(), struct.unpack("<f", score)[0], kind)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message: integers, and bytes of all else."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        size, at = _varint(data, at) if wire == 2 else ({1: 8, 5: 4}[wire] if wire in (1, 5) else -1, at)
        if size < 0 or at + size > len(data):
            raise ValueError("a field reaches over the end")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if shift > 63:
            raise ValueError("a number is too long")
    return value | data[at] << shift, at + 1
