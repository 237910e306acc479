"""Log-linear taggers over many sparse features: the loss of softmax, MEMM and CRF and its exact gradient (numba).

In: tokens as lists of rows (features), their gold tags, one long vector of all weights. Out: the negative log
likelihood and its gradient. A token's scores are the sum of its rows' weights; the rest is `chain_kernels.py`.

Either every (row, tag) pair has a weight, or only those that occur in training, as in CRFsuite's default: all others
are zero then. Over 40 tags that is one pair in twenty. The loss and the gradient of a float32 vector are summed in
float64.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from firth.compiling import cached_on_disk
from firth.nn.chain_kernels import forward_backward, njit
from firth.ragged import bounds_of

CHUNK = 1 << 13
"""Tokens looked at together: what bounds the memory."""
SHARES = 2
"""Parts of the tokens that are summed by themselves, so that the sum does not depend on the number of threads."""
DOUBT = 0.02
"""p (1 - p) of a tag on the way to the optimum, about."""


@dataclass(frozen=True)
class Pairs:
    """The (row, tag) pairs that have a weight, in compressed sparse rows."""

    row_bounds_R1: np.ndarray
    """Where each row's pairs begin."""
    tags_P: np.ndarray
    """The tag of each pair."""

    @classmethod
    def seen(
        cls,
        parts_M: np.ndarray,
        part_bounds_N1: np.ndarray,
        tags_N: np.ndarray,
        *,
        num_rows: int,
        num_tags: int,
    ) -> "Pairs":
        """The pairs that occur."""
        seen_RT = np.zeros((num_rows, num_tags), bool)
        mark(parts_M, part_bounds_N1, tags_N, seen_RT)
        counts_R = np.count_nonzero(seen_RT, axis=1)
        tags_P = np.flatnonzero(seen_RT) % num_tags
        return cls(bounds_of(counts_R), tags_P.astype(np.uint16))

    @classmethod
    def all(cls, *, num_rows: int, num_tags: int) -> "Pairs":
        """Every row with every tag."""
        tags_P = np.tile(np.arange(num_tags, dtype=np.uint16), num_rows)
        return cls(np.arange(num_rows + 1) * num_tags, tags_P)

    def fill(self, weights_P: np.ndarray, table_RT: np.ndarray) -> None:
        """Writes the weights into a table of all rows and tags; pairs without a weight become 0."""
        table_RT[:] = 0
        rows_R = np.arange(len(table_RT), dtype=np.int32)
        rows_P = np.repeat(rows_R, np.diff(self.row_bounds_R1))
        table_RT[rows_P, self.tags_P] = weights_P


@dataclass(frozen=True)
class FeatureWeights:
    """Views of one vector."""

    pairs_P: np.ndarray
    start_T: np.ndarray
    transitions_TT: np.ndarray
    end_T: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, *, num_tags: int) -> "FeatureWeights":
        # The last weights are those of tags: start (T), transitions (T x T), end (T).
        num_of_tags = num_tags * (num_tags + 2)
        num_pairs = len(x) - num_of_tags
        borders = [num_tags, num_of_tags - num_tags]
        start_T, transitions, end_T = np.split(x[num_pairs:], borders)
        transitions_TT = transitions.reshape(num_tags, num_tags)
        return cls(x[:num_pairs], start_T, transitions_TT, end_T)


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
    all_pairs: bool = False
    """Whether pairs of row and tag that never occur in training have a weight, too."""
    threads: int = 1

    @property
    def num_tags(self) -> int:
        return len(self.legal[0])

    @property
    def num_weights(self) -> int:
        return len(self.pairs.tags_P) + self.num_tags * (self.num_tags + 2)

    @cached_property
    def pairs(self) -> Pairs:
        if self.all_pairs:
            return Pairs.all(num_rows=self.num_rows, num_tags=self.num_tags)
        return Pairs.seen(
            self.parts_M, self.part_bounds_N1, self.tags_N, num_rows=self.num_rows, num_tags=self.num_tags
        )

    @property
    def scale(self) -> np.ndarray:
        """About the inverse curvature of each weight: it is the tokens that have the row, each times p (1 - p)."""
        counts_R = np.zeros(self.num_rows, np.int64)
        tally(self.parts_M, counts_R)
        scale_R = 1 / (DOUBT * counts_R + 2 * self.l2 + 1e-3)
        # Every token takes part in the weights of tags that start, follow one another and end.
        scale_of_all = 1 / (DOUBT * len(self.tags_N) + 2 * self.l2 + 1e-3)
        scale = np.full(self.num_weights, scale_of_all, np.float32)
        views = FeatureWeights.of(scale, num_tags=self.num_tags)
        pairs_of_row_R = np.diff(self.pairs.row_bounds_R1)
        views.pairs_P[:] = np.repeat(scale_R, pairs_of_row_R)
        return scale

    @cached_property
    def _chunks(self) -> list[tuple[int, int]]:
        """Runs of whole sequences."""
        num_sequences = len(self.bounds_B1) - 1
        num_tokens = self.bounds_B1[-1]
        wanted_ends = np.arange(CHUNK, num_tokens + CHUNK, CHUNK)
        # The first sequence that begins at or behind each wanted end.
        ends = np.searchsorted(self.bounds_B1, wanted_ends)
        ends = np.minimum(ends, num_sequences).tolist()
        places = sorted({0, *ends, num_sequences})
        return list(pairwise(places))

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        weights = FeatureWeights.of(x, num_tags=self.num_tags)
        shares = [self._chunks[first::SHARES] for first in range(SHARES)]
        with ThreadPoolExecutor(self.threads) as pool:
            found = list(pool.map(lambda chunks: self._share(chunks, weights), shares))
        penalty = self.l2 * float(x @ x)
        loss = sum(share_loss for share_loss, _ in found)
        gradient = 2 * self.l2 * x
        for _, share_gradient in found:
            gradient += share_gradient
        return penalty + loss, gradient

    def _share(self, chunks: Sequence[tuple[int, int]], weights: FeatureWeights) -> tuple[float, np.ndarray]:
        """The loss of some chunks and its gradient."""
        gradient = np.zeros(self.num_weights)
        gradients = FeatureWeights.of(gradient, num_tags=self.num_tags)
        loss = 0.0
        own_loss = self._crf if self.kind == "crf" else self._local
        for first, last in chunks:
            bounds = self.bounds_B1[first : last + 1]
            first_token = bounds[0]
            end_token = bounds[-1]
            tags_N = self.tags_N[first_token:end_token]
            part_bounds = self.part_bounds_N1[first_token : end_token + 1]
            # From here on the gradient of the scores is in their place.
            unary_NT = self.unary(weights, self.parts_M, part_bounds)
            loss += own_loss(unary_NT, tags_N, bounds=bounds - first_token, weights=weights, gradients=gradients)
            if self.all_pairs:
                table_RT = gradients.pairs_P.reshape(-1, self.num_tags)
                scatter_all(unary_NT, self.parts_M, part_bounds, table_RT)
            else:
                pairs = self.pairs
                scatter(unary_NT, pairs.row_bounds_R1, pairs.tags_P, self.parts_M, part_bounds, gradients.pairs_P)
        return loss, gradient

    def unary(self, weights: FeatureWeights, parts_M: np.ndarray, part_bounds_N1: np.ndarray) -> np.ndarray:
        """The scores of some tokens: the sums of their rows' weights."""
        num_tokens = len(part_bounds_N1) - 1
        unary_NT = np.zeros((num_tokens, self.num_tags), weights.pairs_P.dtype)
        if self.all_pairs:
            table_RT = weights.pairs_P.reshape(-1, self.num_tags)
            gather_all(table_RT, parts_M, part_bounds_N1, unary_NT)
        else:
            pairs = self.pairs
            gather(weights.pairs_P, pairs.row_bounds_R1, pairs.tags_P, parts_M, part_bounds_N1, unary_NT)
        return unary_NT

    def _crf(
        self,
        unary_NT: np.ndarray,
        tags_N: np.ndarray,
        *,
        bounds: np.ndarray,
        weights: FeatureWeights,
        gradients: FeatureWeights,
    ) -> float:
        """The chunk's loss; leaves the gradient of its scores in `unary_NT`."""
        may_start, may_follow, may_end = self.legal
        first, last, inner = _places(bounds)
        token_N = np.arange(len(tags_N))
        gold_pairs = (tags_N[inner - 1], tags_N[inner])
        unary_NT[first] += np.where(may_start, weights.start_T, -np.inf)
        unary_NT[last] += np.where(may_end, weights.end_T, -np.inf)
        transitions = np.where(may_follow, weights.transitions_TT, -np.inf)
        gold = unary_NT[token_N, tags_N].sum(dtype=np.float64)
        gold += transitions[gold_pairs].sum(dtype=np.float64)
        scale_B = np.ones(len(bounds) - 1)
        log_z_B, unary_NT[:], pairs_TT = forward_backward(unary_NT, transitions, bounds, scale_B)
        # The gradient of the scores: the marginals, less 1 for the gold tag.
        unary_NT[token_N, tags_N] -= 1
        gradients.start_T[:] += unary_NT[first].sum(0)
        gradients.end_T[:] += unary_NT[last].sum(0)
        gradients.transitions_TT[:] += pairs_TT
        np.subtract.at(gradients.transitions_TT, gold_pairs, 1)
        return float(log_z_B.sum() - gold)

    def _local(
        self,
        unary_NT: np.ndarray,
        tags_N: np.ndarray,
        *,
        bounds: np.ndarray,
        weights: FeatureWeights,
        gradients: FeatureWeights,
    ) -> float:
        """Each token by itself, given the gold tag before it (MEMM) or not (softmax)."""
        first, _, inner = _places(bounds)
        token_N = np.arange(len(tags_N))
        before = tags_N[inner - 1]
        if self.kind == "memm":
            may_start, may_follow, _ = self.legal
            unary_NT[first] += np.where(may_start, weights.start_T, -np.inf)
            transitions_TT = np.where(may_follow, weights.transitions_TT, -np.inf)
            unary_NT[inner] += transitions_TT[before]
        unary_NT -= unary_NT.max(1, keepdims=True)
        log_z_N = np.log(np.exp(unary_NT).sum(1))
        losses_N = log_z_N - unary_NT[token_N, tags_N]
        # The gradient of the scores: the probabilities, less 1 for the gold tag.
        np.exp(unary_NT - log_z_N[:, None], out=unary_NT)
        unary_NT[token_N, tags_N] -= 1
        if self.kind == "memm":
            gradients.start_T[:] += unary_NT[first].sum(0)
            add_rows(unary_NT, inner, before, gradients.transitions_TT)
        return float(losses_N.sum(dtype=np.float64))


def _places(bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First and last tokens of the sequences that are not empty, and all that are not first."""
    is_real_B = np.diff(bounds) > 0
    first = bounds[:-1][is_real_B]
    last = bounds[1:][is_real_B] - 1
    is_inner_N = np.ones(bounds[-1], bool)
    is_inner_N[first] = False
    return first, last, np.flatnonzero(is_inner_N)


@cached_on_disk
@njit(nogil=True)
def mark(parts_M: np.ndarray, part_bounds_N1: np.ndarray, tags_N: np.ndarray, seen_RT: np.ndarray) -> None:
    """Marks every pair of a token's row and its tag."""
    for n in range(len(tags_N)):
        for m in range(part_bounds_N1[n], part_bounds_N1[n + 1]):
            seen_RT[parts_M[m], tags_N[n]] = True


@cached_on_disk
@njit(nogil=True)
def tally(parts_M: np.ndarray, counts_R: np.ndarray) -> None:
    """How often each row occurs."""
    for m in range(len(parts_M)):
        counts_R[parts_M[m]] += 1


@cached_on_disk
@njit(nogil=True)
def add_rows(grad_NT: np.ndarray, rows: np.ndarray, owners: np.ndarray, out_TT: np.ndarray) -> None:
    """Adds each of these rows to the one that owns it; much faster than `np.add.at` where the types differ."""
    for i in range(len(rows)):
        for t in range(grad_NT.shape[1]):
            out_TT[owners[i], t] += grad_NT[rows[i], t]


@cached_on_disk
@njit(nogil=True)
def gather(
    weights_P: np.ndarray,
    row_bounds_R1: np.ndarray,
    tags_P: np.ndarray,
    parts_M: np.ndarray,
    part_bounds_N1: np.ndarray,
    out_NT: np.ndarray,
) -> None:
    """Adds the weights of each token's rows to its scores."""
    for n in range(len(part_bounds_N1) - 1):
        for m in range(part_bounds_N1[n], part_bounds_N1[n + 1]):
            row = parts_M[m]
            for p in range(row_bounds_R1[row], row_bounds_R1[row + 1]):
                out_NT[n, tags_P[p]] += weights_P[p]


@cached_on_disk
@njit(nogil=True)
def scatter(
    grad_NT: np.ndarray,
    row_bounds_R1: np.ndarray,
    tags_P: np.ndarray,
    parts_M: np.ndarray,
    part_bounds_N1: np.ndarray,
    out_P: np.ndarray,
) -> None:
    """Adds the gradient of each token's scores to the weights of all its rows."""
    for n in range(len(part_bounds_N1) - 1):
        for m in range(part_bounds_N1[n], part_bounds_N1[n + 1]):
            row = parts_M[m]
            for p in range(row_bounds_R1[row], row_bounds_R1[row + 1]):
                out_P[p] += grad_NT[n, tags_P[p]]


@cached_on_disk
@njit(nogil=True)
def gather_all(table_RT: np.ndarray, parts_M: np.ndarray, part_bounds_N1: np.ndarray, out_NT: np.ndarray) -> None:
    """As `gather` where every pair has a weight."""
    for n in range(len(part_bounds_N1) - 1):
        for m in range(part_bounds_N1[n], part_bounds_N1[n + 1]):
            for t in range(table_RT.shape[1]):
                out_NT[n, t] += table_RT[parts_M[m], t]


@cached_on_disk
@njit(nogil=True)
def scatter_all(grad_NT: np.ndarray, parts_M: np.ndarray, part_bounds_N1: np.ndarray, out_RT: np.ndarray) -> None:
    """As `scatter` where every pair has a weight."""
    for n in range(len(part_bounds_N1) - 1):
        for m in range(part_bounds_N1[n], part_bounds_N1[n + 1]):
            for t in range(grad_NT.shape[1]):
                out_RT[parts_M[m], t] += grad_NT[n, t]
