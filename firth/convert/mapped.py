"""Safetensors files without torch and without copies: a tensor is memory-mapped, a long one is written row by row.

A file is the length of its header (eight bytes), the header as JSON (name, dtype, shape and offsets of every tensor;
spaces at its end are allowed), then the bytes of the tensors.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypedDict

import numpy as np

from firth.errors import Damaged
from firth.files import atomic_file, write_bytes
from firth.ragged import bounds_of

if TYPE_CHECKING:
    from torch import Tensor

    from firth.tokenizers.subwords import Subwords

WORD_ROWS = "words.safetensors"
"""For a table of word parts: the mean of the parts of every listed word, computed once instead of at every lookup."""
TABLE = "encoder.table.weight"
"""The name in a folder's files of the table of an encoder that is only a table."""
LARGE = 64_000_000
"""Weights with more bytes than this are not copied before they are written."""
COMPILED = 50_000
"""From this number of words on, compiling the loop over their parts with numba saves time."""
_BLOCK = 1 << 14
_HEADER_SIZE = 4096
"""Bytes reserved for the header of a file whose number of rows is only known after the last one."""
_METADATA = {"format": "pt"}


class TensorHeader(TypedDict):
    """An entry of a safetensors header."""

    dtype: str
    shape: list[int]
    data_offsets: list[int]


class TensorPlace(TensorHeader):
    """An entry of a safetensors header, with the byte of the file where the tensor begins."""

    at: int


def tensor_places(path: Path) -> dict[str, TensorPlace]:
    """The header's entry of every tensor, by name."""
    try:
        with path.open("rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            header: dict[str, TensorHeader] = json.loads(file.read(header_size))
        header.pop("__metadata__", None)
        data_start = 8 + header_size
        places: dict[str, TensorPlace] = {}
        for name, row in header.items():
            places[name] = {**row, "at": data_start + row["data_offsets"][0]}
        return places
    except (ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError) as error:
        raise Damaged(f"{path} is not a safetensors file ({error}); fetch or make it again.") from None


def map_tensor(path: Path, name: str) -> np.ndarray:
    """A float32 tensor of a file as a read-only array; its bytes are read when they are used."""
    place = tensor_places(path)[name]
    if place["dtype"] != "F32":
        raise Damaged(f"{path}: {name} is of type {place['dtype']}, not F32; save the model in float32.")
    try:
        return np.memmap(path, "<f4", "r", place["at"], tuple(place["shape"]))
    except ValueError as error:
        raise Damaged(f"{path} ends within {name} ({error}); fetch or make it again.") from None


def write_rows(path: Path, name: str, blocks: Iterable[np.ndarray]) -> int:
    """Writes blocks of rows as one tensor, with one block at a time in memory; returns the number of rows."""
    count = 0
    width = 0
    with atomic_file(path) as file:
        # The header needs the number of rows, so it is written over these zeros at the end.
        file.write(bytes(8 + _HEADER_SIZE))
        for block in blocks:
            file.write(np.ascontiguousarray(block, "<f4").tobytes())
            count += len(block)
            width = block.shape[1]
        file.seek(0)
        _write_reserved_header(file, name, (count, width))
    return count


def word_rows(tokenizer: "Subwords", rows_MD: np.ndarray) -> Iterator[np.ndarray]:
    """Blocks of rows: the mean of the parts of every listed word. Special tokens have zeros."""
    tokens = tokenizer.vocab.tokens
    specials = tokenizer.vocab.specials
    use_numba = len(tokens) >= COMPILED and find_spec("numba") is not None
    for start in range(0, len(tokens), _BLOCK):
        end = min(start + _BLOCK, len(tokens))
        words = {i: tokens[i] for i in range(start, end) if i not in specials}
        block_VD = np.zeros((end - start, rows_MD.shape[1]), np.float32)
        if use_numba:
            places = [i - start for i in words]
            block_VD[places] = _compiled_means(tokenizer, words, np.asarray(rows_MD))
        else:
            for i, word in words.items():
                parts = tokenizer.made_parts(word)
                if parts:
                    block_VD[i - start] = rows_MD[parts].mean(0)
        yield block_VD


def _compiled_means(tokenizer: "Subwords", words: Mapping[int, str], rows_MD: np.ndarray) -> np.ndarray:
    """The means of the words' parts; `words` has token ids as keys. Compiling takes a second, then it is fast."""
    from firth.objectives.subword_kernels import bag_means, ngram_parts
    from firth.tokenizers.subwords import END

    encoded: list[bytes] = []
    for word in words.values():
        # The end-of-sentence token has no n-grams.
        spelling = "" if word == END else f"<{word}>"
        encoded.append(spelling.encode())
    lengths = [len(word) for word in encoded]
    bytes_of_words = np.frombuffer(b"".join(encoded), np.uint8)
    word_bounds = bounds_of(lengths)
    config = tokenizer.config
    parts_M, bounds = ngram_parts(
        bytes_of_words,
        word_bounds,
        config.min_ngram,
        config.max_ngram,
        max(1, config.num_buckets),
        len(tokenizer.vocab),
        np.array([*words], np.int32),
    )
    means_VD: np.ndarray = bag_means(parts_M, bounds, rows_MD)
    return means_VD


def write_weights(path: Path, tensors: "Mapping[str, Tensor]") -> None:
    """Writes tensors as a safetensors file.

    Large weights and a single table are written from where they are in memory: the library would make two copies.
    """
    size = sum(tensor.nbytes for tensor in tensors.values())
    is_float32 = all(str(tensor.dtype) == "torch.float32" for tensor in tensors.values())
    if is_float32 and (size > LARGE or len(tensors) == 1):
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
        write_arrays(path, arrays)
        return
    from safetensors.torch import save

    on_cpu = {name: tensor.cpu() for name, tensor in tensors.items()}
    write_bytes(path, save(on_cpu, _METADATA))


def write_arrays(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes float32 arrays as a safetensors file, without copying them."""
    rows: dict[str, TensorHeader] = {}
    offset = 0
    for name, array in tensors.items():
        rows[name] = _header_row(array.shape, offset=offset)
        offset += 4 * array.size
    header = _header_bytes(rows)
    # The format wants the data to begin at a multiple of eight bytes.
    header += b" " * (-len(header) % 8)
    with atomic_file(path) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array, "<f4").data.cast("B"))


def _write_reserved_header(file: IO[bytes], name: str, shape: tuple[int, int]) -> None:
    """Writes the header of a file with one tensor, padded to the reserved size."""
    row = _header_row(shape, offset=0)
    header = _header_bytes({name: row}).ljust(_HEADER_SIZE)
    file.write(_HEADER_SIZE.to_bytes(8, "little") + header)


def _header_row(shape: tuple[int, ...], *, offset: int) -> TensorHeader:
    """The header's entry of a float32 tensor that begins at `offset`, counted from the end of the header."""
    size = 4
    for length in shape:
        size *= length
    return {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}


def _header_bytes(rows: Mapping[str, TensorHeader]) -> bytes:
    return json.dumps({"__metadata__": _METADATA, **rows}).encode()
