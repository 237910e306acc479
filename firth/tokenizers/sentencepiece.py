"""Reads SentencePiece's model file, a protocol buffer, by hand. In: a file; out: its pieces and character map.

Only unigram models are read (Kudo 2018). Fields by number: 1 pieces (1 text, 2 score, 3 type), 2 the trainer's settings
(3 model type, 40 the unknown piece's id), 3 the normalizer's (2 the character map).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from firth.errors import BadInput, Damaged

NORMAL = 1
CONTROL = 3
USER_DEFINED = 4
_UNIGRAM = 1
# Wire types of protocol buffers.
_VARINT = 0
_FIXED_64 = 1
_BYTES = 2
_FIXED_32 = 5


@dataclass(frozen=True)
class ScoredPiece:
    text: str
    score: float
    """Its log probability."""
    kind: int
    """`NORMAL`, `CONTROL`, `USER_DEFINED` or another of SentencePiece's types."""


@dataclass(frozen=True)
class SentencePieceModel:
    pieces: tuple[ScoredPiece, ...]
    unknown: int
    """The id of the unknown piece."""
    charsmap: bytes
    """The normalizer's compiled character map."""


def read_model(path: Path) -> SentencePieceModel:
    pieces = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    try:
        for number, value in _fields(path.read_bytes()):
            if not isinstance(value, bytes):
                continue  # the three fields of interest are messages
            if number == 1:
                pieces.append(_piece(value))
            elif number == 2:
                trainer.update(_fields(value))
            elif number == 3:
                normalizer.update(_fields(value))
    except (IndexError, ValueError, struct.error) as error:
        raise Damaged(f"{path} is not a whole SentencePiece file ({error}).") from None
    if trainer.get(3, _UNIGRAM) != _UNIGRAM:
        raise BadInput(f"{path} is a SentencePiece model of another kind than unigram.")
    unknown = trainer.get(40, 0)
    charsmap = normalizer.get(2, b"")
    if not pieces or not isinstance(unknown, int) or not unknown < len(pieces) or not isinstance(charsmap, bytes):
        raise Damaged(f"{path} holds no pieces; fetch it again.")
    return SentencePieceModel(tuple(pieces), unknown, charsmap)


def _piece(data: bytes) -> ScoredPiece:
    fields = dict(_fields(data))
    text = fields.get(1, b"")
    score = fields.get(2, bytes(4))
    kind = fields.get(3, NORMAL)
    if not isinstance(text, bytes) or not isinstance(score, bytes) or not isinstance(kind, int):
        raise ValueError("a piece has fields of other types")
    return ScoredPiece(text.decode(), struct.unpack("<f", score)[0], kind)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message as (number, value): integers where they are varints, else bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number = key >> 3
        wire_type = key & 7
        # Integers are varints; texts and nested messages have their length in front; floats have four bytes.
        if wire_type == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire_type == _BYTES:
            size, at = _varint(data, at)
        elif wire_type == _FIXED_64:
            size = 8
        elif wire_type == _FIXED_32:
            size = 4
        else:
            raise ValueError("a field reaches over the end")
        if at + size > len(data):
            raise ValueError("a field reaches over the end")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at this place, seven bits a byte, lowest first; and the place behind it."""
    value = 0
    shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at += 1
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")
    return value | data[at] << shift, at + 1
