"""Taggers: an encoder's states (or a word's ids) in, one tag for each token out; siblings over `nn/chain.py`.

Each tagger only says how it scores a chain and what it minimises; decoding is the same for all: the best path among
the legal ones, with its marginals as confidences. What is legal follows from the tag scheme, so a lone I- cannot be
produced, whatever the weights. A softmax tagger is a chain without transition scores; a CRF (Lafferty et al. 2001)
learns them and is normalised over the legal paths. A MEMM (McCallum et al. 2000) is normalised at every step, given the
tag before; an HMM (Rabiner 1989) adds log probabilities that were counted.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth.errors import BadConfig, BadInput
from firth.nn import TAGGERS, chain
from firth.nn.schemes import Legal, edges

TABLE = TAGGERS


@dataclass(frozen=True)
class Decoded:
    tags_N: Tensor
    confidence_N: Tensor
    """How likely each token has its tag, over all legal paths."""


class Tagger(nn.Module):
    """Scores chains of tags. A linear head makes unary scores of an encoder's states, unless they are such already."""

    def __init__(self, width: int, legal: Legal, *, linear: bool = True) -> None:
        super().__init__()
        self.num_tags = len(legal.start_T)
        if not linear and width != self.num_tags:
            raise BadConfig(f"States of width {width} cannot be the scores of {self.num_tags} tags; use a linear head.")
        self.head = _head(width, self.num_tags) if linear else nn.Identity()
        for name, value in vars(legal).items():
            self.register_buffer(f"legal_{name}", value.clone(), persistent=False)

    def unary(self, inputs: Tensor) -> Tensor:
        """What the tagger says of each token by itself."""
        return _at_least_float(self.head(inputs))

    def joined(self, unary_NT: Tensor, bounds_B1: Tensor) -> chain.Scores:
        """The chain over these unary scores."""
        raise NotImplementedError

    def scores(self, inputs: Tensor, bounds_B1: Tensor) -> chain.Scores:
        """The tagger's own scores, before any rule."""
        return self.joined(self.unary(inputs), bounds_B1)

    def loss(self, inputs: Tensor, tags_N: Tensor, *, bounds_B1: Tensor) -> Tensor:
        """The negative log likelihood of the tags, a SUM whose count is the number of tokens."""
        raise NotImplementedError

    @property
    def legal(self) -> Legal:
        start_T = self.get_buffer("legal_start_T")
        transitions_TT = self.get_buffer("legal_transitions_TT")
        end_T = self.get_buffer("legal_end_T")
        return Legal(start_T, transitions_TT, end_T)

    def legal_scores(self, inputs: Tensor, bounds_B1: Tensor, *, illegal: float = -math.inf) -> chain.Scores:
        """The scores with `illegal` in place of what the scheme forbids; -inf forbids it outright (for decoding)."""
        return self._legal(self.scores(inputs, bounds_B1), illegal)

    def _legal(self, scores: chain.Scores, illegal: float) -> chain.Scores:
        legal = self.legal
        first, last = edges(scores.bounds_B1)
        allowed_NT = torch.ones_like(scores.unary_NT, dtype=torch.bool)
        allowed_NT[first] = legal.start_T
        allowed_NT[last] &= legal.end_T
        unary_NT = scores.unary_NT.masked_fill(~allowed_NT, illegal)
        transitions = scores.transitions.masked_fill(~legal.transitions_TT, illegal)
        return chain.Scores(unary_NT, transitions, scores.bounds_B1)

    def decode(self, inputs: Tensor, bounds_B1: Tensor) -> Decoded:
        """The best legal tags of each sequence."""
        return self.decode_unary(self.unary(inputs), bounds_B1)

    @torch.no_grad()
    def best_unary(self, unary_NT: Tensor, bounds_B1: Tensor, *, k: int) -> tuple[Tensor, Tensor]:
        """The k best legal paths, tags_KN, and how likely each is, BK; -1 and 0 where there are fewer."""
        scores = self._legal(self.joined(unary_NT, bounds_B1), -math.inf)
        tags_KN, score_BK = chain.k_best(scores, k)
        log_z_B1 = chain.log_partition(scores)[:, None]
        return tags_KN, (score_BK - log_z_B1).exp()

    @torch.no_grad()
    def decode_unary(self, unary_NT: Tensor, bounds_B1: Tensor) -> Decoded:
        """The same from unary scores, for texts that were read in windows."""
        scores = self._legal(self.joined(unary_NT, bounds_B1), -math.inf)
        tags_N = _best(scores)
        marginals_NT = chain.marginals(scores)
        confidence_N1 = marginals_NT.gather(1, tags_N[:, None])
        return Decoded(tags_N, confidence_N1[:, 0])

    @torch.no_grad()
    def best(self, unary_NT: Tensor, bounds_B1: Tensor) -> Tensor:
        """Only the tags, which is quicker."""
        scores = self._legal(self.joined(unary_NT, bounds_B1), -math.inf)
        return _best(scores)


class SoftmaxTagger(Tagger):
    """Each token for itself; only the rules of the scheme bind neighbours."""

    def unary(self, inputs: Tensor) -> Tensor:
        return super().unary(inputs).log_softmax(1)

    def joined(self, unary_NT: Tensor, bounds_B1: Tensor) -> chain.Scores:
        no_transitions_TT = unary_NT.new_zeros(self.num_tags, self.num_tags)
        return chain.Scores(unary_NT, no_transitions_TT, bounds_B1)

    def loss(self, inputs: Tensor, tags_N: Tensor, *, bounds_B1: Tensor) -> Tensor:
        return F.nll_loss(self.unary(inputs), tags_N, reduction="sum")


class HMMTagger(Tagger):
    """States are log probabilities of what is seen, given each tag; `finetuning/chains.py` counts them."""

    def __init__(self, width: int, legal: Legal, *, linear: bool = True) -> None:
        super().__init__(width, legal, linear=linear)
        self.start_T = nn.Parameter(torch.zeros(self.num_tags))
        self.transitions_TT = nn.Parameter(torch.zeros(self.num_tags, self.num_tags))

    def joined(self, unary_NT: Tensor, bounds_B1: Tensor) -> chain.Scores:
        unary_NT = _at_edges(unary_NT, bounds_B1, self.start_T)
        return chain.Scores(unary_NT, self.transitions_TT.to(unary_NT.dtype), bounds_B1)

    def loss(self, inputs: Tensor, tags_N: Tensor, *, bounds_B1: Tensor) -> Tensor:
        return -chain.path_score(self.scores(inputs, bounds_B1), tags_N).sum()


class MEMMTagger(HMMTagger):
    """The tag of each token given the one before it: sums to one over the legal tags at every single step.

    What a step is divided by depends on the tag before alone, so it is taken off that tag's unary score, and the chain
    keeps one matrix of transitions."""

    def joined(self, unary_NT: Tensor, bounds_B1: Tensor) -> chain.Scores:
        legal = self.legal
        num_tokens = len(unary_NT)
        is_inner_N1 = _inner(num_tokens, bounds_B1)
        transitions_TT = self.transitions_TT.masked_fill(~legal.transitions_TT, -math.inf)
        transitions_TT = transitions_TT.to(unary_NT.dtype)
        exits_NT = self._exits(unary_NT, transitions_TT) * is_inner_N1
        # What the step to token n + 1 is divided by is paid by the tag of token n; nothing follows the last token.
        no_exit_1T = exits_NT.new_zeros(1, self.num_tags)
        paid_NT = torch.cat([exits_NT[1:], no_exit_1T])[:num_tokens]
        start_NT = _at_edges(unary_NT, bounds_B1, self.start_T)
        # What the first step of a sequence is divided by.
        legal_start_NT = start_NT.masked_fill(~legal.start_T, -math.inf)
        total_N1 = legal_start_NT.logsumexp(1, keepdim=True) * ~is_inner_N1
        normalised_NT = start_NT - total_N1 - paid_NT
        return chain.Scores(normalised_NT, transitions_TT, bounds_B1)

    def _exits(self, unary_NT: Tensor, transitions_TT: Tensor) -> Tensor:
        """For each token and each tag before it, the logarithm of the sum over the token's tags."""
        # Few tokens at a time, into one tensor: the sums are tags times as large as the scores.
        many = max(1, (1 << 18) // self.num_tags**2)
        exits_NT = torch.empty_like(unary_NT)
        for start in range(0, len(unary_NT), many):
            part_NT = unary_NT[start : start + many]
            # Dimensions: token, from tag, to tag.
            scores_of_steps = part_NT[:, None] + transitions_TT
            exits_NT[start : start + many] = scores_of_steps.logsumexp(2)
        return exits_NT.masked_fill(exits_NT == -math.inf, 0)  # a tag that nothing may follow

    def loss(self, inputs: Tensor, tags_N: Tensor, *, bounds_B1: Tensor) -> Tensor:
        legal = self.legal
        unary_NT = self.unary(inputs)
        transitions_TT = self.transitions_TT.masked_fill(~legal.transitions_TT, chain.ILLEGAL)
        start_T = self.start_T.masked_fill(~legal.start_T, chain.ILLEGAL)
        is_inner_N1 = _inner(len(tags_N), bounds_B1)
        tag_before_N = tags_N.roll(1)
        given_NT = torch.where(is_inner_N1, transitions_TT[tag_before_N], start_T)
        return F.cross_entropy(unary_NT + given_NT, tags_N, reduction="sum")


class CRFTagger(HMMTagger):
    """Learned scores for neighbours, starts and ends; normalised over all legal paths."""

    def __init__(self, width: int, legal: Legal, *, linear: bool = True) -> None:
        super().__init__(width, legal, linear=linear)
        self.end_T = nn.Parameter(torch.zeros(self.num_tags))

    def joined(self, unary_NT: Tensor, bounds_B1: Tensor) -> chain.Scores:
        unary_NT = _at_edges(unary_NT, bounds_B1, self.start_T, self.end_T)
        return chain.Scores(unary_NT, self.transitions_TT.to(unary_NT.dtype), bounds_B1)

    def loss(self, inputs: Tensor, tags_N: Tensor, *, bounds_B1: Tensor) -> Tensor:
        scores = self.legal_scores(inputs, bounds_B1, illegal=chain.ILLEGAL)
        losses_B = chain.log_partition(scores) - chain.path_score(scores, tags_N)
        return losses_B.sum()


def _best(scores: chain.Scores) -> Tensor:
    tags_N = chain.best_path(scores)
    if (tags_N < 0).any():
        raise BadInput(
            "A sequence has no legal tags: its scores are not finite, or the rules allow none of its length."
        )
    return tags_N


def _at_edges(unary_NT: Tensor, bounds_B1: Tensor, start_T: Tensor, end_T: Tensor | None = None) -> Tensor:
    """Unary scores with what holds at the start and the end of each sequence."""
    is_first_N1, is_last_N1 = unary_NT.new_zeros(2, len(unary_NT), 1)
    first, last = edges(bounds_B1)
    is_first_N1[first] = 1
    is_last_N1[last] = 1
    unary_NT = unary_NT + is_first_N1 * start_T
    if end_T is not None:
        unary_NT = unary_NT + is_last_N1 * end_T
    return unary_NT


def _inner(num_tokens: int, bounds_B1: Tensor) -> Tensor:
    """True for tokens that follow another of their sequence, as a column."""
    first, _ = edges(bounds_B1)
    inner_N1 = torch.ones(num_tokens, 1, dtype=torch.bool, device=bounds_B1.device)
    inner_N1[first] = False
    return inner_N1


def _head(width: int, num_tags: int) -> nn.Linear:
    head = nn.Linear(width, num_tags)
    nn.init.normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return head


def _at_least_float(scores: Tensor) -> Tensor:
    return scores.to(torch.promote_types(scores.dtype, torch.float32))  # long sums need more than half precision
