"""An encoder for inference in fewer bits: a BERT in, a copy out that answers faster.

The copy shares its tables and norms with the original; its linear layers hold their weights packed the way the CPU
reads them. Layers that take bytes give every input channel its own range (after SmoothQuant, Xiao et al. 2022, and
Outlier Suppression+, Wei et al. 2023), found on sample texts; their weights are rounded so that the errors of a row
cancel on those texts (GPTQ, Frantar et al. 2022). Residuals and norms stay in fp32.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from firth.inference import operators
from firth.tensors import Encoder

SMOOTHING = 0.75
"""How much of a channel's range goes into the weights: 0 leaves it to the inputs, 1 takes all of it."""

DAMPING = 0.1
"""What is added to every channel's second moment, as a share of their mean: the sample stands for other texts, too."""
COLUMNS = 64
"""Columns of weights that are rounded before the rest of a row takes up their errors."""


@dataclass(frozen=True)
class Inputs:
    """What was seen of the inputs x of a linear layer."""

    low_D: Tensor
    high_D: Tensor
    """The least and the greatest value of every channel."""
    moments_DD: Tensor
    """The sum of x x'."""

    def joined(self, other: "Inputs") -> "Inputs":
        return Inputs(
            torch.minimum(self.low_D, other.low_D),
            torch.maximum(self.high_D, other.high_D),
            self.moments_DD + other.moments_DD,
        )


Seen = Mapping[str, Inputs]
"""The inputs of each widening layer."""


def replaced(encoder: Encoder, layers: Mapping[str, nn.Module]) -> Encoder:
    """A copy that shares every parameter, with these layers in its blocks and without a pooler."""
    copy = deepcopy(encoder, {id(parameter): parameter for parameter in encoder.parameters()})
    if hasattr(copy, "pooler"):
        copy.pooler = None  # type: ignore[assignment]
    for name, layer in layers.items():
        path, _, last = name.rpartition(".")
        setattr(copy.get_submodule(f"blocks.{path}"), last, layer)
    return copy.eval()


def packed_linears(encoder: Encoder, dtype: torch.dtype) -> dict[str, nn.Module]:
    return {name: PackedLinear(linear, dtype) for name, linear in linears(encoder).items()}


def linears(encoder: Encoder) -> dict[str, nn.Linear]:
    """The linear layers of an encoder's blocks by name; word vectors have none."""
    blocks = getattr(encoder, "blocks", nn.ModuleList())
    return {name: part for name, part in blocks.named_modules() if isinstance(part, nn.Linear)}


def widening(encoder: Encoder) -> dict[str, nn.Linear]:
    """The linear layers with more outputs than inputs: queries, keys and values; the first half of a feed-forward."""
    return {name: linear for name, linear in linears(encoder).items() if linear.out_features > linear.in_features}


def see_inputs(encoder: Encoder, run: Callable[[Encoder], Any]) -> Seen:
    """What goes into every widening layer while `run` uses the encoder."""
    seen: dict[str, Inputs] = {}
    lock = Lock()  # batches may be computed side by side

    def look(name: str, x_ND: Tensor) -> None:
        low_D, high_D = x_ND.aminmax(dim=0)
        found = Inputs(low_D, high_D, x_ND.T @ x_ND)
        with lock:
            seen[name] = found.joined(seen[name]) if name in seen else found

    handles = [
        linear.register_forward_pre_hook(lambda _, inputs, name=name: look(name, inputs[0]))
        for name, linear in widening(encoder).items()
    ]
    try:
        run(encoder)
    finally:
        for handle in handles:
            handle.remove()
    return seen


class PackedLinear(nn.Module):
    """A linear layer for inference in this precision, whatever its input's."""

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.weight = linear.weight.detach().to(dtype)
        self.bias = linear.bias.detach().to(dtype)
        self.product: Callable[[Tensor, Tensor, Tensor], Tensor] = functional.linear
        if operators.packs(dtype):
            self.weight = operators.pack(self.weight)
            self.product = operators.packed_linear

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.product(x_ND.to(self.dtype), self.weight, self.bias)


class Int8Linear(nn.Module):
    """W x + b with x = scale * (byte - shift), scale and shift a channel's own, and the scales multiplied into W."""

    def __init__(self, linear: nn.Linear, inputs: Inputs, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        half_D = ((inputs.high_D - inputs.low_D) / 2).clamp(min=1e-4)
        scale_D = half_D**SMOOTHING
        scale_D *= (half_D / scale_D).max() / 127.5
        # Half a step more, because turning a float into a byte cuts its fraction off.
        self.shift_D = 127.5 - (inputs.low_D + inputs.high_D) / 2 / scale_D + 0.5
        self.inverse_D = 1 / scale_D
        weight_ED = linear.weight.detach() * scale_D
        saturates = operators.byte_products(dtype) is not operators.ByteProducts.EXACT
        self.step_E = weight_steps(weight_ED, saturates=saturates)
        moments_DD = inputs.moments_DD * self.inverse_D * self.inverse_D[:, None]
        bytes_ED = rounded(weight_ED / self.step_E[:, None], moments_DD, saturates=saturates).to(torch.int8)
        middle_E = (bytes_ED * self.step_E[:, None]) @ (self.shift_D - 0.5)
        self.bias_E = linear.bias.detach() - middle_E
        self.packed = operators.pack_bytes(bytes_ED)

    def forward(self, x_ND: Tensor) -> Tensor:
        bytes_ND = torch.addcmul(self.shift_D, x_ND, self.inverse_D).clamp_(0, 255).to(torch.uint8)
        return operators.byte_linear(bytes_ND, self.packed, step_E=self.step_E, bias_E=self.bias_E, dtype=self.dtype)


def weight_steps(weight_ED: Tensor, *, saturates: bool) -> Tensor:
    """The step of each row of weights, so that the row fits into signed bytes.

    Where 16-bit sums saturate, two neighbouring weights of one sign may have at most 128 together. That costs less than
    keeping every weight to 7 bits: a weight that is large beside a small one still has all of its byte.
    """
    step_E = weight_ED.abs().amax(1) / 127
    if saturates:
        even_ED = weight_ED[:, 0::2]
        odd_ED = weight_ED[:, 1::2]
        if weight_ED.shape[1] % 2:
            odd_ED = functional.pad(odd_ED, (0, 1))
        positive_ED = even_ED.clamp(min=0) + odd_ED.clamp(min=0)
        negative_ED = even_ED.clamp(max=0) + odd_ED.clamp(max=0)
        pairs_E = torch.maximum(positive_ED.amax(1), -negative_ED.amin(1))
        # One less than they may have, because both may be rounded up.
        step_E = torch.maximum(step_E, pairs_E / (operators.PAIR - 1))
    return step_E.clamp(min=1e-12)


def rounded(weight_ED: Tensor, moments_DD: Tensor, *, saturates: bool) -> Tensor:
    """Whole numbers near these weights: the errors of a row cancel for inputs with these second moments.

    Column after column is rounded, and the columns that are left take up its error as far as their inputs go together
    with its own: by the rows of the upper Cholesky factor of the inverse moments (GPTQ, algorithm 1).
    """
    damping = DAMPING * moments_DD.diagonal().mean() + 1e-12
    damped_DD = moments_DD.double() + damping * torch.eye(len(moments_DD), dtype=torch.float64)
    inverse_DD = torch.cholesky_inverse(torch.linalg.cholesky(damped_DD))
    factor_DD = torch.linalg.cholesky(inverse_DD, upper=True).to(weight_ED.dtype)
    left_ED = weight_ED.clone()
    whole_ED = torch.zeros_like(weight_ED)
    for start in range(0, weight_ED.shape[1], COLUMNS):
        end = min(start + COLUMNS, weight_ED.shape[1])
        block_EC = left_ED[:, start:end]
        factor_CC = factor_DD[start:end, start:end]
        errors_EC = torch.zeros_like(block_EC)
        for column in range(end - start):
            position = start + column
            # The second of a pair may have what the first has left of 128.
            first_E = whole_ED[:, position - 1] if saturates and position % 2 else torch.zeros(len(weight_ED))
            most_E = (operators.PAIR - first_E.clamp(min=0)).clamp(max=127)
            least_E = (-operators.PAIR - first_E.clamp(max=0)).clamp(min=-127)
            whole_E = block_EC[:, column].round().clamp(least_E, most_E)
            error_E = (block_EC[:, column] - whole_E) / factor_CC[column, column]
            block_EC -= error_E[:, None] * factor_CC[column]
            whole_ED[:, position] = whole_E
            errors_EC[:, column] = error_E
        left_ED[:, end:] -= errors_EC @ factor_DD[start:end, end:]
    return whole_ED
