"""Hidden Markov models over symbols (Rabiner 1989): hidden tags follow one another, each emits a symbol.

In: ids of symbols, sequences end to end, with tags (learning by counting) or without (Baum-Welch). Out: a model of log
probabilities; `scores` gives the chain over which `nn/chain.py` sums, decodes and draws.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from firth import rng
from firth.errors import BadInput
from firth.nn import chain


@dataclass(frozen=True)
class HMM:
    """Log probabilities in double precision."""

    start_T: Tensor
    transitions_TT: Tensor
    """From tag (row) to tag (column)."""
    emissions_VT: Tensor
    """Of each symbol, given the tag."""

    def scores(self, ids_N: Tensor, bounds_B1: Tensor) -> chain.Scores:
        """The joint log probability of symbols and tags as a chain."""
        unary_NT = self.emissions_VT[ids_N.long()]
        unary_NT[_first_tokens(bounds_B1)] += self.start_T
        return chain.Scores(unary_NT, self.transitions_TT, bounds_B1)

    def log_likelihood(self, ids_N: Tensor, bounds_B1: Tensor) -> Tensor:
        """Of each sequence, summed over all tags (the forward algorithm)."""
        log_z_B, _, _ = chain.counted(self.scores(ids_N, bounds_B1))
        return log_z_B

    def viterbi(self, ids_N: Tensor, bounds_B1: Tensor) -> Tensor:
        """The likeliest tags of each sequence as a whole."""
        tags_N, _ = chain.viterbi(self.scores(ids_N, bounds_B1))
        return tags_N

    def posterior(self, ids_N: Tensor, bounds_B1: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest tag of each symbol by itself, and how likely it is."""
        marginals_NT = chain.marginals(self.scores(ids_N, bounds_B1))
        probability_N, tags_N = marginals_NT.max(1)
        return tags_N, probability_N

    def sample(self, length: int, key: np.uint64, *, num: int = 1) -> tuple[Tensor, Tensor]:
        """`num` sequences of tags and symbols, each num x length."""
        # Two random numbers for each symbol of each sequence: for its tag and for the symbol itself.
        draws = rng.uniform(key, *np.ogrid[:num, :length, :2])
        start_T = _cumulative(self.start_T)
        transitions_TT = _cumulative(self.transitions_TT)
        emissions_TV = _cumulative(self.emissions_VT.T)
        tags = np.empty((num, length), np.int64)
        symbols = np.empty((num, length), np.int64)
        # The cumulative probabilities of each sequence's next tag.
        next_tag = np.broadcast_to(start_T, (num, len(start_T)))
        for place in range(length):
            drawn_tags = _drawn(next_tag, draws[:, place, 0])
            tags[:, place] = drawn_tags
            symbols[:, place] = _drawn(emissions_TV[drawn_tags], draws[:, place, 1])
            next_tag = transitions_TT[drawn_tags]
        return torch.from_numpy(tags), torch.from_numpy(symbols)


def count(
    counts_VT: Tensor,
    tags_N: Tensor,
    *,
    bounds_B1: Tensor,
    allowed: tuple[Tensor, Tensor],
    smoothing: float = 0.1,
) -> HMM:
    """From how often each tag emitted each symbol, and from the tags in order.

    `smoothing` is added to every count that the rules allow: `allowed` says which tags may begin and follow.
    """
    num_tags = counts_VT.shape[1]
    tags_N = tags_N.long()
    first = _first_tokens(bounds_B1)
    is_inner_N = torch.ones(len(tags_N), dtype=torch.bool)
    is_inner_N[first] = False
    inner = is_inner_N.nonzero().flatten()
    start_T = torch.bincount(tags_N[first], minlength=num_tags)
    # A pair of tags as one number.
    pairs = tags_N[inner - 1] * num_tags + tags_N[inner]
    transitions_TT = torch.bincount(pairs, minlength=num_tags**2).view(num_tags, num_tags)
    may_start_T, may_follow_TT = allowed
    return HMM(
        _log_share(start_T + smoothing * may_start_T),
        _log_share(transitions_TT + smoothing * may_follow_TT),
        _log_share((counts_VT + smoothing).T).T.contiguous(),
    )


def baum_welch(
    ids_N: Tensor,
    bounds_B1: Tensor,
    *,
    num_tags: int,
    num_symbols: int,
    restarts: int = 5,
    iterations: int = 100,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> tuple[HMM, list[float]]:
    """Learns without tags by expectation-maximisation; of several random starts the likeliest end is kept.

    Gives the model and its log likelihood after each iteration, which never falls.
    """
    if not len(ids_N) or restarts < 1 or num_tags < 1:
        raise BadInput("Baum-Welch needs symbols, at least one restart and at least one tag.")
    ends = []
    for restart in range(restarts):
        start = _random(num_tags, num_symbols, key=rng.key(seed, "restart", restart))
        end = climb(start, ids_N, bounds_B1=bounds_B1, iterations=iterations, tolerance=tolerance)
        ends.append(end)
    return max(ends, key=_last_log_likelihood)


def _last_log_likelihood(end: tuple[HMM, list[float]]) -> float:
    _, history = end
    return history[-1]


def climb(
    model: HMM,
    ids_N: Tensor,
    *,
    bounds_B1: Tensor,
    iterations: int = 100,
    tolerance: float = 1e-6,
) -> tuple[HMM, list[float]]:
    """Expectation-maximisation from a given model, until an iteration gains less than `tolerance` a symbol."""
    first = _first_tokens(bounds_B1)
    symbols_N = ids_N.long()
    history: list[float] = []
    for _ in range(iterations):
        # Expectation.
        log_z_B, marginals_NT, pairs_TT = chain.counted(model.scores(symbols_N, bounds_B1))
        history.append(float(log_z_B.sum()))
        least_gain = tolerance * len(symbols_N)
        if len(history) > 1 and history[-1] - history[-2] < least_gain:
            break
        # Maximisation.
        start_T = marginals_NT[first].sum(0)
        emitted_VT = torch.zeros(model.emissions_VT.shape, dtype=torch.float64)
        emitted_VT.index_add_(0, symbols_N, marginals_NT)
        model = HMM(_log_share(start_T), _log_share(pairs_TT), _log_share(emitted_VT.T).T)
    else:
        likelihood_B = model.log_likelihood(symbols_N, bounds_B1)
        history.append(float(likelihood_B.sum()))
    return model, history


def _random(num_tags: int, num_symbols: int, *, key: np.uint64) -> HMM:
    """Probabilities near the uniform ones; equal ones would never part."""

    tag = np.arange(num_tags)
    symbol = np.arange(num_symbols)
    start_T = rng.uniform(key, 0, tag)
    transitions_TT = rng.uniform(key, 1, tag[:, None], tag)
    emissions_TV = rng.uniform(key, 2, tag[:, None], symbol)

    def near_uniform(draws: np.ndarray) -> Tensor:
        return _log_share(0.5 + torch.from_numpy(draws))

    return HMM(near_uniform(start_T), near_uniform(transitions_TT), near_uniform(emissions_TV).T.contiguous())


def _first_tokens(bounds_B1: Tensor) -> Tensor:
    """The places of the first tokens of all sequences that have any."""
    is_filled_B = bounds_B1.diff() > 0
    return bounds_B1[:-1][is_filled_B].long()


def _log_share(counts: Tensor) -> Tensor:
    """Counts as log probabilities over the last dimension; a row without any is uniform."""
    counts = counts.double()
    total = counts.sum(-1, keepdim=True)
    uniform = 1 / counts.shape[-1]
    return torch.where(total > 0, counts / total, uniform).log()


def _cumulative(log_probabilities: Tensor) -> np.ndarray:
    """Cumulative probabilities along the last dimension."""
    return np.cumsum(log_probabilities.exp().numpy(), -1)


def _drawn(cumulated: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """The number that each draw falls on."""
    # The last sum may differ from 1 by rounding.
    targets = draws[:, None] * cumulated[:, -1:]
    num_passed = (cumulated <= targets).sum(1)
    last = cumulated.shape[1] - 1
    return np.asarray(np.minimum(num_passed, last))
