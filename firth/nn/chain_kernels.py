"""The recursions of `chain.py` compiled for the CPU (numba): sequences one by one, transitions shared by all steps.

In: scores as numpy arrays, in log space. Out: best paths; partition sums, marginals and expected transitions. A step
works with exp(score - maximum) as weights, so it needs one exp and one log a label; where all weights of a sum vanish,
the sum is taken anew from its own maximum. So nothing underflows, whatever the length or the size of the scores.
"""

import math

import numpy as np

from firth.compiling import cached_on_disk
from firth.errors import absent

try:
    from numba import njit
except ImportError:
    raise absent("numba", extra="vectors", user="This") from None

_VANISHED = 1e-250
"""A sum of weights below this may have lost terms to underflow."""
_SAFE_EXPONENT = 600.0
"""exp() of larger numbers comes near the end of float64's range."""


@cached_on_disk
@njit
def viterbi(unary_NT: np.ndarray, transitions_TT: np.ndarray, bounds_B1: np.ndarray) -> np.ndarray:
    """The best path through each sequence; -1 where a sequence has none."""
    num_tokens, num_tags = unary_NT.shape
    tags_N = np.empty(num_tokens, np.int64)
    # The tag before each tag on the best way to it.
    came_NT = np.empty((num_tokens, num_tags), np.int16)
    best_T = np.empty(num_tags)
    arrived_T = np.empty(num_tags)
    for b in range(len(bounds_B1) - 1):
        start = bounds_B1[b]
        end = bounds_B1[b + 1]
        if start == end:
            continue
        best_T[:] = unary_NT[start]
        for n in range(start + 1, end):
            for j in range(num_tags):
                arrived_T[j] = best_T[0] + transitions_TT[0, j]
                came_NT[n, j] = 0
            for i in range(1, num_tags):
                for j in range(num_tags):
                    score = best_T[i] + transitions_TT[i, j]
                    if score > arrived_T[j]:
                        arrived_T[j] = score
                        came_NT[n, j] = i
            # The best way has the score 0 before the token is added, so that scores do not grow with the length.
            top = arrived_T.max()
            lowered_by = top if top > -np.inf else 0.0
            for j in range(num_tags):
                best_T[j] = arrived_T[j] + unary_NT[n, j] - lowered_by
        at = np.argmax(best_T)
        is_legal = best_T[at] > -np.inf
        for n in range(end - 1, start - 1, -1):
            tags_N[n] = at if is_legal else -1
            if n > start:
                at = came_NT[n, at]
    return tags_N


@cached_on_disk
@njit(nogil=True)
def forward_backward(
    unary_NT: np.ndarray, transitions_TT: np.ndarray, bounds_B1: np.ndarray, scale_B: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The log partition of each sequence, the marginals of each token, and the expected transitions of all together,
    each sequence's times its scale."""
    num_tokens, num_tags = unary_NT.shape
    log_z_B = np.zeros(len(bounds_B1) - 1)
    marginals_NT = np.empty((num_tokens, num_tags))
    pairs_TT = np.zeros((num_tags, num_tags))
    # The largest transition: weights are at most 1.
    shift = -np.inf
    for i in range(num_tags):
        shift = max(shift, transitions_TT[i].max())
    shift = shift if shift > -np.inf else 0.0
    weights_TT = np.exp(transitions_TT.astype(np.float64) - shift)
    backward_TT = weights_TT.T.copy()
    transposed_TT = transitions_TT.T.copy()
    beta_T = np.empty(num_tags)
    ahead_T = np.empty(num_tags)
    space_T = np.empty(num_tags)
    for b in range(len(bounds_B1) - 1):
        start = bounds_B1[b]
        end = bounds_B1[b + 1]
        if start == end:
            continue
        # Forward: alpha, in the place of the marginals, which overwrite it on the way back.
        alpha_LT = marginals_NT[start:end]
        alpha_LT[0] = unary_NT[start]
        for n in range(start + 1, end):
            _arrive(alpha_LT[n - 1 - start], transitions_TT, weights_TT, shift, space_T, alpha_LT[n - start])
            for j in range(num_tags):
                alpha_LT[n - start, j] += unary_NT[n, j]
        last_T = alpha_LT[end - 1 - start]
        top = last_T.max()
        log_z = -np.inf
        if top > -np.inf:
            log_z = top + math.log(np.exp(last_T - top).sum())
        log_z_B[b] = log_z
        # Backward.
        beta_T[:] = 0.0
        for n in range(end - 1, start - 1, -1):
            for j in range(num_tags):
                ahead_T[j] = unary_NT[n, j] + beta_T[j]
                alpha_LT[n - start, j] = math.exp(alpha_LT[n - start, j] + beta_T[j] - log_z)
            if n > start:
                came_T = alpha_LT[n - 1 - start]
                _add_pairs(came_T, ahead_T, transitions_TT, weights_TT, shift, log_z, space_T, scale_B[b], pairs_TT)
                _arrive(ahead_T, transposed_TT, backward_TT, shift, space_T, beta_T)
    return log_z_B, marginals_NT, pairs_TT


@cached_on_disk
@njit
def _arrive(
    alpha_T: np.ndarray,
    transitions_TT: np.ndarray,
    weights_TT: np.ndarray,
    shift: float,
    space_T: np.ndarray,
    out_T: np.ndarray,
) -> None:
    """log sum_i exp(alpha_i + transitions_ij) for every j; `weights_TT` are exp(transitions - shift)."""
    num_tags = len(alpha_T)
    top = alpha_T.max()
    if top == -np.inf:
        out_T[:] = -np.inf
        return
    out_T[:] = 0.0
    for i in range(num_tags):
        space_T[i] = math.exp(alpha_T[i] - top)
        for j in range(num_tags):
            out_T[j] += space_T[i] * weights_TT[i, j]
    for j in range(num_tags):
        if out_T[j] > _VANISHED:
            out_T[j] = top + shift + math.log(out_T[j])
        else:
            out_T[j] = _log_sum_to(j, alpha_T, transitions_TT)


@cached_on_disk
@njit
def _log_sum_to(j: int, alpha_T: np.ndarray, transitions_TT: np.ndarray) -> float:
    """log sum_i exp(alpha_i + transitions_ij), from the maximum of these terms."""
    num_tags = len(alpha_T)
    best = -np.inf
    for i in range(num_tags):
        best = max(best, alpha_T[i] + transitions_TT[i, j])
    if best > -np.inf:
        total = 0.0
        for i in range(num_tags):
            total += math.exp(alpha_T[i] + transitions_TT[i, j] - best)
        return best + math.log(total)
    return -np.inf


@cached_on_disk
@njit
def _add_pairs(
    alpha_T: np.ndarray,
    ahead_T: np.ndarray,
    transitions_TT: np.ndarray,
    weights_TT: np.ndarray,
    shift: float,
    log_z: float,
    space_T: np.ndarray,
    scale: float,
    out_TT: np.ndarray,
) -> None:
    """Adds p(label i, then label j) = exp(alpha_i + transitions_ij + ahead_j - log Z), times the scale."""
    num_tags = len(alpha_T)
    top = ahead_T.max()
    if abs(alpha_T.max() + top + shift - log_z) < _SAFE_EXPONENT:
        for j in range(num_tags):
            space_T[j] = math.exp(ahead_T[j] - top)
        for i in range(num_tags):
            came = scale * math.exp(alpha_T[i] + top + shift - log_z)
            for j in range(num_tags):
                out_TT[i, j] += came * weights_TT[i, j] * space_T[j]
    else:  # there is no factor to take out
        for i in range(num_tags):
            for j in range(num_tags):
                out_TT[i, j] += scale * math.exp(alpha_T[i] + transitions_TT[i, j] + ahead_T[j] - log_z)


__all__ = ["forward_backward", "njit", "viterbi"]
