"""Cross-entropy over a large vocabulary, directly from the states: N x V scores never exist at once.

In: states, the matrix (and bias) that scores them, labels. Out: the summed loss and how many labels score highest.
Scores are computed piece by piece. While a piece exists, its gradient, softmax minus the label, is multiplied back at
once, so that nothing is kept or recomputed for the backward pass.
"""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn.functional import linear

IGNORE = -100
"""The label of a row that does not count."""
PIECE = 1 << 25
"""The most scores that exist at once: 128 MB in single precision."""


def scale_gradient(total: Tensor, weight: float) -> Tensor:
    """The same number with a weighted gradient, so that the reported figure stays a plain mean."""
    return total.detach() + weight * (total - total.detach())


def summed_cross_entropy(
    x_PE: Tensor,
    weight_VE: Tensor,
    bias_V: Tensor | None,
    *,
    labels_P: Tensor,
    smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The loss summed over all labels but IGNORE, and how many labels have the highest score.

    Label smoothing (Szegedy et al. 2016, section 7): this share of a label's probability is spread evenly over the
    whole vocabulary, the label's own token included.
    """
    if torch.is_grad_enabled():
        total, correct = _SummedCrossEntropy.apply(x_PE, weight_VE, bias_V, labels_P, smoothing)  # type: ignore[no-untyped-call]
        return total, correct
    totals = []
    corrects = []
    for x, labels in _pieces(x_PE, labels_P, len(weight_VE)):
        scores_PV = linear(x, weight_VE, bias_V).float()
        _, total, correct = _softmax_and_loss(scores_PV, labels, smoothing)
        totals.append(total)
        corrects.append(correct)
    return torch.stack(totals).sum(), torch.stack(corrects).sum()


def _pieces(x_PE: Tensor, labels_P: Tensor, vocab_size: int) -> list[tuple[Tensor, Tensor]]:
    """States and labels, as many rows at a time as have PIECE scores."""
    rows = max(1, PIECE // vocab_size)
    return list(zip(torch.split(x_PE, rows), torch.split(labels_P, rows), strict=True))


class _LossContext(FunctionCtx):
    """What the backward pass needs of the forward one."""

    saved_tensors: tuple[Tensor, Tensor, Tensor]
    dtype: torch.dtype
    has_bias: bool


class _SummedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _LossContext,
        x_PE: Tensor,
        weight_VE: Tensor,
        bias_V: Tensor | None,
        labels_P: Tensor,
        smoothing: float,
    ) -> tuple[Tensor, Tensor]:
        totals = []
        corrects = []
        x_grads = []
        weight_grad_VE = torch.zeros_like(weight_VE, dtype=torch.float32)
        bias_grad_V = torch.zeros_like(weight_VE[:, 0], dtype=torch.float32)
        for x, labels in _pieces(x_PE, labels_P, len(weight_VE)):
            scores_PV = linear(x, weight_VE, bias_V).float()
            softmax_PV, total, correct = _softmax_and_loss(scores_PV, labels, smoothing)
            # The gradient of the scores: softmax minus the label's probabilities, 0 in rows that do not count.
            counts_P1 = (labels != IGNORE)[:, None]
            gold_P1 = labels.clamp(min=0)[:, None]
            minus_share_P1 = softmax_PV.new_full(gold_P1.shape, smoothing - 1.0)
            grad_PV = softmax_PV.scatter_add_(1, gold_P1, minus_share_P1)
            if smoothing:
                grad_PV = grad_PV.sub_(smoothing / len(weight_VE))
            grad_PV = grad_PV.mul_(counts_P1)
            if bias_V is not None:
                bias_grad_V = bias_grad_V + grad_PV.sum(0)
            grad_PV = grad_PV.to(x.dtype)
            x_grads.append(grad_PV @ weight_VE)
            weight_grad_VE = weight_grad_VE + (grad_PV.T @ x).float()
            totals.append(total)
            corrects.append(correct)
        ctx.save_for_backward(torch.cat(x_grads), weight_grad_VE, bias_grad_V)
        ctx.dtype = weight_VE.dtype
        ctx.has_bias = bias_V is not None
        total = torch.stack(totals).sum()
        correct = torch.stack(corrects).sum()
        ctx.mark_non_differentiable(correct)
        return total, correct

    @staticmethod
    def backward(ctx: _LossContext, *output_grads: Tensor) -> tuple[Tensor | None, ...]:
        x_grad_PE, weight_grad_VE, bias_grad_V = ctx.saved_tensors
        scale = output_grads[0]
        bias_grad = (bias_grad_V * scale).to(ctx.dtype) if ctx.has_bias else None
        x_grad = x_grad_PE * scale.to(x_grad_PE.dtype)
        weight_grad = (weight_grad_VE * scale).to(ctx.dtype)
        return x_grad, weight_grad, bias_grad, None, None


def _softmax_and_loss(scores_PV: Tensor, labels_P: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    """The softmax, the summed loss, and how many labels score highest. Overwrites the scores."""
    counts_P = labels_P != IGNORE
    gold_P1 = labels_P.clamp(min=0)[:, None]
    best_P1 = scores_PV.amax(1, keepdim=True)
    gold_score_P1 = scores_PV.gather(1, gold_P1)
    num_correct = _num_correct(scores_PV, labels_P, gold_score_P1[:, 0] == best_P1[:, 0])
    wanted_score_P1 = gold_score_P1
    if smoothing:
        mean_P1 = scores_PV.mean(1, keepdim=True)
        wanted_score_P1 = (1 - smoothing) * gold_score_P1 + smoothing * mean_P1
    powers_PV = scores_PV.sub_(best_P1).exp_()
    sums_P1 = powers_PV.sum(1, keepdim=True)
    losses_P = (sums_P1.log() + best_P1 - wanted_score_P1)[:, 0]
    softmax_PV = powers_PV.div_(sums_P1)
    total = torch.where(counts_P, losses_P, 0.0).sum()
    return softmax_PV, total, num_correct


def _num_correct(scores_PV: Tensor, labels_P: Tensor, is_best_P: Tensor) -> Tensor:
    """How many labels score highest, given which labels' scores equal the highest one.

    Scores that were computed in half precision are often equal; then the first of them is the answer. On a GPU, where
    shapes must not depend on data, every label with the highest score counts.
    """
    is_best_P = is_best_P & (labels_P != IGNORE)
    if scores_PV.is_cuda:
        return is_best_P.sum()
    rows_R = is_best_P.nonzero().flatten()
    return (scores_PV[rows_R].argmax(1) == labels_P[rows_R]).sum()
