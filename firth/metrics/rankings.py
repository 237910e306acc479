"""Ranked lists against what is relevant: recall at k, mean reciprocal rank, nDCG."""

from collections.abc import Collection, Hashable, Sequence

import numpy as np

from firth.metrics.classification import mean, same_length

Rankings = Sequence[Sequence[Hashable]] | Sequence[np.ndarray] | np.ndarray
"""For each query its items, best first."""


def recall_at(ranked: Rankings, relevant: Sequence[Collection[Hashable]], *, k: int) -> float:
    """The mean share of relevant items among the first k; queries to which nothing is relevant do not count."""
    same_length(ranked, relevant)
    recalls = []
    for items, wanted in _answerable(ranked, relevant):
        found = wanted.intersection(items[:k])
        recalls.append(len(found) / len(wanted))
    return mean(recalls)


def mean_reciprocal_rank(ranked: Rankings, relevant: Sequence[Collection[Hashable]]) -> float:
    """The mean of 1 / rank of the first relevant item (0 when it is not in the list)."""
    same_length(ranked, relevant)
    reciprocals = []
    for items, wanted in _answerable(ranked, relevant):
        reciprocals.append(_reciprocal_rank(items, wanted))
    return mean(reciprocals)


def ndcg(ranked: Rankings, relevant: Sequence[Collection[Hashable]], *, k: int) -> float:
    """The mean gain of the relevant items among the first k, discounted by 1 / log2(1 + rank), as a share of the best.

    Järvelin & Kekäläinen 2002, with every relevant item worth the same. Queries to which nothing is relevant do not
    count.
    """
    same_length(ranked, relevant)
    discounts = 1 / np.log2(2 + np.arange(k))
    shares = []
    for items, wanted in _answerable(ranked, relevant):
        is_relevant = np.array([item in wanted for item in items[:k]], np.float64)
        gain = float(is_relevant @ discounts[: len(is_relevant)])
        best_gain = float(discounts[: len(wanted)].sum())
        shares.append(gain / best_gain)
    return mean(shares)


def _reciprocal_rank(items: Sequence[Hashable], wanted: set[Hashable]) -> float:
    for rank, item in enumerate(items, 1):
        if item in wanted:
            return 1 / rank
    return 0.0


def _answerable(
    ranked: Rankings,
    relevant: Sequence[Collection[Hashable]],
) -> list[tuple[Sequence[Hashable], set[Hashable]]]:
    """(ranked items, relevant items) of the queries to which anything is relevant."""
    queries = []
    for items, wanted in zip(ranked, relevant, strict=True):
        if not wanted:
            continue
        # Plain Python numbers, so that they are equal to the ids in `wanted`.
        if isinstance(items, np.ndarray):
            items = items.tolist()
        queries.append((items, set(wanted)))
    return queries
