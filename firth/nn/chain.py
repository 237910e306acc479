"""Linear chains of labels in log space: what softmax, HMM, MEMM and CRF taggers share.

In goes one form of scores: `unary_NT` for each token and label, and transitions, `TT` when all steps share them (HMM,
CRF) or `NTT` with a token's own matrix from the label before it (MEMM); what holds at the start and the end is added
to the first and last unary scores. Out come partition sums, best paths, marginals, expectations and samples.

Sequences lie end to end, as everywhere. They are walked together, longest first, so that step l handles the sequences
that still have an l-th token: as few steps as the longest sequence has tokens, no padding, and a group of equal length
is only the simplest case. Each step is normalised, so 100,000 symbols lose no precision; the gradient of the partition
sum is written out as the marginals it equals (Rabiner 1989; Lafferty et al. 2001). Where numba is installed, chains
that share their transitions run compiled on the CPU (`chain_kernels.py`), those of a GPU too: scores are small, and a
GPU would launch a dozen kernels for every token of the longest sequence.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firth import chance
from firth.nn.walk import Walk

ILLEGAL = -1e5
"""The score of what must not be, in training: far below any real score, and finite, so that no gradient is NaN."""


@dataclass(frozen=True)
class Scores:
    """The score of every path through every sequence: the sum of its unary and transition scores."""

    unary_NT: Tensor
    transitions: Tensor
    """TT: from label (row) to label (column), or NTT: each token's own; those of first tokens are not read."""
    bounds_B1: Tensor

    @cached_property
    def walk(self) -> "_Walk":
        return _Walk(self.bounds_B1, self.unary_NT.device)

    def walked(self) -> tuple[Tensor, Tensor]:
        """Unary scores and transitions in the order of the walk."""
        shared = self.transitions.ndim == 2
        return self.unary_NT[self.walk.rows_N], self.transitions if shared else self.transitions[self.walk.rows_N]


def path_score(scores: Scores, tags_N: Tensor) -> Tensor:
    """The score of one given path through each sequence."""
    unary_N = scores.unary_NT.gather(1, tags_N[:, None])[:, 0]
    before_N, inner_N = tags_N.roll(1), ~scores.walk.first_N
    shared = scores.transitions.ndim == 2
    own = scores.transitions if shared else scores.transitions.flatten(0, 1)
    row_N = before_N if shared else before_N + torch.arange(len(tags_N), device=tags_N.device) * own.shape[1]
    return scores.walk.sums(unary_N + own[row_N, tags_N].where(inner_N, 0))


def log_partition(scores: Scores) -> Tensor:
    """The log of the sum of exp(score) over all paths, for each sequence; differentiable once."""
    if _compiles(scores):
        counted_B: Tensor = _Counted.apply(scores.unary_NT, scores.transitions, scores)  # type: ignore[no-untyped-call]
        return counted_B
    unary_NT, transitions = scores.walked()
    total_B: Tensor = _LogPartition.apply(unary_NT, transitions, scores.walk)  # type: ignore[no-untyped-call]
    return total_B


@torch.no_grad()
def marginals(scores: Scores) -> Tensor:
    """How likely each token has each label."""
    if _compiles(scores):
        return counted(scores)[1].to(scores.unary_NT.dtype)
    unary_NT, transitions = scores.walked()
    alpha_NT, _ = _forward(unary_NT, transitions, scores.walk)
    return (alpha_NT + _backward(unary_NT, transitions, scores.walk)).softmax(1)[scores.walk.place_N]


@torch.no_grad()
def expected_transitions(scores: Scores) -> Tensor:
    """How often each label is expected to follow each label: TT over all sequences, or NTT as the transitions are."""
    if _compiles(scores):
        return counted(scores)[2].to(scores.unary_NT.dtype)
    unary_NT, transitions = scores.walked()
    alpha_NT, _ = _forward(unary_NT, transitions, scores.walk)
    beta_NT = _backward(unary_NT, transitions, scores.walk)
    pairs = _pairs(alpha_NT, unary_NT + beta_NT, transitions, scores.walk, torch.ones_like(unary_NT[:, 0]))
    return pairs if pairs.ndim == 2 else pairs[scores.walk.place_N]


@torch.no_grad()
def counted(scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
    """log Z_B, marginals_NT and expected transitions at once, in double precision: what learning by counts needs."""
    if not _compiles(scores):
        double = Scores(scores.unary_NT.double(), scores.transitions.double(), scores.bounds_B1)
        return log_partition(double), marginals(double), expected_transitions(double)
    return _forward_backward(scores, torch.ones(len(scores.bounds_B1) - 1))


def viterbi(scores: Scores) -> tuple[Tensor, Tensor]:
    """The best path through each sequence, tags_N (-1 where there is none), and its score_B."""
    tags_N = best_path(scores)
    none_B = scores.walk.sums((tags_N < 0).to(scores.unary_NT.dtype)) > 0
    return tags_N, path_score(scores, tags_N.clamp(min=0)).masked_fill(none_B, -torch.inf)


@torch.no_grad()
def best_path(scores: Scores) -> Tensor:
    """Its tags alone, which is quicker."""
    if not _compiles(scores):
        return k_best(scores, 1)[0][0]
    from firth.nn.chain_kernels import viterbi as compiled

    return torch.from_numpy(compiled(*_arrays(scores))).to(scores.unary_NT.device)


@torch.no_grad()
def k_best(scores: Scores, k: int) -> tuple[Tensor, Tensor]:
    """The k best paths, tags_KN, and their scores_BK, best first; where there are fewer, score -inf and tags -1."""
    walk, (unary_NT, transitions) = scores.walk, scores.walked()
    (num_tokens, num_tags), num_alive = unary_NT.shape, walk.sizes[0]
    best_NTK = unary_NT.new_full((num_tokens, num_tags, k), -torch.inf)
    best_NTK[:num_alive, :, 0] = unary_NT[:num_alive]
    came_NTK = torch.zeros(num_tokens, num_tags, k, dtype=torch.long, device=unary_NT.device)
    for before, now in walk.steps():
        arriving = best_NTK[before][:, None] + _at(transitions, now).mT[..., None]  # sequence, to, from, place
        values, came_NTK[now] = _top(arriving.flatten(2), k)
        values += unary_NT[now][..., None]
        best_NTK[now] = values - values.amax((1, 2), keepdim=True)
    ends, state_BK = _top(best_NTK[walk.last_B[:num_alive]].flatten(1), k)
    tags_NK = torch.empty(num_tokens, k, dtype=torch.long, device=unary_NT.device)
    for now in reversed(walk.slices()):
        num = now.stop - now.start
        tags_NK[now] = state_BK[:num] // k
        state_BK[:num] = came_NTK[now].flatten(1).gather(1, state_BK[:num])
    exists_BK = torch.zeros(len(walk.order_B), k, dtype=torch.bool, device=unary_NT.device)
    exists_BK[:, 0] = True  # the empty path through an empty sequence
    exists_BK[walk.order_B[:num_alive]] = ends > -torch.inf
    tags_KN = tags_NK[walk.place_N].T
    score_BK = torch.stack([path_score(scores, tags_N) for tags_N in tags_KN], 1)
    missing_KN = ~exists_BK[walk.sequence_N].T
    return tags_KN.masked_fill(missing_KN, -1), score_BK.masked_fill(~exists_BK, -torch.inf)


@torch.no_grad()
def sample(scores: Scores, key: np.uint64, *, num: int = 1) -> Tensor:
    """`num` paths drawn with their probabilities, tags_SN: forwards filtered, drawn backwards (Gumbel-max)."""
    walk, (unary_NT, transitions) = scores.walk, scores.walked()
    alpha_NT, _ = _forward(unary_NT, transitions, walk)
    uniform = chance.uniform(key, *np.ogrid[:num, : alpha_NT.shape[0], : alpha_NT.shape[1]])
    noise_SNT = -torch.from_numpy(uniform).to(alpha_NT).clamp(1e-30).log().neg().clamp(1e-30).log()
    wish_SNT = alpha_NT + noise_SNT
    tags_SN = torch.empty(wish_SNT.shape[:2], dtype=torch.long, device=alpha_NT.device)
    following: slice | None = None
    for now in reversed(walk.slices()):
        wish = wish_SNT[:, now]
        if following is not None:
            num_on = following.stop - following.start
            leaving = _at(transitions, following).expand(num_on, -1, -1)  # the transitions to the tags already drawn
            chosen = tags_SN[:, following, None, None].expand(-1, -1, leaving.shape[1], 1)
            wish[:, :num_on] += leaving.expand(num, -1, -1, -1).gather(3, chosen)[..., 0]
        tags_SN[:, now], following = wish.argmax(2), now
    return tags_SN[:, walk.place_N]


def _compiles(scores: Scores) -> bool:
    return scores.transitions.ndim == 2 and find_spec("numba") is not None


def _arrays(scores: Scores) -> Iterator[np.ndarray]:
    for tensor in (scores.unary_NT, scores.transitions.to(scores.unary_NT.dtype), scores.bounds_B1.long()):
        yield np.ascontiguousarray(tensor.detach().cpu().numpy())


def _forward_backward(scores: Scores, scale_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log Z_B, marginals_NT and expected transitions, those of each sequence times its scale."""
    from firth.nn.chain_kernels import forward_backward

    unary_NT, transitions_TT, bounds_B1 = _arrays(scores)
    found = forward_backward(unary_NT, transitions_TT, bounds_B1, scale_B.detach().double().cpu().numpy())
    log_z_B, marginals_NT, pairs_TT = (torch.from_numpy(array).to(scores.unary_NT.device) for array in found)
    return log_z_B, marginals_NT, pairs_TT


class _Walk(Walk):
    """The walk, with what chains ask of it."""

    def split(self, transitions: Tensor) -> Iterable[Tensor]:
        """The transitions into each step's tokens."""
        return repeat(transitions[None]) if transitions.ndim == 2 else transitions.split_with_sizes(self.sizes)[1:]

    def sums(self, values_N: Tensor) -> Tensor:
        """Sums over each sequence (values in token order), in float64: a long sum of single floats would drift."""
        sums_B: Tensor = torch.segment_reduce(values_N.double(), "sum", lengths=self.lengths_B, unsafe=True)
        return sums_B.to(values_N.dtype)


class _Counted(torch.autograd.Function):
    """The log partition by the compiled recursions."""

    @staticmethod
    def forward(ctx: Any, unary_NT: Tensor, transitions: Tensor, scores: Scores) -> Tensor:
        ctx.scores, (log_z_B, ctx.marginals_NT, _) = scores, counted(scores)
        return log_z_B.to(unary_NT.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_B: Tensor) -> tuple[Tensor, Tensor | None, None]:
        scores = ctx.scores
        unary_grad_NT = (ctx.marginals_NT * grad_B[scores.walk.sequence_N, None]).to(scores.unary_NT.dtype)
        if not ctx.needs_input_grad[1]:
            return unary_grad_NT, None, None
        return unary_grad_NT, _forward_backward(scores, grad_B)[2].to(scores.transitions.dtype), None


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, unary_NT: Tensor, transitions: Tensor, walk: _Walk) -> Tensor:
        alpha_NT, norm_N = _forward(unary_NT, transitions, walk)
        ctx.save_for_backward(unary_NT, transitions, alpha_NT)
        ctx.walk = walk
        return walk.sums(norm_N[walk.place_N])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_B: Tensor) -> tuple[Tensor, Tensor | None, None]:
        unary_NT, transitions, alpha_NT = ctx.saved_tensors
        beta_NT = _backward(unary_NT, transitions, ctx.walk)
        weight_N = grad_B[ctx.walk.sequence_N[ctx.walk.rows_N]]
        unary_grad_NT = (alpha_NT + beta_NT).softmax(1) * weight_N[:, None]
        if not ctx.needs_input_grad[1]:
            return unary_grad_NT, None, None
        return unary_grad_NT, _pairs(alpha_NT, unary_NT + beta_NT, transitions, ctx.walk, weight_N), None


def _forward(unary_NT: Tensor, transitions: Tensor, walk: _Walk) -> tuple[Tensor, Tensor]:
    """alpha: the log of the sum over all paths up to each label, less that step's maximum; norm: those maxima, and at
    the end the rest of the log partition, so that a sequence's norms sum to it."""
    first, *rest = unary_NT.split_with_sizes(walk.sizes)
    alphas, maxima, arriving = [first], [torch.zeros_like(first[:, :1])], walk.split(transitions.mT)
    for unary, arrive in zip(rest, arriving, strict=False):
        alpha = torch.logsumexp(alphas[-1][: len(unary), None] + arrive, 2).add_(unary)
        maxima.append(alpha.amax(1, keepdim=True))
        alphas.append(alpha.sub_(maxima[-1]))
    alpha_NT, norm_N = torch.cat(alphas), torch.cat(maxima)[:, 0]
    ends = walk.last_B[: walk.sizes[0]]
    norm_N[ends] += alpha_NT[ends].logsumexp(1)
    return alpha_NT, norm_N


def _backward(unary_NT: Tensor, transitions: Tensor, walk: _Walk) -> Tensor:
    """beta: the log of the sum over all paths on from each label, less that step's maximum."""
    unaries, leaving = unary_NT.split_with_sizes(walk.sizes), walk.split(transitions)
    beta_NT = torch.zeros_like(unary_NT)
    betas = beta_NT.split_with_sizes(walk.sizes)
    for before, unary, beta, leave in reversed([*zip(betas, unaries[1:], betas[1:], leaving, strict=False)]):
        beta = torch.logsumexp((unary + beta)[:, None] + leave, 2)
        torch.sub(beta, beta.amax(1, keepdim=True), out=before[: len(unary)])
    return beta_NT


def _pairs(alpha_NT: Tensor, ahead_NT: Tensor, transitions: Tensor, walk: _Walk, weight_N: Tensor) -> Tensor:
    """Expected transitions, weighted by sequence and summed to the shape of `transitions`."""
    before = np.concatenate([np.arange(b.start, b.stop) for b, _ in walk.steps()] or [np.arange(0)])
    before_N = torch.from_numpy(before).to(alpha_NT.device)
    counts = torch.zeros_like(transitions)
    many = max(1, (1 << 22) // alpha_NT.shape[1] ** 2)  # bounds the memory where transitions are shared
    for start in range(0, len(before), many):
        came = alpha_NT[before_N[start : start + many]]
        chosen = slice(walk.sizes[0] + start, walk.sizes[0] + start + len(came))
        logits = came[:, :, None] + _at(transitions, chosen) + ahead_NT[chosen][:, None]
        pairs = (logits.flatten(1).softmax(1) * weight_N[chosen, None]).view_as(logits)
        if transitions.ndim == 2:
            counts += pairs.sum(0)
        else:
            counts[chosen] = pairs
    return counts


def _at(transitions: Tensor, now: slice) -> Tensor:
    return transitions[None] if transitions.ndim == 2 else transitions[now]


def _top(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    if k == 1:  # several times quicker than topk
        best, at = values.max(-1, keepdim=True)
        return best, at
    best, at = values.topk(k, dim=-1)
    return best, at
