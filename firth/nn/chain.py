"""Linear chains of labels in log space: what softmax, HMM, MEMM and CRF taggers share.

In: `unary_NT`, a score for each token and label, and transition scores, `TT` when all steps share them (HMM, CRF) or
`NTT` with a matrix for each token from the label before it (MEMM). Scores of starts and ends are added to the first and
last unary scores. Out: partition sums, best paths, marginals, expectations and samples.

Sequences lie end to end, as everywhere. They are walked together (`chain_recursions.py`), longest first: step l handles
the sequences that still have an l-th token: there are as many steps as the longest sequence has tokens, and no padding.
Each step is normalised, so 100,000 symbols lose no precision. The gradient of the partition sum is written out as the
marginals it equals (Rabiner 1989; Lafferty et al. 2001). Where numba is installed, chains that share their transitions
run compiled on the CPU (`chain_kernels.py`), also those of a GPU: scores are small, and a GPU would launch a dozen
kernels for every token of the longest sequence.
"""

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from firth import rng
from firth.nn.chain_recursions import ChainWalk, backward_sums, expected_pairs, forward_sums, transitions_at

ILLEGAL = -1e5
"""The score of what is forbidden, in training: far below real scores, but finite, so that no gradient is NaN."""


@dataclass(frozen=True)
class Scores:
    """The score of every path through every sequence: the sum of its unary and transition scores."""

    unary_NT: Tensor
    transitions: Tensor
    """TT: from label (row) to label (column), or NTT: one matrix for each token; those of first tokens are not read."""
    bounds_B1: Tensor

    @property
    def is_shared(self) -> bool:
        """Whether all steps share their transitions."""
        return self.transitions.ndim == 2

    @cached_property
    def walk(self) -> ChainWalk:
        return ChainWalk(self.bounds_B1, self.unary_NT.device)

    def walked(self) -> tuple[Tensor, Tensor]:
        """Unary scores and transitions in the order of the walk."""
        unary_NT = self.unary_NT[self.walk.rows_N]
        if self.is_shared:
            return unary_NT, self.transitions
        return unary_NT, self.transitions[self.walk.rows_N]


def path_score(scores: Scores, tags_N: Tensor) -> Tensor:
    """The score of one given path through each sequence."""
    unary_N = scores.unary_NT.gather(1, tags_N[:, None])[:, 0]
    before_N = tags_N.roll(1)
    is_inner_N = ~scores.walk.first_N
    if scores.is_shared:
        transition_N = scores.transitions[before_N, tags_N]
    else:
        # The rows of all matrices, one matrix after another.
        rows = scores.transitions.flatten(0, 1)
        num_tags = rows.shape[1]
        token_N = torch.arange(len(tags_N), device=tags_N.device)
        transition_N = rows[before_N + token_N * num_tags, tags_N]
    return scores.walk.sums(unary_N + transition_N.where(is_inner_N, 0))


def log_partition(scores: Scores) -> Tensor:
    """The log of the sum of exp(score) over all paths, for each sequence; differentiable once."""
    if _compiles(scores):
        compiled_B: Tensor = _CompiledLogPartition.apply(  # type: ignore[no-untyped-call]
            scores.unary_NT, scores.transitions, scores
        )
        return compiled_B
    unary_NT, transitions = scores.walked()
    total_B: Tensor = _LogPartition.apply(unary_NT, transitions, scores.walk)  # type: ignore[no-untyped-call]
    return total_B


@torch.no_grad()
def marginals(scores: Scores) -> Tensor:
    """The probability of each label at each token."""
    if _compiles(scores):
        _, marginals_NT, _ = counted(scores)
        return marginals_NT.to(scores.unary_NT.dtype)
    unary_NT, transitions = scores.walked()
    alpha_NT, _ = forward_sums(unary_NT, transitions, scores.walk)
    beta_NT = backward_sums(unary_NT, transitions, scores.walk)
    walked_NT = (alpha_NT + beta_NT).softmax(1)
    return walked_NT[scores.walk.place_N]


@torch.no_grad()
def expected_transitions(scores: Scores) -> Tensor:
    """The expected number of times that each label follows each label.

    TT over all sequences, or NTT where each token has its own transitions.
    """
    if _compiles(scores):
        _, _, pairs_TT = counted(scores)
        return pairs_TT.to(scores.unary_NT.dtype)
    unary_NT, transitions = scores.walked()
    alpha_NT, _ = forward_sums(unary_NT, transitions, scores.walk)
    beta_NT = backward_sums(unary_NT, transitions, scores.walk)
    ones_N = torch.ones_like(unary_NT[:, 0])
    pairs = expected_pairs(alpha_NT, unary_NT + beta_NT, transitions, scores.walk, ones_N)
    if scores.is_shared:
        return pairs
    return pairs[scores.walk.place_N]


@torch.no_grad()
def counted(scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
    """log Z_B, marginals_NT and expected transitions at once, in double precision, as learning from counts needs."""
    if not _compiles(scores):
        double = Scores(scores.unary_NT.double(), scores.transitions.double(), scores.bounds_B1)
        return log_partition(double), marginals(double), expected_transitions(double)
    num_sequences = len(scores.bounds_B1) - 1
    return _forward_backward(scores, torch.ones(num_sequences))


def viterbi(scores: Scores) -> tuple[Tensor, Tensor]:
    """The best path through each sequence, tags_N (-1 where there is none), and its score_B."""
    tags_N = best_path(scores)
    is_missing_N = (tags_N < 0).to(scores.unary_NT.dtype)
    has_none_B = scores.walk.sums(is_missing_N) > 0
    score_B = path_score(scores, tags_N.clamp(min=0))
    return tags_N, score_B.masked_fill(has_none_B, -torch.inf)


@torch.no_grad()
def best_path(scores: Scores) -> Tensor:
    """The tags_N of the best path through each sequence, without its score, which is faster."""
    if not _compiles(scores):
        tags_KN, _ = k_best(scores, 1)
        return tags_KN[0]
    from firth.nn.chain_kernels import viterbi as compiled

    unary_NT, transitions_TT, bounds_B1 = _arrays(scores)
    tags_N = compiled(unary_NT, transitions_TT, bounds_B1)
    return torch.from_numpy(tags_N).to(scores.unary_NT.device)


@torch.no_grad()
def k_best(scores: Scores, k: int) -> tuple[Tensor, Tensor]:
    """The k best paths, tags_KN, and their scores_BK, best first; where there are fewer, score -inf and tags -1."""
    walk = scores.walk
    num_alive = walk.sizes[0]
    came_NTK, best_NTK = _k_best_arrivals(scores, k)
    # The k best ends of each sequence that has tokens.
    ends_BTK = best_NTK[walk.last_B[:num_alive]]
    end_scores, state_BK = _top(ends_BTK.flatten(1), k)
    tags_NK = _trace_back(came_NTK, state_BK, walk)
    tags_KN = tags_NK[walk.place_N].T
    exists_BK = torch.zeros(len(walk.order_B), k, dtype=torch.bool, device=tags_KN.device)
    exists_BK[:, 0] = True  # the empty path through an empty sequence
    exists_BK[walk.order_B[:num_alive]] = end_scores > -torch.inf
    score_BK = torch.stack([path_score(scores, tags_N) for tags_N in tags_KN], 1)
    score_BK = score_BK.masked_fill(~exists_BK, -torch.inf)
    exists_NK = exists_BK[walk.sequence_N]
    tags_KN = tags_KN.masked_fill(~exists_NK.T, -1)
    return tags_KN, score_BK


def _k_best_arrivals(scores: Scores, k: int) -> tuple[Tensor, Tensor]:
    """For each token and label the k best paths that arrive: where they came from, and their scores.

    A path comes from state t * k + r: the r-th best path that arrived at label t one step before. Scores are relative
    to the best of their step. Rows are in the order of the walk.
    """
    walk = scores.walk
    unary_NT, transitions = scores.walked()
    num_tokens, num_tags = unary_NT.shape
    num_alive = walk.sizes[0]
    best_NTK = unary_NT.new_full((num_tokens, num_tags, k), -torch.inf)
    best_NTK[:num_alive, :, 0] = unary_NT[:num_alive]
    came_NTK = torch.zeros(num_tokens, num_tags, k, dtype=torch.long, device=unary_NT.device)
    for before, now in walk.steps():
        # Dimensions: sequence, to label, from label, rank.
        best_before = best_NTK[before][:, None]
        transition_scores = transitions_at(transitions, now).mT[..., None]
        arriving = best_before + transition_scores
        values, came_NTK[now] = _top(arriving.flatten(2), k)
        values += unary_NT[now][..., None]
        best_NTK[now] = values - values.amax((1, 2), keepdim=True)
    return came_NTK, best_NTK


def _trace_back(came_NTK: Tensor, state_BK: Tensor, walk: ChainWalk) -> Tensor:
    """The tags of k paths, from their states at the end of each sequence; changes `state_BK`."""
    num_tokens, _, k = came_NTK.shape
    tags_NK = torch.empty(num_tokens, k, dtype=torch.long, device=came_NTK.device)
    for now in reversed(walk.slices()):
        num_alive = now.stop - now.start
        tags_NK[now] = state_BK[:num_alive] // k
        state_BK[:num_alive] = came_NTK[now].flatten(1).gather(1, state_BK[:num_alive])
    return tags_NK


@torch.no_grad()
def sample(scores: Scores, key: np.uint64, *, num: int = 1) -> Tensor:
    """`num` paths drawn by their probabilities, tags_SN: filtered forwards, drawn backwards (Gumbel-max)."""
    walk = scores.walk
    unary_NT, transitions = scores.walked()
    alpha_NT, _ = forward_sums(unary_NT, transitions, walk)
    num_tokens, num_tags = alpha_NT.shape
    counters = np.ogrid[:num, :num_tokens, :num_tags]
    uniform_SNT = torch.from_numpy(rng.uniform(key, *counters)).to(alpha_NT)
    # The largest of scores with Gumbel noise, -log(-log u), is drawn by their probabilities. No logarithm of 0.
    exponential_SNT = -uniform_SNT.clamp(1e-30).log()
    gumbel_SNT = -exponential_SNT.clamp(1e-30).log()
    noisy_SNT = alpha_NT + gumbel_SNT
    tags_SN = torch.empty(noisy_SNT.shape[:2], dtype=torch.long, device=alpha_NT.device)
    following: slice | None = None
    for now in reversed(walk.slices()):
        noisy = noisy_SNT[:, now]
        if following is not None:
            # Add the transitions to the tags that were drawn at the step after this one.
            num_on = following.stop - following.start
            # Dimensions: sample, sequence, from label, to label.
            leaving = transitions_at(transitions, following).expand(num, num_on, -1, -1)
            chosen = tags_SN[:, following, None, None].expand(-1, -1, num_tags, 1)
            noisy[:, :num_on] += leaving.gather(3, chosen)[..., 0]
        tags_SN[:, now] = noisy.argmax(2)
        following = now
    return tags_SN[:, walk.place_N]


def _compiles(scores: Scores) -> bool:
    """Whether the compiled recursions can be used."""
    return scores.is_shared and find_spec("numba") is not None


def _arrays(scores: Scores) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unary scores, transitions and bounds as the compiled recursions take them."""
    transitions_TT = scores.transitions.to(scores.unary_NT.dtype)
    bounds_B1 = scores.bounds_B1.long()
    return _array(scores.unary_NT), _array(transitions_TT), _array(bounds_B1)


def _array(tensor: Tensor) -> np.ndarray:
    on_cpu = tensor.detach().cpu()
    return np.ascontiguousarray(on_cpu.numpy())


def _forward_backward(scores: Scores, scale_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log Z_B, marginals_NT and expected transitions; the transitions of each sequence are multiplied by its scale."""
    from firth.nn.chain_kernels import forward_backward

    unary_NT, transitions_TT, bounds_B1 = _arrays(scores)
    scales = _array(scale_B.double())
    log_z, probabilities, pairs = forward_backward(unary_NT, transitions_TT, bounds_B1, scales)
    device = scores.unary_NT.device
    log_z_B = torch.from_numpy(log_z).to(device)
    marginals_NT = torch.from_numpy(probabilities).to(device)
    pairs_TT = torch.from_numpy(pairs).to(device)
    return log_z_B, marginals_NT, pairs_TT


class _CompiledContext(FunctionCtx):
    scores: Scores
    marginals_NT: Tensor
    needs_input_grad: tuple[bool, ...]


class _CompiledLogPartition(torch.autograd.Function):
    """The log partition by the compiled recursions."""

    @staticmethod
    def forward(ctx: _CompiledContext, unary_NT: Tensor, transitions: Tensor, scores: Scores) -> Tensor:
        log_z_B, marginals_NT, _ = counted(scores)
        ctx.scores = scores
        ctx.marginals_NT = marginals_NT
        return log_z_B.to(unary_NT.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: _CompiledContext, grad_B: Tensor) -> tuple[Tensor, Tensor | None, None]:
        scores = ctx.scores
        grad_N1 = grad_B[scores.walk.sequence_N, None]
        unary_grad_NT = (ctx.marginals_NT * grad_N1).to(scores.unary_NT.dtype)
        if not ctx.needs_input_grad[1]:
            return unary_grad_NT, None, None
        _, _, pairs_TT = _forward_backward(scores, grad_B)
        return unary_grad_NT, pairs_TT.to(scores.transitions.dtype), None


class _WalkedContext(FunctionCtx):
    walk: ChainWalk
    saved_tensors: tuple[Tensor, Tensor, Tensor]
    needs_input_grad: tuple[bool, ...]


class _LogPartition(torch.autograd.Function):
    """The log partition by torch operations; tensors are in the order of the walk."""

    @staticmethod
    def forward(ctx: _WalkedContext, unary_NT: Tensor, transitions: Tensor, walk: ChainWalk) -> Tensor:
        alpha_NT, norm_N = forward_sums(unary_NT, transitions, walk)
        ctx.save_for_backward(unary_NT, transitions, alpha_NT)
        ctx.walk = walk
        return walk.sums(norm_N[walk.place_N])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: _WalkedContext, grad_B: Tensor) -> tuple[Tensor, Tensor | None, None]:
        unary_NT, transitions, alpha_NT = ctx.saved_tensors
        beta_NT = backward_sums(unary_NT, transitions, ctx.walk)
        marginals_NT = (alpha_NT + beta_NT).softmax(1)
        sequence_of_row_N = ctx.walk.sequence_N[ctx.walk.rows_N]
        weight_N = grad_B[sequence_of_row_N]
        unary_grad_NT = marginals_NT * weight_N[:, None]
        if not ctx.needs_input_grad[1]:
            return unary_grad_NT, None, None
        transitions_grad = expected_pairs(alpha_NT, unary_NT + beta_NT, transitions, ctx.walk, weight_N)
        return unary_grad_NT, transitions_grad, None


def _top(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values of the last dimension, best first, and their indices."""
    if k == 1:
        # Several times faster than topk.
        best, index = values.max(-1, keepdim=True)
    else:
        best, index = values.topk(k, dim=-1)
    return best, index
