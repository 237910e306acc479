"""Muon (Jordan et al. 2024): momentum whose update is made orthogonal, for the matrices inside a network.

In: gradients. Out: updates U V' of the momentum's singular value decomposition U S V', by five steps of a
Newton-Schulz iteration. All matrices of one shape are updated together, on a GPU by batched products. An update is
scaled to the size of AdamW's (Liu et al. 2025, "Muon is scalable", section 2.2), so that both share one learning rate.
All other parameters (embeddings, norms, biases, heads) take AdamW's step.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from firth.cpu import this_cpu

ParameterGroup = dict[str, Any]
"""A group of parameters as torch's optimizers take it: `params` and the settings they share."""

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic a x + b x^3 + c x^5, which drives all singular values towards 1."""
NUM_ITERATIONS = 5
UPDATE_SIZE = 0.2
"""Root mean square of an update, about that of AdamW's."""


def orthogonal(x_BRC: Tensor) -> Tensor:
    """The nearest orthogonal matrices, roughly: singular values between 0.7 and 1.2 instead of 1.

    B matrices of R rows and C columns in, as many out.
    """
    x: Tensor = x_BRC
    # The smaller side comes first, so that x x' is small.
    is_tall = x_BRC.shape[1] > x_BRC.shape[2]
    if is_tall:
        x = x.mT
    # The iteration converges only if no singular value is above 1.
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    if x.is_cuda:
        x = _iterate(x, torch.baddbmm)
    else:
        # On a CPU, products of single matrices are faster.
        singles = [_iterate(x_RC, torch.addmm) for x_RC in x]
        x = torch.stack(singles)
    if is_tall:
        return x.mT
    return x


def _iterate(x: Tensor, add_product: Callable[..., Tensor]) -> Tensor:
    """The Newton-Schulz iteration, for one matrix (`addmm`) or a batch of them (`baddbmm`)."""
    a, b, c = COEFFICIENTS
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.mT
        polynomial = add_product(gram, gram, gram, beta=b, alpha=c)  # b G + c G G
        x = add_product(x, polynomial, x, beta=a)  # a X + polynomial X
    return x


class Muon(torch.optim.Optimizer):
    """Muon for parameter groups with `pieces`, fused AdamW for the others.

    `pieces` is the number of matrices that lie above each other in one weight: three in a fused projection to queries,
    keys and values.
    """

    def __init__(
        self,
        groups: Iterable[ParameterGroup],
        *,
        lr: float,
        momentum: float,
        make_adamw: Callable[[list[ParameterGroup]], torch.optim.AdamW],
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": 0.0, "pieces": 0, "scale": 1.0}
        super().__init__(list(groups), defaults)
        adamw_groups = [group for group in self.param_groups if not group["pieces"]]
        self._adamw = make_adamw(adamw_groups)
        # One set of groups and states for both, so that schedules and saved states see a single optimizer.
        self._adamw.param_groups = adamw_groups
        for group in self._adamw.param_groups:
            for name, value in self._adamw.defaults.items():
                group.setdefault(name, value)
        self._adamw.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self._adamw.step()
        for group in self.param_groups:
            if not group["pieces"]:
                continue
            for parameters in _by_shape(group["params"]):
                self._step_together(parameters, group)

    def _step_together(self, parameters: list[nn.Parameter], group: ParameterGroup) -> None:
        """One step for parameters of one shape."""
        updates = [self._momentum(parameter, group["momentum"]) for parameter in parameters]
        rows, columns = updates[0].shape
        piece_rows = rows // group["pieces"]
        # All pieces of all parameters, R rows and C columns each.
        stacked_BRC = torch.stack(updates).view(-1, piece_rows, columns)
        product_dtype = _product_dtype(stacked_BRC)
        made_BRC = orthogonal(stacked_BRC.to(product_dtype)).to(stacked_BRC.dtype)
        # An orthogonal matrix of R x C has a root mean square of 1 / sqrt(max(R, C)).
        size = UPDATE_SIZE * max(piece_rows, columns) ** 0.5
        made = made_BRC.view(len(parameters), rows, columns)
        rate: float = group["lr"]
        for parameter, update in zip(parameters, made, strict=True):
            parameter.mul_(1 - rate * group["weight_decay"])
            parameter.add_(update, alpha=-rate * size)

    def _momentum(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        """Nesterov's momentum: the running mean of gradients, one step ahead."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum"]
        buffer.lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(buffer, momentum)


def _product_dtype(matrices: Tensor) -> torch.dtype:
    """bf16 where it is faster: the iteration only has to come near an orthogonal matrix."""
    if matrices.is_cuda or this_cpu().bf16:
        return torch.bfloat16
    return matrices.dtype


def _by_shape(parameters: list[nn.Parameter]) -> Iterable[list[nn.Parameter]]:
    """The parameters that have a gradient, grouped by their shape."""
    shapes: dict[torch.Size, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            shapes.setdefault(parameter.shape, []).append(parameter)
    return shapes.values()
