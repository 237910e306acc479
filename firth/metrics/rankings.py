"""Ranked lists against what is relevant: recall at k, mean reciprocal rank."""

from collections.abc import Collection, Hashable, Sequence
from typing import Any

import numpy as np

from firth.metrics.names import mean, same_length


def recall_at(ranked: Any, relevant: Sequence[Collection[Hashable]], *, k: int) -> float:
    """The mean share of relevant items among the first k; queries to which nothing is relevant do not count."""
    same_length(ranked, relevant)
    return mean([len({*row[:k]} & {*good}) / len({*good}) for row, good in _answerable(ranked, relevant)])


def mean_reciprocal_rank(ranked: Any, relevant: Sequence[Collection[Hashable]]) -> float:
    """The mean of 1 / rank of the first relevant item (0 when it is not in the list)."""
    same_length(ranked, relevant)
    rows = _answerable(ranked, relevant)
    return mean([next((1 / rank for rank, item in enumerate(row, 1) if item in good), 0.0) for row, good in rows])


def _answerable(ranked: Any, relevant: Sequence[Collection[Hashable]]) -> list[tuple[Any, Any]]:
    return [
        (row.tolist() if isinstance(row, np.ndarray) else row, good)
        for row, good in zip(ranked, relevant, strict=True)
        if good
    ]
