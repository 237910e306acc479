"""Random choices of word2vec (Mikolov et al. 2013): which words are subsampled, which are drawn as negatives.

In: how often words occur. Out: arrays that the kernels read. Words that occur zero times are never kept nor drawn.
"""

from dataclasses import dataclass

import numpy as np

_WHOLE = float(2**32 - 1)


def keep_rates(counts_V: np.ndarray, threshold: float) -> np.ndarray:
    """The share of its occurrences that a word keeps: min(1, (sqrt(f/t) + 1) t/f), the released program's formula."""
    if threshold <= 0:
        return np.ones(len(counts_V))
    share_V = np.maximum(counts_V, 1) / max(counts_V.sum(), 1)
    rates_V = (np.sqrt(share_V / threshold) + 1) * threshold / share_V
    return np.asarray(np.minimum(1, rates_V))


def as_bits(rates: np.ndarray) -> np.ndarray:
    """Probabilities as 32-bit limits: a uniform 32-bit number is at or below a limit with its probability."""
    return np.asarray(np.clip(rates, 0, 1) * _WHOLE).astype(np.uint32)


@dataclass(frozen=True)
class Sampler:
    """Walker's alias method: draw a column, then keep it (a second draw is within `limit_V`) or take `alias_V`."""

    limit_V: np.ndarray
    alias_V: np.ndarray

    @classmethod
    def none(cls) -> "Sampler":
        """A sampler without words, for loops that draw none."""
        return cls(np.zeros(0, np.uint32), np.zeros(0, np.int32))

    @classmethod
    def of(cls, weights_V: np.ndarray) -> "Sampler":
        """A sampler that draws words in proportion to these weights."""
        filled = weights_V * (len(weights_V) / weights_V.sum())
        alias_V = np.arange(len(weights_V), dtype=np.int32)
        small = list(np.flatnonzero(filled < 1))
        large = list(np.flatnonzero(filled >= 1))
        while small and large:
            # A column with room left is filled up from one that has too much.
            poor = small.pop()
            rich = large[-1]
            alias_V[poor] = rich
            filled[rich] -= 1 - filled[poor]
            if filled[rich] < 1:
                small.append(large.pop())
        # Only rounding errors are left.
        filled[small] = 1
        filled[large] = 1
        return cls(as_bits(filled), alias_V)

    @classmethod
    def of_counts(cls, counts_V: np.ndarray, power: float) -> "Sampler":
        """A sampler that draws words in proportion to their counts raised to a power."""
        weights_V = np.where(counts_V > 0, np.maximum(counts_V, 1) ** power, 0.0)
        return cls.of(weights_V)
