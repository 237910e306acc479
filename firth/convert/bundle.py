"""TensorFlow's checkpoint format, without TensorFlow: `PREFIX.index` and `PREFIX.data-00000-of-00001`.

The index is a sorted table in LevelDB's format: blocks of keys that share their beginnings, a block that points to the
blocks, a footer that points to that one. A key is a tensor's name; its value is a protocol buffer that says type,
shape, place and checksum. The data file holds the bytes end to end.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firth.convert.checksum import crc32c, masked
from firth.errors import BadInput, Damaged, Unsupported

_FOOTER = 48
_MAGIC = 0xDB4775248B80FB57
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 14: "bfloat16", 19: "<f2"}
"""TensorFlow's numbers of the types that weights and counters have."""


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies, and what it is."""

    kind: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


class Bundle:
    """An open checkpoint: `entries` by name, and `read` for one tensor."""

    def __init__(self, prefix: Path) -> None:
        self.prefix, self.index = prefix, prefix.with_name(f"{prefix.name}.index")
        try:
            rows = dict(_rows(self.index, self.index.read_bytes()))
            self.num_shards = int(dict(_fields(rows.pop(b""))).get(1, 1))  # the empty key holds the header
            self.entries = {key.decode(): _entry(row) for key, row in rows.items()}
        except (IndexError, KeyError, ValueError, struct.error):
            raise Damaged(f"{self.index} is cut short or damaged; fetch it again.") from None

    def read(self, name: str) -> np.ndarray:
        """One tensor; raises when its bytes are not those that were written."""
        entry = self.entries[name]
        path = self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.num_shards:05d}")
        if entry.kind not in _TYPES:
            raise Unsupported(f"{path}: the tensor {name} has TensorFlow's type {entry.kind}, which weights have not.")
        if not path.is_file():
            raise BadInput(f"{path} does not exist; the checkpoint needs it beside its index.")
        data = np.zeros(0, np.uint8)
        if entry.offset + entry.size <= path.stat().st_size:
            data = np.fromfile(path, np.uint8, entry.size, offset=entry.offset)
        if len(data) < entry.size or masked(crc32c(data)) != entry.checksum:
            raise Damaged(f"{path}: the tensor {name} is cut short or altered (its checksum differs); fetch it again.")
        return _array(data, entry)


def _array(data: np.ndarray, entry: Entry) -> np.ndarray:
    kind = _TYPES[entry.kind]
    if kind == "bfloat16":  # the upper half of a float32
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(entry.shape)
    return data.view(kind).reshape(entry.shape)


def _rows(path: Path, data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(data) < _FOOTER or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise BadInput(f"{path} is not the index of a TensorFlow checkpoint.")
    footer = data[-_FOOTER:]
    _, _, at = _handle(footer, 0)  # of a block for extras that nobody writes
    offset, size, _ = _handle(footer, at)
    for _, value in _block(path, data, offset, size):
        begin, length, _ = _handle(value, 0)
        yield from _block(path, data, begin, length)


def _block(path: Path, data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a block; each key repeats some bytes of the one before it."""
    compression, checksum = struct.unpack_from("<BI", data, offset + size)
    if compression:
        raise Unsupported(f"{path} is compressed; TensorFlow itself writes such files without compression.")
    if masked(crc32c(data[offset : offset + size + 1])) != checksum:
        raise ValueError
    (num_restarts,) = struct.unpack_from("<I", data, offset + size - 4)
    at, end, key = offset, offset + size - 4 - 4 * num_restarts, b""
    while at < end:
        shared, at = _varint(data, at)
        fresh, at = _varint(data, at)
        length, at = _varint(data, at)
        key = key[:shared] + data[at : at + fresh]
        yield key, data[at + fresh : at + fresh + length]
        at += fresh + length


def _entry(row: bytes) -> Entry:
    values = {"kind": 0, "shard": 0, "offset": 0, "size": 0, "checksum": 0}
    names = {1: "kind", 3: "shard", 4: "offset", 5: "size", 6: "checksum"}
    shape: tuple[int, ...] = ()
    for number, value in _fields(row):
        if number == 2 and isinstance(value, bytes):
            dims = [dict(_fields(dim)) for key, dim in _fields(value) if key == 2 and isinstance(dim, bytes)]
            shape = tuple(int(dim.get(1, 0)) for dim in dims)
        elif number == 7:
            raise Unsupported("The checkpoint holds a tensor in slices, as only partitioned variables are.")
        elif number in names and isinstance(value, int):
            values[names[number]] = value
    return Entry(shape=shape, **values)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """A protocol buffer's fields: number and value."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire == 2:
            length, at = _varint(data, at)
            yield number, data[at : at + length]
            at += length
        else:
            form = {1: "<Q", 5: "<I"}[wire]
            yield number, struct.unpack_from(form, data, at)[0]
            at += struct.calcsize(form)


def _handle(data: bytes, at: int) -> tuple[int, int, int]:
    """A block's offset and size, and where they end."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return offset, size, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
