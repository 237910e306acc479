"""torch's internal CPU operators for inference, each tried once before it is used.

They are oneDNN's matrix products with weights in oneDNN's own layout. torch keeps them for its compiler: they may be
missing, have other arguments in another version, or refuse a CPU. If one does not work, its caller uses a plain
operator. Shapes: x is N x D, weights are E x D (outputs x inputs).
"""

from enum import Enum
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from firth.cpu import this_cpu

OPERATOR_ERRORS = (RuntimeError, AttributeError, TypeError, ValueError, NotImplementedError)
"""What an operator raises that is missing, has other arguments or refuses the CPU."""
MAX_UINT8 = 255
MAX_PAIR_SUM = 128
"""The largest sum of two neighbouring weights of one sign where sums saturate at 16 bits: 255 * 128 < 2**15."""


class Int8Products(Enum):
    """How products of 8-bit integers behave on this machine."""

    MISSING = "missing"
    SATURATING = "saturating"
    """Two neighbouring products are added in 16 bits (vpmaddubsw): their weights must stay within `MAX_PAIR_SUM`."""
    EXACT = "exact"


def pack_weight(weight_ED: Tensor) -> Tensor:
    """The weights of a linear layer in oneDNN's layout: 10 % faster than plain rows, 40 % for a few tokens."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_ED)
    return packed


def packed_linear(x_ND: Tensor, packed: Tensor, bias_E: Tensor | None) -> Tensor:
    """W x + b with packed weights; None for no bias."""
    out_NE: Tensor = torch.ops.mkldnn._linear_pointwise(x_ND, packed, bias_E, "none", [], "")
    return out_NE


def pack_int8_weight(weight_ED: Tensor) -> Tensor:
    """int8 weights in oneDNN's layout."""
    packed: Tensor = torch.ops.onednn.qlinear_prepack(weight_ED, None)
    return packed


def int8_linear(x_ND: Tensor, packed: Tensor, *, step_E: Tensor, bias_E: Tensor, dtype: torch.dtype) -> Tensor:
    """The product of uint8 inputs and packed int8 weights, times a step for each output, plus a bias."""
    # The input's scale is 1 and its zero point 0, because the caller has scaled it.
    zero_points_E = torch.zeros(len(step_E), dtype=torch.int64)
    out_NE: Tensor = torch.ops.onednn.qlinear_pointwise(
        x_ND, 1.0, 0, packed, step_E, zero_points_E, bias_E, 1.0, 0, dtype, "none", [], ""
    )
    return out_NE


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether linear layers in this precision can be packed and then give the same as plain ones."""
    x_ND = _test_values(5, 64).to(dtype)
    weight_ED = _test_values(32, 64).to(dtype)
    bias_E = _test_values(1, 32)[0].to(dtype)
    try:
        found_NE = packed_linear(x_ND, pack_weight(weight_ED), bias_E)
    except OPERATOR_ERRORS:
        return False
    expected_NE = functional.linear(x_ND, weight_ED, bias_E)
    return torch.allclose(found_NE.float(), expected_NE.float(), rtol=0.02, atol=0.02)


@cache
def int8_products(dtype: torch.dtype) -> Int8Products:
    """How 8-bit products with outputs of this type behave, tried with the largest values there are."""
    # Two such weights add up to the largest sum that does not saturate.
    within_pairs_ED = torch.full((32, 64), MAX_PAIR_SUM // 2, dtype=torch.int8)
    if not _is_correct(within_pairs_ED, dtype):
        return Int8Products.MISSING
    largest_ED = torch.full((32, 64), 127, dtype=torch.int8)
    cpu = this_cpu()
    # The CPU must have instructions with 32-bit sums (VNNI, ARM's dot product), and the operator must use them.
    if (cpu.vnni or cpu.arm) and _is_correct(largest_ED, dtype):
        return Int8Products.EXACT
    return Int8Products.SATURATING


def _is_correct(weight_ED: Tensor, dtype: torch.dtype) -> bool:
    """Whether products of these weights with the largest inputs are right."""
    x_ND = torch.full((48, weight_ED.shape[1]), MAX_UINT8, dtype=torch.uint8)
    step_E = torch.full((len(weight_ED),), 1e-4)
    bias_E = torch.ones(len(weight_ED))
    expected_NE = x_ND.float() @ weight_ED.float().T * 1e-4 + 1
    try:
        found_NE = int8_linear(x_ND, pack_int8_weight(weight_ED), step_E=step_E, bias_E=bias_E, dtype=dtype)
    except OPERATOR_ERRORS:
        return False
    return torch.allclose(found_NE.float(), expected_NE, rtol=0.01)


def _test_values(rows: int, columns: int) -> Tensor:
    """Numbers between -1 and 1 that differ from row to row, without random numbers."""
    numbers = torch.arange(rows * columns, dtype=torch.float32)
    return numbers.mul(0.37).sin().view(rows, columns)
