"""Log-linear taggers over many sparse features: the loss of softmax, MEMM and CRF and its exact gradient (numba).

In: tokens as lists of rows of a table (rows x tags), their gold tags, one long vector of all weights. Out: the negative
log likelihood and its gradient. A token's scores are the sum of its rows; the rest is `chain_kernels.py`.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from firth.compiling import kept_on_disk
from firth.nn.chain_kernels import forward_backward, njit

CHUNK = 1 << 16
"""Tokens looked at together: what bounds the memory."""
DOUBT = 0.02
"""p (1 - p) of a tag on the way to the optimum, about."""


@dataclass(frozen=True)
class Weights:
    """Views of one vector."""

    table_RT: np.ndarray
    start_T: np.ndarray
    transitions_TT: np.ndarray
    end_T: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, *, num_tags: int) -> "Weights":
        rest = num_tags * (num_tags + 2)
        start, transitions, end = np.split(x[len(x) - rest :], [num_tags, rest - num_tags])
        table = x[: len(x) - rest].reshape(-1, num_tags)
        return cls(table, start, transitions.reshape(num_tags, num_tags), end)


@dataclass(frozen=True)
class LogLinear:
    """A function of all weights for `train.lbfgs`: value and gradient."""

    parts_M: np.ndarray
    part_bounds_N1: np.ndarray
    tags_N: np.ndarray
    bounds_B1: np.ndarray
    num_rows: int
    kind: Literal["softmax", "memm", "crf"]
    legal: tuple[np.ndarray, np.ndarray, np.ndarray]
    """Which tags may start, follow one another and end."""
    l2: float = 0.0
    """Times the sum of squares."""

    @property
    def num_tags(self) -> int:
        return len(self.legal[0])

    @property
    def num_weights(self) -> int:
        return self.num_tags * (self.num_rows + self.num_tags + 2)

    @property
    def scale(self) -> np.ndarray:
        """About the inverse curvature of each weight: it is the tokens that have the row, each times p (1 - p)."""
        counts_R = np.bincount(self.parts_M, minlength=self.num_rows)
        scale = np.full(self.num_weights, 1 / (DOUBT * len(self.tags_N) + 2 * self.l2 + 1e-3))
        table_RT = Weights.of(scale, num_tags=self.num_tags).table_RT
        table_RT[:] = (1 / (DOUBT * counts_R + 2 * self.l2 + 1e-3))[:, None]
        return scale

    @cached_property
    def _chunks(self) -> list[tuple[int, int]]:
        """Runs of whole sequences."""
        marks = np.searchsorted(self.bounds_B1, np.arange(CHUNK, self.bounds_B1[-1] + CHUNK, CHUNK)).tolist()
        places = sorted({0, *(min(mark, len(self.bounds_B1) - 1) for mark in marks), len(self.bounds_B1) - 1})
        return list(pairwise(places))

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        weights, gradient = Weights.of(x, num_tags=self.num_tags), 2 * self.l2 * x
        slopes = Weights.of(gradient, num_tags=self.num_tags)
        value = self.l2 * float(x @ x)
        for first, last in self._chunks:
            bounds = self.bounds_B1[first : last + 1]
            tokens = slice(bounds[0], bounds[-1])
            part_bounds = self.part_bounds_N1[bounds[0] : bounds[-1] + 1]
            unary_NT = gather(weights.table_RT, self.parts_M, part_bounds)
            own = self._crf if self.kind == "crf" else self._local
            value += own(unary_NT, self.tags_N[tokens], bounds=bounds - bounds[0], weights=weights, slopes=slopes)
            scatter(unary_NT, self.parts_M, part_bounds, slopes.table_RT)
        return value, gradient

    def _crf(self, unary_NT: Any, tags_N: Any, *, bounds: Any, weights: Weights, slopes: Weights) -> float:
        """The chunk's loss; leaves its slope in `unary_NT`."""
        may_start, may_follow, may_end = self.legal
        first, last, inner = _places(bounds)
        unary_NT[first] += np.where(may_start, weights.start_T, -np.inf)
        unary_NT[last] += np.where(may_end, weights.end_T, -np.inf)
        transitions = np.where(may_follow, weights.transitions_TT, -np.inf)
        gold = unary_NT[np.arange(len(tags_N)), tags_N].sum() + transitions[tags_N[inner - 1], tags_N[inner]].sum()
        log_z_B, unary_NT[:], pairs_TT = forward_backward(unary_NT, transitions, bounds, np.ones(len(bounds) - 1))
        unary_NT[np.arange(len(tags_N)), tags_N] -= 1
        slopes.start_T[:] += unary_NT[first].sum(0)
        slopes.end_T[:] += unary_NT[last].sum(0)
        slopes.transitions_TT[:] += pairs_TT
        np.subtract.at(slopes.transitions_TT, (tags_N[inner - 1], tags_N[inner]), 1)
        return float(log_z_B.sum() - gold)

    def _local(self, unary_NT: Any, tags_N: Any, *, bounds: Any, weights: Weights, slopes: Weights) -> float:
        """Each token by itself, given the gold tag before it (MEMM) or not (softmax)."""
        first, _, inner = _places(bounds)
        before = tags_N[inner - 1]
        if self.kind == "memm":
            may_start, may_follow, _ = self.legal
            unary_NT[first] += np.where(may_start, weights.start_T, -np.inf)
            unary_NT[inner] += np.where(may_follow, weights.transitions_TT, -np.inf)[before]
        unary_NT -= unary_NT.max(1, keepdims=True)
        log_z_N = np.log(np.exp(unary_NT).sum(1))
        value = float((log_z_N - unary_NT[np.arange(len(tags_N)), tags_N]).sum())
        np.exp(unary_NT - log_z_N[:, None], out=unary_NT)
        unary_NT[np.arange(len(tags_N)), tags_N] -= 1
        if self.kind == "memm":
            slopes.start_T[:] += unary_NT[first].sum(0)
            np.add.at(slopes.transitions_TT, before, unary_NT[inner])
        return value


def _places(bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First and last tokens of the sequences that are not empty, and all that are not first."""
    real = np.diff(bounds) > 0
    inner = np.ones(bounds[-1], bool)
    inner[bounds[:-1][real]] = False
    return bounds[:-1][real], bounds[1:][real] - 1, np.flatnonzero(inner)


@kept_on_disk
@njit
def gather(table_RT: Any, parts_M: Any, part_bounds_N1: Any) -> Any:
    """The sum of each token's rows."""
    num_tokens, num_tags = len(part_bounds_N1) - 1, table_RT.shape[1]
    out_NT = np.zeros((num_tokens, num_tags), table_RT.dtype)
    for n in range(num_tokens):
        for m in range(part_bounds_N1[n], part_bounds_N1[n + 1]):
            for t in range(num_tags):
                out_NT[n, t] += table_RT[parts_M[m], t]
    return out_NT


@kept_on_disk
@njit
def scatter(slope_NT: Any, parts_M: Any, part_bounds_N1: Any, out_RT: Any) -> None:
    """Adds each token's slope to all its rows."""
    for n in range(len(part_bounds_N1) - 1):
        for m in range(part_bounds_N1[n], part_bounds_N1[n + 1]):
            for t in range(slope_NT.shape[1]):
                out_RT[parts_M[m], t] += slope_NT[n, t]
