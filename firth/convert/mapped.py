"""Safetensors files without torch and without copies: a tensor is mapped, a long one is written row by row.

A file is the length of its header (eight bytes), the header as JSON (name, dtype, shape, place of every tensor; blanks
at its end are allowed), then the bytes of the tensors.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from firth.errors import Damaged
from firth.files import atomic_file, write_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from firth.tokenizers.subwords import Subwords

WORD_ROWS = "words.safetensors"
"""Beside a table of parts: the mean of every listed word's parts, made once so that a question need not make it."""
TABLE = "encoder.table.weight"
"""What a folder's files call the table of an encoder that is one."""
LARGE = 64_000_000
"""Bytes of weights above which they are not copied to be written."""
COMPILED = 50_000
"""Words from which on it pays to compile the loop over their parts, where numba is there."""
_BLOCK = 1 << 14
_ROOM = 4096
"""Bytes kept for the header of a file whose number of rows is not known before its last."""


def tensor_places(path: Path) -> dict[str, dict[str, Any]]:
    """What the header says of every tensor, with `at`, the byte where it begins."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
            header.pop("__metadata__", None)
            return {name: {**row, "at": 8 + size + row["data_offsets"][0]} for name, row in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError) as error:
        raise Damaged(f"{path} is not a safetensors file ({error}); fetch or make it again.") from None


def map_tensor(path: Path, name: str) -> np.ndarray:
    """A float32 tensor of a file as a read-only array that is read when it is used."""
    row = tensor_places(path)[name]
    if row["dtype"] != "F32":
        raise Damaged(f"{path}: {name} is of type {row['dtype']}, not F32; save the model in float32.")
    try:
        return np.memmap(path, "<f4", "r", row["at"], tuple(row["shape"]))
    except ValueError as error:
        raise Damaged(f"{path} ends within {name} ({error}); fetch or make it again.") from None


def write_rows(path: Path, name: str, blocks: Iterable[np.ndarray]) -> int:
    """Writes blocks of rows as one tensor, holding one block at a time; gives the number of rows."""
    count = width = 0
    with atomic_file(path) as file:
        file.write(bytes(8 + _ROOM))
        for block in blocks:
            file.write(np.ascontiguousarray(block, "<f4").tobytes())
            count, width = count + len(block), block.shape[1]
        file.seek(0)
        _write_header(file, name, (count, width))
    return count


def word_rows(tokenizer: "Subwords", rows_PD: np.ndarray) -> Iterator[np.ndarray]:
    """The mean of every listed word's parts, some words at a time; special tokens have zeros."""
    tokens, specials = tokenizer.vocab.tokens, tokenizer.vocab.specials
    quick = len(tokens) >= COMPILED and find_spec("numba") is not None
    for start in range(0, len(tokens), _BLOCK):
        words = {i: tokens[i] for i in range(start, min(start + _BLOCK, len(tokens))) if i not in specials}
        block = np.zeros((min(_BLOCK, len(tokens) - start), rows_PD.shape[1]), np.float32)
        if quick:
            block[[i - start for i in words]] = _compiled_means(tokenizer, words, np.asarray(rows_PD))
        for i, word in () if quick else words.items():
            if parts := tokenizer.made_parts(word):
                block[i - start] = rows_PD[parts].mean(0)
        yield block


def _compiled_means(tokenizer: "Subwords", words: Mapping[int, str], rows_PD: np.ndarray) -> np.ndarray:
    """The means of words by their places on the list: many times faster once it is compiled, which takes a second."""
    from firth.objectives.subword_kernels import bag_means, ngram_parts
    from firth.tokenizers.subwords import END

    config, data = tokenizer.config, [f"<{word}>".encode() if word != END else b"" for word in words.values()]
    sizes = config.min_ngram, config.max_ngram, max(1, config.num_buckets), len(tokenizer.vocab)
    joined, bounds = np.frombuffer(b"".join(data), np.uint8), np.cumsum([0, *map(len, data)])
    parts, bounds = ngram_parts(joined, bounds, *sizes, np.array([*words], np.int32))
    means: np.ndarray = bag_means(parts, bounds, rows_PD)
    return means


def write_weights(path: Path, tensors: "Mapping[str, Tensor]") -> None:
    """Writes tensors; large ones and a lone table go to disk as they lie: the library would hold two more copies."""
    size = sum(tensor.nbytes for tensor in tensors.values())
    if (size > LARGE or len(tensors) == 1) and all(str(tensor.dtype) == "torch.float32" for tensor in tensors.values()):
        write_arrays(path, {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()})
        return
    from safetensors.torch import save

    write_bytes(path, save({name: tensor.cpu() for name, tensor in tensors.items()}, {"format": "pt"}))


def write_arrays(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes float32 arrays as they lie in memory."""
    places, end = dict[str, Any](), 0
    for name, array in tensors.items():
        places[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [end, end + 4 * array.size]}
        end += 4 * array.size
    header = json.dumps({"__metadata__": {"format": "pt"}, **places}).encode()
    header += b" " * (-len(header) % 8)
    with atomic_file(path) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array, "<f4").data.cast("B"))


def _write_header(file: IO[bytes], name: str, shape: tuple[int, int]) -> None:
    row = {"dtype": "F32", "shape": list(shape), "data_offsets": [0, 4 * shape[0] * shape[1]]}
    header = json.dumps({"__metadata__": {"format": "pt"}, name: row}).encode().ljust(_ROOM)
    file.write(_ROOM.to_bytes(8, "little") + header)
