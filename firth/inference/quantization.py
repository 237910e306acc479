"""An encoder in, a copy in lower precision out that answers faster.

The copy shares its embeddings and norms with the original. Its linear layers hold their weights packed the way the CPU
reads them. int8 layers scale every input channel by its own range (after SmoothQuant, Xiao et al. 2022, and Outlier
Suppression+, Wei et al. 2023), calibrated on sample texts. Their weights are rounded so that the errors of a row cancel
on those texts (GPTQ, Frantar et al. 2022). Residuals and norms stay in fp32.

Shapes: weights are E x D (outputs x inputs); C columns of weights are rounded at a time.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from firth.inference import operators
from firth.tensors import Encoder

SMOOTHING = 0.75
"""How much of a channel's range is moved into the weights: 0 leaves it to the inputs, 1 moves all of it."""
DAMPING = 0.1
"""Added to every channel's second moment, as a share of their mean, because the sample must represent other texts."""
BLOCK_COLUMNS = 64
"""Columns of weights that are rounded before the rest of a row compensates for their errors."""


@dataclass(frozen=True)
class InputStatistics:
    """Statistics of the inputs x of a linear layer."""

    low_D: Tensor
    """The smallest value of every channel."""
    high_D: Tensor
    """The largest value of every channel."""
    moments_DD: Tensor
    """The sum of x x' over all tokens."""

    def merge(self, other: "InputStatistics") -> "InputStatistics":
        """The statistics of both inputs together."""
        return InputStatistics(
            torch.minimum(self.low_D, other.low_D),
            torch.maximum(self.high_D, other.high_D),
            self.moments_DD + other.moments_DD,
        )


Calibration = Mapping[str, InputStatistics]
"""The input statistics of each widening layer."""


def copy_with_layers(encoder: Encoder, layers: Mapping[str, nn.Module]) -> Encoder:
    """A copy that shares every parameter, with these layers in its blocks and without a pooler."""
    shared = {id(parameter): parameter for parameter in encoder.parameters()}
    copy = deepcopy(encoder, shared)
    if hasattr(copy, "pooler"):
        copy.pooler = None  # type: ignore[assignment]
    for name, layer in layers.items():
        path, _, attribute = name.rpartition(".")
        parent = copy.get_submodule(f"blocks.{path}")
        setattr(parent, attribute, layer)
    return copy.eval()


def packed_linears(encoder: Encoder, dtype: torch.dtype) -> dict[str, nn.Module]:
    """The linear layers of an encoder's blocks in this precision, by name."""
    return {name: PackedLinear(linear, dtype) for name, linear in block_linears(encoder).items()}


def block_linears(encoder: Encoder) -> dict[str, nn.Linear]:
    """The linear layers of an encoder's blocks by name; word vectors have none."""
    blocks = getattr(encoder, "blocks", nn.ModuleList())
    return {name: module for name, module in blocks.named_modules() if isinstance(module, nn.Linear)}


def widening_linears(encoder: Encoder) -> dict[str, nn.Linear]:
    """The linear layers with more outputs than inputs: queries, keys and values; the first layer of a feed-forward."""
    linears = block_linears(encoder).items()
    return {name: linear for name, linear in linears if linear.out_features > linear.in_features}


def calibrate(encoder: Encoder, run: Callable[[Encoder], object]) -> Calibration:
    """The statistics of what goes into every widening layer while `run` uses the encoder."""
    calibration: dict[str, InputStatistics] = {}
    handles = []
    # Batches may be computed in parallel.
    lock = Lock()
    for name, linear in widening_linears(encoder).items():
        handles.append(_record_inputs(linear, name, calibration, lock))
    try:
        run(encoder)
    finally:
        for handle in handles:
            handle.remove()
    return calibration


def _record_inputs(
    linear: nn.Linear, name: str, calibration: dict[str, InputStatistics], lock: Lock
) -> RemovableHandle:
    """Adds the statistics of all inputs of the layer to `calibration[name]`, until the handle is removed."""

    def record(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x_ND = inputs[0]
        low_D, high_D = x_ND.aminmax(dim=0)
        found = InputStatistics(low_D, high_D, x_ND.T @ x_ND)
        with lock:
            if name in calibration:
                found = found.merge(calibration[name])
            calibration[name] = found

    return linear.register_forward_pre_hook(record)


class PackedLinear(nn.Module):
    """A linear layer for inference that computes in one precision, whatever the precision of its input."""

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.weight = linear.weight.detach().to(dtype)
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype)
        self.product: Callable[[Tensor, Tensor, Tensor | None], Tensor] = functional.linear
        if operators.can_pack(dtype):
            self.weight = operators.pack_weight(self.weight)
            self.product = operators.packed_linear

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.product(x_ND.to(self.dtype), self.weight, self.bias)


class Int8Linear(nn.Module):
    """W x + b with x = scale * (uint8 - shift).

    Each channel has its own scale and shift. The scales are multiplied into W, the shifts are part of the bias.
    """

    def __init__(self, linear: nn.Linear, statistics: InputStatistics, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        low_D = statistics.low_D
        high_D = statistics.high_D
        half_range_D = ((high_D - low_D) / 2).clamp(min=1e-4)
        # SmoothQuant: the scale takes a part of the channel's range, and the widest channel left fills all of uint8.
        scale_D = half_range_D**SMOOTHING
        remaining_D = half_range_D / scale_D
        scale_D *= remaining_D.max() / 127.5
        # The middle of the range becomes the middle of uint8. Half a step more, because the conversion truncates.
        self.shift_D = 127.5 - (low_D + high_D) / 2 / scale_D + 0.5
        self.inverse_scale_D = 1 / scale_D

        weight_ED = linear.weight.detach() * scale_D
        saturates = operators.int8_products(dtype) is not operators.Int8Products.EXACT
        self.step_E = weight_steps(weight_ED, saturates=saturates)
        step_E1 = self.step_E[:, None]
        # The second moments of the scaled inputs, for which GPTQ minimises the errors.
        moments_DD = statistics.moments_DD * self.inverse_scale_D * self.inverse_scale_D[:, None]
        integers_ED = gptq_round(weight_ED / step_E1, moments_DD, saturates=saturates).to(torch.int8)
        self.packed = operators.pack_int8_weight(integers_ED)

        quantized_ED = integers_ED * step_E1
        shift_product_E = quantized_ED @ (self.shift_D - 0.5)
        self.bias_E = -shift_product_E
        if linear.bias is not None:
            self.bias_E = linear.bias.detach() - shift_product_E

    def forward(self, x_ND: Tensor) -> Tensor:
        scaled_ND = torch.addcmul(self.shift_D, x_ND, self.inverse_scale_D)
        integers_ND = scaled_ND.clamp_(0, operators.MAX_UINT8).to(torch.uint8)
        return operators.int8_linear(integers_ND, self.packed, step_E=self.step_E, bias_E=self.bias_E, dtype=self.dtype)


def weight_steps(weight_ED: Tensor, *, saturates: bool) -> Tensor:
    """The quantization step of each row of weights, so that the row fits into int8.

    Where 16-bit sums saturate, two neighbouring weights of one sign may add up to at most 128. That costs less than 7
    bits for every weight: a large weight next to a small one still has all 8 bits.
    """
    step_E = weight_ED.abs().amax(1) / 127
    if saturates:
        largest_pair_E = _largest_pair_sums(weight_ED)
        # One less than allowed, because both may be rounded up.
        step_E = torch.maximum(step_E, largest_pair_E / (operators.MAX_PAIR_SUM - 1))
    return step_E.clamp(min=1e-12)


def _largest_pair_sums(weight_ED: Tensor) -> Tensor:
    """For each row the largest sum, in absolute value, of two neighbouring weights of one sign."""
    even_ED = weight_ED[:, 0::2]
    odd_ED = weight_ED[:, 1::2]
    if weight_ED.shape[1] % 2:
        odd_ED = functional.pad(odd_ED, (0, 1))
    positive_ED = even_ED.clamp(min=0) + odd_ED.clamp(min=0)
    negative_ED = even_ED.clamp(max=0) + odd_ED.clamp(max=0)
    return torch.maximum(positive_ED.amax(1), -negative_ED.amin(1))


def gptq_round(weight_ED: Tensor, moments_DD: Tensor, *, saturates: bool) -> Tensor:
    """Integers near these weights, such that the errors of a row cancel for inputs with these second moments.

    One column after another is rounded. The columns that remain compensate for its error as far as their inputs
    correlate with its own, by the rows of the upper Cholesky factor of the inverse moments (GPTQ, algorithm 1).
    """
    factor_DD = _inverse_cholesky(moments_DD).to(weight_ED.dtype)
    remaining_ED = weight_ED.clone()
    integers_ED = torch.zeros_like(weight_ED)
    num_columns = weight_ED.shape[1]
    for start in range(0, num_columns, BLOCK_COLUMNS):
        end = min(start + BLOCK_COLUMNS, num_columns)
        block_EC = remaining_ED[:, start:end]
        factor_CC = factor_DD[start:end, start:end]
        errors_EC = torch.zeros_like(block_EC)
        for column in range(end - start):
            position = start + column
            # The second weight of a pair may use what the first one leaves of the largest sum.
            first_E = torch.zeros(len(weight_ED))
            if saturates and position % 2:
                first_E = integers_ED[:, position - 1]
            weight_E = block_EC[:, column]
            integer_E = _round_within_pair(weight_E, first_E)
            error_E = (weight_E - integer_E) / factor_CC[column, column]
            # Columns of this block compensate at once, those after it when the block is complete.
            block_EC -= error_E[:, None] * factor_CC[column]
            integers_ED[:, position] = integer_E
            errors_EC[:, column] = error_E
        remaining_ED[:, end:] -= errors_EC @ factor_DD[start:end, end:]
    return integers_ED


def _round_within_pair(weight_E: Tensor, first_E: Tensor) -> Tensor:
    """The nearest int8 values whose sums with `first_E`, if of the same sign, stay within the largest pair sum."""
    high_E = operators.MAX_PAIR_SUM - first_E.clamp(min=0)
    low_E = -operators.MAX_PAIR_SUM - first_E.clamp(max=0)
    return weight_E.round().clamp(low_E.clamp(min=-127), high_E.clamp(max=127))


def _inverse_cholesky(moments_DD: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of the damped second moments, in double precision."""
    damping = DAMPING * moments_DD.diagonal().mean() + 1e-12
    identity_DD = torch.eye(len(moments_DD), dtype=torch.float64)
    damped_DD = moments_DD.double() + damping * identity_DD
    inverse_DD = torch.cholesky_inverse(torch.linalg.cholesky(damped_DD))
    factor_DD: Tensor = torch.linalg.cholesky(inverse_DD, upper=True)
    return factor_DD
