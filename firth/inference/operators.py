"""torch's own operators for inference on a CPU, each tried once before it is used.

They are oneDNN's products with weights in oneDNN's layout. torch keeps them for its compiler: they may be missing, have
other arguments in another version, or refuse a CPU. Where one does not work, its caller takes the plain way.
"""

from enum import Enum
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from firth.cpu import this_cpu

Failure = (RuntimeError, AttributeError, TypeError, ValueError, NotImplementedError)
"""What an operator raises that is missing, has other arguments or refuses the CPU."""
GREATEST_BYTE = 255
PAIR = 128
"""The most that two neighbouring weights of one sign may add up to where sums saturate: 255 * 128 < 2**15."""


class ByteProducts(Enum):
    """How products of bytes behave here."""

    MISSING = "missing"
    SATURATING = "saturating"
    """Two neighbouring products are added up in 16 bits (vpmaddubsw): their weights must stay within `PAIR`."""
    EXACT = "exact"


def pack(weight_ED: Tensor) -> Tensor:
    """The weights of a linear layer in oneDNN's layout: 10 % faster than rows as they are, 40 % for a few tokens."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_ED)
    return packed


def packed_linear(x_ND: Tensor, packed: Tensor, bias_E: Tensor) -> Tensor:
    out_NE: Tensor = torch.ops.mkldnn._linear_pointwise(x_ND, packed, bias_E, "none", [], "")
    return out_NE


def pack_bytes(bytes_ED: Tensor) -> Tensor:
    packed: Tensor = torch.ops.onednn.qlinear_prepack(bytes_ED, None)
    return packed


def byte_linear(bytes_ND: Tensor, packed: Tensor, *, step_E: Tensor, bias_E: Tensor, dtype: torch.dtype) -> Tensor:
    """The product of unsigned and signed bytes, times a step for each output, plus a bias."""
    zero_E = torch.zeros(len(step_E), dtype=torch.int64)
    out_NE: Tensor = torch.ops.onednn.qlinear_pointwise(
        bytes_ND, 1.0, 0, packed, step_E, zero_E, bias_E, 1.0, 0, dtype, "none", [], ""
    )
    return out_NE


@cache
def packs(dtype: torch.dtype) -> bool:
    """Whether linear layers in this precision can be packed, and then give what plain ones do."""
    x_ND = _ramp(5, 64).to(dtype)
    weight_ED = _ramp(32, 64).to(dtype)
    bias_E = _ramp(1, 32)[0].to(dtype)
    try:
        found_NE = packed_linear(x_ND, pack(weight_ED), bias_E)
    except Failure:
        return False
    plain_NE = functional.linear(x_ND, weight_ED, bias_E)
    return torch.allclose(found_NE.float(), plain_NE.float(), rtol=0.02, atol=0.02)


@cache
def byte_products(dtype: torch.dtype) -> ByteProducts:
    """How products of bytes with outputs of this type behave: tried with the greatest bytes there are."""
    greatest_ED = torch.full((32, 64), 127, dtype=torch.int8)
    within_pairs_ED = torch.full((32, 64), PAIR // 2, dtype=torch.int8)
    if not _multiplies(within_pairs_ED, dtype):
        return ByteProducts.MISSING
    cpu = this_cpu()
    exact = (cpu.vnni or cpu.arm) and _multiplies(greatest_ED, dtype)
    return ByteProducts.EXACT if exact else ByteProducts.SATURATING


def _multiplies(weight_ED: Tensor, dtype: torch.dtype) -> bool:
    """Whether products of these weights with the greatest bytes are right."""
    x_ND = torch.full((48, weight_ED.shape[1]), GREATEST_BYTE, dtype=torch.uint8)
    step_E = torch.full((len(weight_ED),), 1e-4)
    bias_E = torch.ones(len(weight_ED))
    expected_NE = x_ND.float() @ weight_ED.float().T * 1e-4 + 1
    try:
        found_NE = byte_linear(x_ND, pack_bytes(weight_ED), step_E=step_E, bias_E=bias_E, dtype=dtype)
    except Failure:
        return False
    return torch.allclose(found_NE.float(), expected_NE, rtol=0.01)


def _ramp(rows: int, columns: int) -> Tensor:
    """Numbers between -1 and 1 that differ from row to row; no random numbers are drawn."""
    return torch.arange(rows * columns, dtype=torch.float32).mul(0.37).sin().view(rows, columns)
