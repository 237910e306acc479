"""The recursions of `chain.py` in torch operations: all sequences walked together, whatever transitions they have.

In: unary scores and transitions in the order of a walk (`nn/walk.py`). Out: sums over the paths before and after each
label, and expected transitions. `chain_kernels.py` has the same recursions, compiled.
"""

from collections.abc import Iterable
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from firth.nn.walk import Walk

PAIRS_AT_ONCE = 1 << 22
"""The most transition scores that exist at once while expected transitions are summed."""


class ChainWalk(Walk):
    """The walk with what chains need of it."""

    def split(self, transitions: Tensor) -> Iterable[Tensor]:
        """The transitions into the tokens of each step from the second on."""
        if transitions.ndim == 2:
            return repeat(transitions[None])
        return transitions.split_with_sizes(self.sizes)[1:]

    def sums(self, values_N: Tensor) -> Tensor:
        """Sums over each sequence (values in token order), in float64: a long sum of single floats would drift."""
        sums_B: Tensor = torch.segment_reduce(values_N.double(), "sum", lengths=self.lengths_B, unsafe=True)
        return sums_B.to(values_N.dtype)


def forward_sums(unary_NT: Tensor, transitions: Tensor, walk: ChainWalk) -> tuple[Tensor, Tensor]:
    """alpha_NT and norm_N of the forward recursion.

    alpha is the log of the sum over all paths up to each label, less the maximum of its step. norm holds these maxima
    and, at the end of each sequence, the rest of the log partition, so that the norms of a sequence sum to it.
    """
    first, *rest = unary_NT.split_with_sizes(walk.sizes)
    alphas = [first]
    maxima = [torch.zeros_like(first[:, :1])]
    arriving = walk.split(transitions.mT)
    for unary, arrive in zip(rest, arriving, strict=False):
        before = alphas[-1][: len(unary), None]
        alpha = torch.logsumexp(before + arrive, 2).add_(unary)
        maximum = alpha.amax(1, keepdim=True)
        maxima.append(maximum)
        alphas.append(alpha.sub_(maximum))
    alpha_NT = torch.cat(alphas)
    norm_N = torch.cat(maxima)[:, 0]
    ends = walk.last_B[: walk.sizes[0]]
    norm_N[ends] += alpha_NT[ends].logsumexp(1)
    return alpha_NT, norm_N


def backward_sums(unary_NT: Tensor, transitions: Tensor, walk: ChainWalk) -> Tensor:
    """beta_NT: the log of the sum over all paths on from each label, less the maximum of its step."""
    beta_NT = torch.zeros_like(unary_NT)
    betas = beta_NT.split_with_sizes(walk.sizes)
    unaries = unary_NT.split_with_sizes(walk.sizes)
    leaving = walk.split(transitions)
    steps = list(zip(betas, unaries[1:], betas[1:], leaving, strict=False))
    for before, unary, beta, leave in reversed(steps):
        ahead = (unary + beta)[:, None]
        total = torch.logsumexp(ahead + leave, 2)
        maximum = total.amax(1, keepdim=True)
        torch.sub(total, maximum, out=before[: len(unary)])
    return beta_NT


def expected_pairs(
    alpha_NT: Tensor, ahead_NT: Tensor, transitions: Tensor, walk: ChainWalk, weight_N: Tensor
) -> Tensor:
    """Expected transitions, weighted by sequence and summed to the shape of `transitions`.

    `ahead_NT` is unary + beta: the paths from each label on, its own unary score included.
    """
    num_first = walk.sizes[0]
    rows_before = [np.arange(0)]
    for before, _ in walk.steps():
        rows_before.append(np.arange(before.start, before.stop))
    before_N = torch.from_numpy(np.concatenate(rows_before)).to(alpha_NT.device)
    counts = torch.zeros_like(transitions)
    num_tags = alpha_NT.shape[1]
    many = max(1, PAIRS_AT_ONCE // num_tags**2)
    for start in range(0, len(before_N), many):
        came = alpha_NT[before_N[start : start + many]]
        first = num_first + start
        chosen = slice(first, first + len(came))
        # Dimensions: token, from label, to label.
        logits = came[:, :, None] + transitions_at(transitions, chosen) + ahead_NT[chosen][:, None]
        probabilities = logits.flatten(1).softmax(1)
        weighted = probabilities * weight_N[chosen, None]
        pairs = weighted.view_as(logits)
        if transitions.ndim == 2:
            counts += pairs.sum(0)
        else:
            counts[chosen] = pairs
    return counts


def transitions_at(transitions: Tensor, rows: slice) -> Tensor:
    """The transitions into the tokens of these rows of the walk."""
    if transitions.ndim == 2:
        return transitions[None]
    return transitions[rows]
