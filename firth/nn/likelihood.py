"""Cross-entropy over a large vocabulary, straight from the states: N x V scores never exist at once.

In: states, the matrix (and bias) that scores them, labels. Out: the summed loss and how many labels score highest.
Scores are made piece by piece; while a piece is there its gradient, softmax minus the label, is multiplied back at
once, so that nothing is kept or computed again for the backward pass.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

IGNORE = -100
"""The label of a row that does not count."""
PIECE = 1 << 25
"""Scores that exist at once: 128 MB in single precision."""


def summed_cross_entropy(
    x_PE: Tensor, weight_VE: Tensor, bias_V: Tensor | None, *, labels_P: Tensor
) -> tuple[Tensor, Tensor]:
    if torch.is_grad_enabled():
        total, right = _Summed.apply(x_PE, weight_VE, bias_V, labels_P)  # type: ignore[no-untyped-call]
        return total, right
    rows = max(1, PIECE // len(weight_VE))
    each = [
        _measured(linear(x, weight_VE, bias_V).float(), labels)[1:]
        for x, labels in zip(torch.split(x_PE, rows), torch.split(labels_P, rows), strict=True)
    ]
    totals, rights = zip(*each, strict=True)
    return torch.stack(totals).sum(), torch.stack(rights).sum()


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_PE: Tensor, weight_VE: Tensor, bias_V: Tensor | None, labels_P: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows = max(1, PIECE // len(weight_VE))
        totals, rights, of_x = [], [], []
        of_weight_VE = torch.zeros_like(weight_VE, dtype=torch.float32)
        of_bias_V = torch.zeros_like(weight_VE[:, 0], dtype=torch.float32)
        for x, labels in zip(torch.split(x_PE, rows), torch.split(labels_P, rows), strict=True):
            shares_PV, total, right = _measured(linear(x, weight_VE, bias_V).float(), labels)
            kept_P1 = (labels != IGNORE)[:, None]
            gold_P1 = labels.clamp(min=0)[:, None]
            shares_PV = shares_PV.scatter_add_(1, gold_P1, shares_PV.new_full(gold_P1.shape, -1.0)).mul_(kept_P1)
            of_bias_V = of_bias_V if bias_V is None else of_bias_V + shares_PV.sum(0)
            shares_PV = shares_PV.to(x.dtype)
            of_x.append(shares_PV @ weight_VE)
            of_weight_VE = of_weight_VE + (shares_PV.T @ x).float()
            totals.append(total)
            rights.append(right)
        ctx.save_for_backward(torch.cat(of_x), of_weight_VE, of_bias_V)
        ctx.dtype, ctx.biased = weight_VE.dtype, bias_V is not None
        total, right = torch.stack(totals).sum(), torch.stack(rights).sum()
        ctx.mark_non_differentiable(right)
        return total, right

    @staticmethod
    def backward(ctx: Any, *of_outputs: Tensor) -> tuple[Tensor | None, ...]:
        of_x_PE, of_weight_VE, of_bias_V = ctx.saved_tensors
        scale = of_outputs[0]
        of_bias = (of_bias_V * scale).to(ctx.dtype) if ctx.biased else None
        return of_x_PE * scale.to(of_x_PE.dtype), (of_weight_VE * scale).to(ctx.dtype), of_bias, None


def _measured(scores_PV: Tensor, labels_P: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shares in place of the scores, the summed loss, and how many labels score highest."""
    kept_P, gold_P1 = labels_P != IGNORE, labels_P.clamp(min=0)[:, None]
    best_P1, of_gold_P1 = scores_PV.amax(1, keepdim=True), scores_PV.gather(1, gold_P1)
    shares_PV = scores_PV.sub_(best_P1).exp_()
    sums_P1 = shares_PV.sum(1, keepdim=True)
    losses_P = (sums_P1.log() + best_P1 - of_gold_P1)[:, 0]
    right_P = (of_gold_P1 == best_P1)[:, 0] & kept_P
    return shares_PV.div_(sums_P1), torch.where(kept_P, losses_P, 0.0).sum(), right_P.sum()
