"""Chances of word2vec (Mikolov et al. 2013): which words stay, and which are drawn as negatives.

In: how often words occur. Out: arrays that the kernels read. Words that occur zero times are never kept nor drawn.
"""

from dataclasses import dataclass

import numpy as np

_WHOLE = float(2**32 - 1)


def keep_rates(counts_V: np.ndarray, threshold: float) -> np.ndarray:
    """The share of its occurrences a word keeps: min(1, (sqrt(f/t) + 1) t/f), the released program's formula."""
    if threshold <= 0:
        return np.ones(len(counts_V))
    share_V = np.maximum(counts_V, 1) / max(counts_V.sum(), 1)
    return np.asarray(np.minimum(1, (np.sqrt(share_V / threshold) + 1) * threshold / share_V))


def as_bits(rates: np.ndarray) -> np.ndarray:
    """Shares as 32-bit limits: a uniform 32-bit number is at or below it with this chance."""
    return np.asarray(np.clip(rates, 0, 1) * _WHOLE).astype(np.uint32)


@dataclass(frozen=True)
class Sampler:
    """Walker's alias method: draw a place, then stay there (a second draw is within `limit_V`) or go to `alias_V`."""

    limit_V: np.ndarray
    alias_V: np.ndarray

    @classmethod
    def none(cls) -> "Sampler":
        return cls(np.zeros(0, np.uint32), np.zeros(0, np.int32))

    @classmethod
    def of(cls, weights_V: np.ndarray) -> "Sampler":
        filled = weights_V * (len(weights_V) / weights_V.sum())
        alias_V = np.arange(len(weights_V), dtype=np.int32)
        small, large = list(np.flatnonzero(filled < 1)), list(np.flatnonzero(filled >= 1))
        while small and large:
            poor, rich = small.pop(), large[-1]
            alias_V[poor] = rich
            filled[rich] -= 1 - filled[poor]
            if filled[rich] < 1:
                small.append(large.pop())
        filled[small] = filled[large] = 1  # what rounding left over
        return cls(as_bits(filled), alias_V)

    @classmethod
    def of_counts(cls, counts_V: np.ndarray, power: float) -> "Sampler":
        return cls.of(np.where(counts_V > 0, np.maximum(counts_V, 1) ** power, 0.0))
