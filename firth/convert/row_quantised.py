"""Weights in few bits: tensors <-> one safetensors file of a quarter of their size or less.

Each row of a matrix has its own scale: w = scale * code, with codes from -(2^(bits-1) - 1) to 2^(bits-1) - 1. The scale
is the one of a few candidates that leaves the smallest squared error. Vectors (biases, norms) are kept in half
precision, or in single precision if they have numbers that are too large for it.

Small codes are far more frequent than large ones, so codes are stored in Huffman's code (raw deflate): those of 6 bits
take about 5.4 bits each. Files of the first versions hold codes packed without gaps and are still read.

The file holds, for a matrix NAME, `NAME.codes` (bytes) and `NAME.scales` (half precision), and for anything else NAME
itself. Its metadata say how many bits and which shape each matrix has. A single matrix is read without torch.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from safetensors import SafetensorError, safe_open

from firth.errors import BadConfig, BadInput, Damaged
from firth.files import write_bytes

if TYPE_CHECKING:
    from torch import Tensor

QUANTISED = "model.quantised.safetensors"
"""The name of the file in a model's folder, where it takes the place of `model.safetensors`."""
METADATA = "firth_rows_2"
"""Under this key of the file's metadata are the facts of its matrices. It changes with the form of the codes, so that
older versions of firth refuse what they would read wrongly."""
FIRST_METADATA = "firth_rows"
"""The key of the first versions, which packed codes without gaps."""
CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)
"""Scales that are tried, as shares of the one that reaches the row's largest weight."""
LEAST_BITS = 2
MOST_BITS = 8
RAW_DEFLATE = -15
"""zlib's name for a stream without a header and checksum, which the model's manifest has."""


Decoder = Callable[[np.ndarray, int, int], np.ndarray]
"""Stored codes, their bits and their number in; each code as a byte out."""


class MatrixFacts(TypedDict):
    """What the metadata say of a matrix."""

    bits: int
    shape: list[int]


def save_quantised(path: Path, tensors: "Mapping[str, Tensor]", *, bits: int) -> None:
    """Writes the file, with so many bits for each weight of a matrix."""
    import torch
    from safetensors.torch import save

    stored: dict[str, Tensor] = {}
    facts: dict[str, MatrixFacts] = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise BadInput(f"The model's {name} has weights that are not a number, so it cannot be exported.")
        if tensor.ndim != 2 or not tensor.is_floating_point():
            stored[name] = _in_half(tensor) if tensor.is_floating_point() else tensor
            continue
        codes_RC, scales_R = quantise_rows(tensor, bits)
        stored[f"{name}.codes"] = torch.from_numpy(_compress(codes_RC.numpy(), bits))
        stored[f"{name}.scales"] = scales_R
        facts[name] = {"bits": bits, "shape": list(tensor.shape)}
    write_bytes(path, save(stored, metadata={METADATA: json.dumps(facts)}))


def load_quantised(path: Path) -> "dict[str, Tensor]":
    """The tensors in single precision, under their own names."""
    import torch

    tensors: dict[str, Tensor] = {}
    with _damage_reported(path):
        facts, decode = _facts_and_decoder(path)
        with safe_open(path, framework="pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        for name, fact in facts.items():
            codes = stored.pop(f"{name}.codes").numpy()
            scales_R = stored.pop(f"{name}.scales").numpy()
            tensors[name] = torch.from_numpy(_matrix(codes, scales_R, fact, decode))
    for name, tensor in stored.items():
        tensors[name] = tensor.float() if tensor.is_floating_point() else tensor
    return tensors


def load_matrix(path: Path, name: str) -> np.ndarray:
    """One of the file's matrices in single precision, without torch."""
    with _damage_reported(path):
        facts, decode = _facts_and_decoder(path)
        with safe_open(path, framework="np") as file:
            codes = file.get_tensor(f"{name}.codes")
            scales_R = file.get_tensor(f"{name}.scales")
        return _matrix(codes, scales_R, facts[name], decode)


def matrix_facts(path: Path) -> dict[str, MatrixFacts]:
    """The bits and shape of every matrix in the file, by name."""
    with _damage_reported(path):
        facts, _ = _facts_and_decoder(path)
    return facts


def _facts_and_decoder(path: Path) -> tuple[dict[str, MatrixFacts], Decoder]:
    """The facts of all matrices, and how their codes are read."""
    with safe_open(path, framework="np") as file:
        metadata = file.metadata() or {}
    if FIRST_METADATA in metadata:
        return json.loads(metadata[FIRST_METADATA]), _unpack
    return json.loads(metadata[METADATA]), _decompress


@contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    """Turns what reading a damaged file raises into one sentence."""
    try:
        yield
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError):
        raise Damaged(f"{path} is not a file of quantised weights, or is damaged; copy the model again.") from None


def _matrix(codes: np.ndarray, scales_R: np.ndarray, fact: MatrixFacts, decode: Decoder) -> np.ndarray:
    num_rows, num_columns = fact["shape"]
    bits = fact["bits"]
    unsigned = decode(codes, bits, num_rows * num_columns)
    codes_RC = unsigned.reshape(num_rows, num_columns).astype(np.float32) - 2 ** (bits - 1)
    return np.asarray(codes_RC * scales_R.astype(np.float32)[:, None])


def _in_half(tensor: "Tensor") -> "Tensor":
    """The tensor in half precision, or in single precision where half precision would make numbers infinite."""
    half = tensor.half()
    if bool((half.isinf() & tensor.isfinite()).any()):
        return tensor.float()
    return half


def quantise_rows(weight_RC: "Tensor", bits: int) -> "tuple[Tensor, Tensor]":
    """Codes (int8) and scales (half precision) of a matrix."""
    import torch

    if not LEAST_BITS <= bits <= MOST_BITS:
        raise BadConfig(f"Weights take {LEAST_BITS} to {MOST_BITS} bits; {bits} were asked for.")
    weight_RC = weight_RC.detach().float()
    most = 2 ** (bits - 1) - 1
    reach_R = weight_RC.abs().amax(1).clamp(min=1e-8)
    best_error_R = torch.full_like(reach_R, torch.inf)
    best_scale_R = torch.zeros_like(reach_R)
    for clip in CLIPS:
        # Scales are rounded first, so that the error is that of what is stored.
        scale_R = (clip * reach_R / most).half().float().clamp(min=1e-7)
        rebuilt_RC = _codes(weight_RC, scale_R, most) * scale_R[:, None]
        error_R = (rebuilt_RC - weight_RC).square().sum(1)
        is_better_R = error_R < best_error_R
        best_error_R = torch.where(is_better_R, error_R, best_error_R)
        best_scale_R = torch.where(is_better_R, scale_R, best_scale_R)
    if not bool(best_error_R.isfinite().all()):
        raise BadInput("A matrix has weights that are not finite or too large, so it cannot be quantised.")
    return _codes(weight_RC, best_scale_R, most).to(torch.int8), best_scale_R.half()


def _codes(weight_RC: "Tensor", scale_R: "Tensor", most: int) -> "Tensor":
    return (weight_RC / scale_R[:, None]).round().clamp(-most, most)


def _compress(codes: np.ndarray, bits: int) -> np.ndarray:
    """int8 codes -> bytes of Huffman's code of them."""
    # Codes go from minus to plus half of the range; stored ones from 0 on.
    shift = 2 ** (bits - 1)
    unsigned = codes.astype(np.int16) + shift
    unsigned = unsigned.astype(np.uint8)
    # Repetitions are not looked for: weights have none, and without them the bytes depend on the codes alone.
    coder = zlib.compressobj(wbits=RAW_DEFLATE, strategy=zlib.Z_HUFFMAN_ONLY)
    coded = coder.compress(unsigned.tobytes()) + coder.flush()
    return np.frombuffer(bytearray(coded), np.uint8)


def _decompress(coded: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The bytes that `_compress` coded, whatever the bits; raises ValueError if they are not `count`."""
    decoder = zlib.decompressobj(wbits=RAW_DEFLATE)
    try:
        # Never more than expected, whatever a damaged file says.
        unsigned = decoder.decompress(coded.tobytes(), count + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(unsigned) != count:
        raise ValueError(f"{len(unsigned)} codes instead of {count}")
    if not decoder.eof or decoder.unused_data:
        raise ValueError("the codes do not end with the bytes")
    return np.frombuffer(unsigned, np.uint8)


def _unpack(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Codes of a file of the first versions, packed without gaps, as bytes; the highest bit of each code first."""
    expected = -(-count * bits // 8)  # rounded up to whole bytes
    if len(packed) != expected:
        raise ValueError(f"{len(packed)} bytes of codes instead of {expected}")
    if bits == MOST_BITS:
        return packed
    code_bits = np.unpackbits(packed, count=count * bits).reshape(count, bits)
    padded = np.zeros((count, MOST_BITS), np.uint8)
    padded[:, MOST_BITS - bits :] = code_bits
    return np.asarray(np.packbits(padded, axis=1).ravel())
