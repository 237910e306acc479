"""TensorFlow's checkpoint format, without TensorFlow: `PREFIX.index` and `PREFIX.data-00000-of-00001`.

The index is a sorted string table in LevelDB's format: data blocks with prefix-compressed keys, an index block that
points to them, and a footer that points to the index block. A key is the name of a tensor; its value is a protocol
buffer with type, shape, place and checksum. The data file contains the bytes of all tensors, one after the other.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firth.convert.checksum import crc32c, masked
from firth.errors import BadInput, Damaged, Unsupported

_FOOTER_SIZE = 48
_MAGIC = 0xDB4775248B80FB57
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 14: "bfloat16", 19: "<f2"}
"""TensorFlow's numbers of the types that weights and counters have."""

# Field numbers of TensorFlow's message BundleEntryProto, and of TensorShapeProto inside it.
_ENTRY_FIELDS = {1: "kind", 3: "shard", 4: "offset", 5: "size", 6: "checksum"}
_SHAPE_FIELD = 2
_SLICES_FIELD = 7
_DIM_FIELD = 2
_DIM_SIZE_FIELD = 1
# Field number of the message BundleHeaderProto.
_NUM_SHARDS_FIELD = 1

# Wire types of protocol buffers.
_VARINT = 0
_FIXED64 = 1
_LENGTH_DELIMITED = 2
_FIXED32 = 5


@dataclass(frozen=True)
class Entry:
    """The type, shape and place of a tensor."""

    kind: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


class Bundle:
    """An open checkpoint: `entries` by name, and `read` for one tensor."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.index = prefix.with_name(f"{prefix.name}.index")
        try:
            rows = dict(_rows(self.index, self.index.read_bytes()))
            header = dict(_fields(rows.pop(b"")))  # the empty key has the header
            self.num_shards = int(header.get(_NUM_SHARDS_FIELD, 1))
            self.entries = {key.decode(): _entry(row) for key, row in rows.items()}
        except (IndexError, KeyError, ValueError, struct.error):
            raise Damaged(f"{self.index} is cut short or damaged; fetch it again.") from None

    def read(self, name: str) -> np.ndarray:
        """One tensor; raises if its checksum differs."""
        entry = self.entries[name]
        file_name = f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.num_shards:05d}"
        path = self.prefix.with_name(file_name)
        if entry.kind not in _TYPES:
            raise Unsupported(
                f"{path}: the tensor {name} has TensorFlow's type {entry.kind}, which weights never have."
            )
        if not path.is_file():
            raise BadInput(f"{path} does not exist; the checkpoint needs it next to its index.")
        data = np.zeros(0, np.uint8)
        if entry.offset + entry.size <= path.stat().st_size:
            data = np.fromfile(path, np.uint8, entry.size, offset=entry.offset)
        if len(data) < entry.size or masked(crc32c(data)) != entry.checksum:
            raise Damaged(f"{path}: the tensor {name} is cut short or altered (its checksum differs); fetch it again.")
        return _array(data, entry)


def _array(data: np.ndarray, entry: Entry) -> np.ndarray:
    """Bytes as an array of the entry's type and shape; bfloat16 becomes float32."""
    dtype = _TYPES[entry.kind]
    if dtype == "bfloat16":
        # numpy has no bfloat16. It is the upper half of a float32.
        bits = data.view("<u2").astype(np.uint32) << 16
        return bits.view(np.float32).reshape(entry.shape)
    return data.view(dtype).reshape(entry.shape)


def _rows(path: Path, data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of an index file."""
    if len(data) < _FOOTER_SIZE or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise BadInput(f"{path} is not the index of a TensorFlow checkpoint.")
    footer = data[-_FOOTER_SIZE:]
    _, _, position = _block_handle(footer, 0)  # the meta-index block, which is empty
    offset, size, _ = _block_handle(footer, position)
    for _, value in _block(path, data, offset, size):
        block_offset, block_size, _ = _block_handle(value, 0)
        yield from _block(path, data, block_offset, block_size)


def _block(path: Path, data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block. After a block come a byte for its compression and its checksum."""
    compression, checksum = struct.unpack_from("<BI", data, offset + size)
    if compression:
        raise Unsupported(f"{path} is compressed; TensorFlow itself writes such files without compression.")
    if masked(crc32c(data[offset : offset + size + 1])) != checksum:
        raise ValueError
    # A block ends with its restart points and their number, four bytes each.
    (num_restarts,) = struct.unpack_from("<I", data, offset + size - 4)
    end = offset + size - 4 - 4 * num_restarts
    position = offset
    key = b""
    while position < end:
        shared_length, position = _varint(data, position)
        rest_length, position = _varint(data, position)
        value_length, position = _varint(data, position)
        value_start = position + rest_length
        # Each key shares some of its first bytes with the previous one.
        key = key[:shared_length] + data[position:value_start]
        yield key, data[value_start : value_start + value_length]
        position = value_start + value_length


def _entry(row: bytes) -> Entry:
    """Parses a BundleEntryProto."""
    values = dict.fromkeys(_ENTRY_FIELDS.values(), 0)
    shape: tuple[int, ...] = ()
    for number, value in _fields(row):
        if number == _SHAPE_FIELD and isinstance(value, bytes):
            shape = _shape(value)
        elif number == _SLICES_FIELD:
            raise Unsupported(
                "The checkpoint has a tensor in slices (a partitioned variable), which firth does not read."
            )
        elif number in _ENTRY_FIELDS and isinstance(value, int):
            values[_ENTRY_FIELDS[number]] = value
    return Entry(shape=shape, **values)


def _shape(data: bytes) -> tuple[int, ...]:
    """Parses a TensorShapeProto."""
    sizes: list[int] = []
    for number, value in _fields(data):
        if number == _DIM_FIELD and isinstance(value, bytes):
            dim = dict(_fields(value))
            sizes.append(int(dim.get(_DIM_SIZE_FIELD, 0)))
    return tuple(sizes)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer: number and value."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number = tag >> 3
        wire_type = tag & 7
        if wire_type == _VARINT:
            value, position = _varint(data, position)
            yield number, value
        elif wire_type == _LENGTH_DELIMITED:
            length, position = _varint(data, position)
            yield number, data[position : position + length]
            position += length
        else:
            form = {_FIXED64: "<Q", _FIXED32: "<I"}[wire_type]
            yield number, struct.unpack_from(form, data, position)[0]
            position += struct.calcsize(form)


def _block_handle(data: bytes, position: int) -> tuple[int, int, int]:
    """The offset and size of a block, and the position after them."""
    offset, position = _varint(data, position)
    size, position = _varint(data, position)
    return offset, size, position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and the position after it."""
    value = 0
    shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
