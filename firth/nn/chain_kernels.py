"""The recursions of `chain.py` compiled for the CPU (numba): sequences one by one, transitions shared by all steps.

In: scores as numpy arrays, in log space. Out: best paths; partition sums, marginals and expected transitions. A step
works with exp(score - maximum) as weights, so it needs one exp and one log a label; where all weights of a sum vanish,
the sum is taken anew from its own maximum. So nothing underflows, whatever the length or the size of the scores.
"""

import math
from typing import Any

import numpy as np

from firth.compiling import cached_on_disk
from firth.errors import Unsupported

try:
    from numba import njit
except ImportError:
    raise Unsupported("This needs numba: pip install 'firth[vectors]'.") from None

_VANISHED = 1e-250


@cached_on_disk
@njit
def viterbi(unary_NT: Any, transitions_TT: Any, bounds_B1: Any) -> Any:
    """The best path through each sequence; -1 where a sequence has none."""
    num_tokens, num_tags = unary_NT.shape
    tags_N, came_NT = np.empty(num_tokens, np.int64), np.empty((num_tokens, num_tags), np.int16)
    best, arrived = np.empty(num_tags), np.empty(num_tags)
    for b in range(len(bounds_B1) - 1):
        start, end = bounds_B1[b], bounds_B1[b + 1]
        if start == end:
            continue
        best[:] = unary_NT[start]
        for n in range(start + 1, end):
            for j in range(num_tags):
                arrived[j], came_NT[n, j] = best[0] + transitions_TT[0, j], 0
            for i in range(1, num_tags):
                for j in range(num_tags):
                    score = best[i] + transitions_TT[i, j]
                    if score > arrived[j]:
                        arrived[j], came_NT[n, j] = score, i
            top = arrived.max()
            for j in range(num_tags):
                best[j] = arrived[j] + unary_NT[n, j] - (top if top > -np.inf else 0.0)
        at = np.argmax(best)
        legal = best[at] > -np.inf
        for n in range(end - 1, start - 1, -1):
            tags_N[n] = at if legal else -1
            if n > start:
                at = came_NT[n, at]
    return tags_N


@cached_on_disk
@njit(nogil=True)
def forward_backward(unary_NT: Any, transitions_TT: Any, bounds_B1: Any, scale_B: Any) -> Any:
    """The log partition of each sequence, the marginals of each token, and the expected transitions of all together,
    each sequence's times its scale."""
    num_tokens, num_tags = unary_NT.shape
    log_z_B, marginals_NT = np.zeros(len(bounds_B1) - 1), np.empty((num_tokens, num_tags))
    pairs_TT = np.zeros((num_tags, num_tags))
    shift = -np.inf
    for i in range(num_tags):
        shift = max(shift, transitions_TT[i].max())
    shift = shift if shift > -np.inf else 0.0
    weights_TT = np.exp(transitions_TT.astype(np.float64) - shift)
    backward_TT, transposed_TT = weights_TT.T.copy(), transitions_TT.T.copy()
    beta, ahead, weight = np.empty(num_tags), np.empty(num_tags), np.empty(num_tags)
    for b in range(len(bounds_B1) - 1):
        start, end = bounds_B1[b], bounds_B1[b + 1]
        if start == end:
            continue
        alpha_LT = marginals_NT[start:end]  # overwritten by the marginals on the way back
        alpha_LT[0] = unary_NT[start]
        for n in range(start + 1, end):
            _arrive(alpha_LT[n - 1 - start], transitions_TT, weights_TT, shift, weight, alpha_LT[n - start])
            for j in range(num_tags):
                alpha_LT[n - start, j] += unary_NT[n, j]
        last = alpha_LT[end - 1 - start]
        top = last.max()
        log_z_B[b] = top + math.log(np.exp(last - top).sum()) if top > -np.inf else -np.inf
        beta[:] = 0.0
        for n in range(end - 1, start - 1, -1):
            for j in range(num_tags):
                ahead[j] = unary_NT[n, j] + beta[j]
                alpha_LT[n - start, j] = math.exp(alpha_LT[n - start, j] + beta[j] - log_z_B[b])
            if n > start:
                came = alpha_LT[n - 1 - start]
                _add_pairs(came, ahead, transitions_TT, weights_TT, shift, log_z_B[b], weight, scale_B[b], pairs_TT)
                _arrive(ahead, transposed_TT, backward_TT, shift, weight, beta)
    return log_z_B, marginals_NT, pairs_TT


@cached_on_disk
@njit
def _arrive(alpha: Any, transitions_TT: Any, weights_TT: Any, shift: Any, weight: Any, out: Any) -> None:
    """log sum_i exp(alpha_i + transitions_ij) for every j."""
    num_tags, top = len(alpha), alpha.max()
    if top == -np.inf:
        out[:] = -np.inf
        return
    out[:] = 0.0
    for i in range(num_tags):
        weight[i] = math.exp(alpha[i] - top)
        for j in range(num_tags):
            out[j] += weight[i] * weights_TT[i, j]
    for j in range(num_tags):
        if out[j] > _VANISHED:
            out[j] = top + shift + math.log(out[j])
        else:
            best = -np.inf
            for i in range(num_tags):
                best = max(best, alpha[i] + transitions_TT[i, j])
            total = 0.0
            for i in range(num_tags):
                total += math.exp(alpha[i] + transitions_TT[i, j] - best) if best > -np.inf else 0.0
            out[j] = best + math.log(total) if best > -np.inf else -np.inf


@cached_on_disk
@njit
def _add_pairs(
    alpha: Any,
    ahead: Any,
    transitions_TT: Any,
    weights_TT: Any,
    shift: Any,
    log_z: Any,
    weight: Any,
    scale: Any,
    out: Any,
) -> None:
    """Adds p(label i, then label j) = exp(alpha_i + transitions_ij + ahead_j - log Z), times the scale."""
    num_tags, top = len(alpha), ahead.max()
    if abs(alpha.max() + top + shift - log_z) < 600.0:
        for j in range(num_tags):
            weight[j] = math.exp(ahead[j] - top)
        for i in range(num_tags):
            came = scale * math.exp(alpha[i] + top + shift - log_z)
            for j in range(num_tags):
                out[i, j] += came * weights_TT[i, j] * weight[j]
    else:  # there is no factor to take out
        for i in range(num_tags):
            for j in range(num_tags):
                out[i, j] += scale * math.exp(alpha[i] + transitions_TT[i, j] + ahead[j] - log_z)


__all__ = ["forward_backward", "njit", "viterbi"]
