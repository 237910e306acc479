"""Taggers: an encoder's states (or a word's ids) in, one tag for each token out; siblings over `nn/chain.py`.

Each tagger only says how it scores a chain and what it minimises; decoding is the same for all: the best path among
the legal ones, with its marginals as confidences. What is legal follows from the tag scheme, so a lone I- cannot be
produced, whatever the weights. A softmax tagger is a chain without transition scores; a CRF (Lafferty et al. 2001)
learns them and is normalised over the legal paths.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth.errors import BadConfig, BadInput
from firth.metrics import PREFIXES, split_tag
from firth.nn import chain

Scheme = Literal["BIO", "BIOES", "BMES", "IO", "none"]

TABLE = {"softmax": "firth.nn.taggers:SoftmaxTagger", "crf": "firth.nn.taggers:CRFTagger"}


@dataclass(frozen=True)
class Legal:
    """Which tags may begin a sequence, follow one another, and end it."""

    start_T: Tensor
    transitions_TT: Tensor
    """From tag (row) to tag (column)."""
    end_T: Tensor

    def breaks(self, tags_N: Tensor, bounds_B1: Tensor) -> Tensor:
        """Marks the tokens whose tag may not stand where it does."""
        first, last = _edges(bounds_B1)
        breaks_N = ~self.transitions_TT[tags_N.roll(1), tags_N]
        breaks_N[first] = ~self.start_T[tags_N[first]]
        breaks_N[last] |= ~self.end_T[tags_N[last]]
        return breaks_N


@dataclass(frozen=True)
class Decoded:
    tags_N: Tensor
    confidence_N: Tensor
    """How likely each token has its tag, over all legal paths."""


def guess_scheme(tags: Sequence[str]) -> Scheme:
    """The scheme a set of tags is written in; `none` when the tags do not mark the parts of entities or words."""
    marked = [tag for tag in tags if _is_marked(tag)]
    others = [tag for tag in tags if tag not in marked and tag != "O"]
    if not marked or (others and not any(len(tag) > 1 or tag == "B" for tag in marked)):
        return "none"  # labels such as NOUN or X: a letter that looks like a mark is none among them
    if others:
        raise BadInput(
            f"Tag '{others[0]}' does not fit with '{marked[0]}': mend the tags, or choose the scheme 'none'."
        )
    prefixes = {split_tag(tag)[0] for tag in marked}
    if {"I", "M"} <= prefixes:
        raise BadInput("The tags mix I- (BIO, BIOES) and M- (BMES): use one scheme, or choose the scheme 'none'.")
    if not prefixes & {"M", "E", "S"}:
        return "BIO" if "B" in prefixes else "IO"
    return "BIOES" if "I" in prefixes or ("M" not in prefixes and "O" in tags) else "BMES"


def legal_transitions(tags: Sequence[str], scheme: Scheme | Literal["guess"] = "guess") -> Legal:
    """What the scheme allows among these tags; refuses a set in which some tag could never be used."""
    scheme = guess_scheme(tags) if scheme == "guess" else scheme
    if scheme not in get_args(Scheme):
        raise BadConfig(f"There is no tag scheme '{scheme}'; choose one of {', '.join(get_args(Scheme))} or guess.")
    if scheme in ("IO", "none"):
        free = torch.ones(len(tags), dtype=torch.bool)
        return Legal(free, free.expand(len(tags), -1).clone(), free)
    _refuse_broken(tags, scheme)
    parts = [split_tag(tag) for tag in tags]
    prefix, kind = np.array([p for p, _ in parts]), np.array([k for _, k in parts])
    goes_on = np.isin(prefix, ["I", "M", "E"])  # continues what the tag before began
    is_open = np.isin(prefix, ["B", "I", "M"])  # can be continued
    must_go_on = is_open & (scheme != "BIO")
    same = kind[:, None] == kind
    transitions = np.where(goes_on, is_open[:, None] & same, ~must_go_on[:, None])
    return Legal(torch.from_numpy(~goes_on), torch.from_numpy(transitions), torch.from_numpy(~must_go_on))


class Tagger(nn.Module):
    """Scores chains of tags. A tagger gives `scores` and `loss`; what it reads (states, ids) is its own affair."""

    def __init__(self, legal: Legal) -> None:
        super().__init__()
        self.num_tags = len(legal.start_T)
        for name, value in vars(legal).items():
            self.register_buffer(f"legal_{name}", value.clone(), persistent=False)

    def unary(self, inputs: Tensor) -> Tensor:
        """What the tagger says of each token by itself."""
        raise NotImplementedError

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
        return Legal(*(self.get_buffer(f"legal_{name}") for name in ("start_T", "transitions_TT", "end_T")))

    def legal_scores(self, inputs: Tensor, bounds_B1: Tensor, *, illegal: float = -math.inf) -> chain.Scores:
        """The scores with `illegal` in place of what the scheme forbids; -inf forbids it outright (for decoding)."""
        return self._legal(self.scores(inputs, bounds_B1), illegal)

    def _legal(self, scores: chain.Scores, illegal: float) -> chain.Scores:
        bounds_B1, legal = scores.bounds_B1, self.legal
        first, last = _edges(bounds_B1)
        allowed_NT = torch.ones_like(scores.unary_NT, dtype=torch.bool)
        allowed_NT[first] = legal.start_T
        allowed_NT[last] &= legal.end_T
        unary_NT = scores.unary_NT.masked_fill(~allowed_NT, illegal)
        return chain.Scores(unary_NT, scores.transitions.masked_fill(~legal.transitions_TT, illegal), bounds_B1)

    def decode(self, inputs: Tensor, bounds_B1: Tensor) -> Decoded:
        """The best legal tags of each sequence."""
        return self.decode_unary(self.unary(inputs), bounds_B1)

    @torch.no_grad()
    def decode_unary(self, unary_NT: Tensor, bounds_B1: Tensor) -> Decoded:
        """The same from unary scores, for texts that were read in windows."""
        scores = self._legal(self.joined(unary_NT, bounds_B1), -math.inf)
        tags_N, _ = chain.viterbi(scores)
        if (tags_N < 0).any():
            raise BadInput(
                "A sequence has no legal tags: its scores are not finite, or the rules allow none of its length."
            )
        return Decoded(tags_N, chain.marginals(scores).gather(1, tags_N[:, None])[:, 0])


class SoftmaxTagger(Tagger):
    """Each token for itself; only the rules of the scheme bind neighbours."""

    def __init__(self, width: int, legal: Legal) -> None:
        super().__init__(legal)
        self.head = _head(width, self.num_tags)

    def unary(self, inputs: Tensor) -> Tensor:
        return _at_least_float(self.head(inputs)).log_softmax(1)

    def joined(self, unary_NT: Tensor, bounds_B1: Tensor) -> chain.Scores:
        return chain.Scores(unary_NT, unary_NT.new_zeros(self.num_tags, self.num_tags), bounds_B1)

    def loss(self, inputs: Tensor, tags_N: Tensor, *, bounds_B1: Tensor) -> Tensor:
        return F.cross_entropy(_at_least_float(self.head(inputs)), tags_N, reduction="sum")


class CRFTagger(Tagger):
    """Learned scores for neighbours, starts and ends; normalised over all legal paths."""

    def __init__(self, width: int, legal: Legal) -> None:
        super().__init__(legal)
        self.head = _head(width, self.num_tags)
        self.start_T = nn.Parameter(torch.zeros(self.num_tags))
        self.transitions_TT = nn.Parameter(torch.zeros(self.num_tags, self.num_tags))
        self.end_T = nn.Parameter(torch.zeros(self.num_tags))

    def unary(self, inputs: Tensor) -> Tensor:
        return _at_least_float(self.head(inputs))

    def joined(self, unary_NT: Tensor, bounds_B1: Tensor) -> chain.Scores:
        is_first_N1, is_last_N1 = unary_NT.new_zeros(2, len(unary_NT), 1)
        first, last = _edges(bounds_B1)
        is_first_N1[first], is_last_N1[last] = 1, 1
        unary_NT = unary_NT + is_first_N1 * self.start_T + is_last_N1 * self.end_T
        return chain.Scores(unary_NT, self.transitions_TT.to(unary_NT.dtype), bounds_B1)

    def loss(self, inputs: Tensor, tags_N: Tensor, *, bounds_B1: Tensor) -> Tensor:
        scores = self.legal_scores(inputs, bounds_B1, illegal=chain.ILLEGAL)
        return (chain.log_partition(scores) - chain.path_score(scores, tags_N)).sum()


def _head(width: int, num_tags: int) -> nn.Linear:
    head = nn.Linear(width, num_tags)
    nn.init.normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return head


def _edges(bounds_B1: Tensor) -> tuple[Tensor, Tensor]:
    """The first and last tokens of the sequences that are not empty."""
    real_B = bounds_B1.diff() > 0
    return bounds_B1[:-1][real_B].long(), bounds_B1[1:][real_B].long() - 1


def _at_least_float(scores: Tensor) -> Tensor:
    return scores.to(torch.promote_types(scores.dtype, torch.float32))  # long sums need more than half precision


def _is_marked(tag: str) -> bool:
    prefix, kind = split_tag(tag)
    return prefix in {"B", "I", "M", "E", "S"} and ("-" not in tag or kind != "")


def _refuse_broken(tags: Sequence[str], scheme: Scheme) -> None:
    for tag in tags:
        if split_tag(tag)[0] not in [*PREFIXES[scheme]] or ("-" in tag and not _is_marked(tag)):
            raise BadInput(f"Tag '{tag}' does not belong to {scheme}: mend it, or choose the scheme 'none'.")
    for tag in tags:
        for partner in partners(tag, scheme):
            if partner not in tags:
                raise BadInput(
                    f"Tag '{tag}' can never be used in {scheme} without '{partner}': "
                    f"add '{partner}' to the tags, rewrite the file in {scheme}, or choose the scheme 'none'."
                )
    if scheme != "BIO" and not any(split_tag(tag)[0] in "OS" for tag in tags):
        raise BadInput(f"No tag of this {scheme} set can stand for a single token: add 'S' or 'O' to the tags.")


def partners(tag: str, scheme: str) -> list[str]:
    """The tags without which this one has no place in a legal sequence."""
    if scheme in ("IO", "none"):
        return []
    prefix, _, kind = tag.partition("-")
    needed: Mapping[str, str] = {"B": "E", "E": "B", "I": "BE", "M": "BE"} if scheme != "BIO" else {"I": "B"}
    return [f"{other}-{kind}" if kind else other for other in needed.get(prefix, "")]
