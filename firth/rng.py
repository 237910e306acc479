"""Keyed, counter-based random numbers: a draw is a pure function of its key and counters.

A draw depends on its key (seed, purpose, epoch ...) and its counters (document, sequence, token), never on earlier
draws. So a run sees the same data for any number of workers, ranks or restarts, and whole arrays are drawn at once. The
mixer is the finaliser of splitmix64 (Steele et al. 2014), applied once for each counter.
"""

import hashlib

import numpy as np

CounterLike = np.ndarray | np.generic | int
"""A counter or an array of counters; several are broadcast against each other."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio: splitmix64's increment."""
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)
_FLOAT_BITS = 53
"""Bits of a float64's mantissa."""
_UNIT = 1.0 / (1 << _FLOAT_BITS)
"""The distance between two uniform numbers."""


def key(*parts: int | str) -> np.uint64:
    """One 64-bit key from any mix of numbers and words (Python's own: numpy's numbers have another `repr`)."""
    spelled = repr(parts).encode()
    digest = hashlib.blake2b(spelled, digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def epoch_key(seed: int, purpose: str, epoch: int, *, fresh: bool) -> np.uint64:
    """The key of what is drawn for an epoch. If it is not to be fresh, every epoch repeats the first."""
    return key(seed, purpose, epoch if fresh else 0)


def bits(k: np.uint64, *counters: CounterLike) -> np.ndarray:
    """Uniform 64-bit numbers for every combination of (broadcast) counters."""
    with np.errstate(over="ignore"):
        state = np.asarray(k, np.uint64)
        for counter in counters:
            # One more than the counter, because the increment of counter 0 must not be zero.
            steps = np.asarray(counter).astype(np.uint64) + np.uint64(1)
            state = _mix(state + steps * _GOLDEN)
        return state


def uniform(k: np.uint64, *counters: CounterLike) -> np.ndarray:
    """Uniform numbers in [0, 1) with 53 random bits, as many as a float64 has."""
    top_bits = bits(k, *counters) >> np.uint64(64 - _FLOAT_BITS)
    return np.asarray(top_bits * _UNIT)


def normal(k: np.uint64, *counters: CounterLike) -> np.ndarray:
    """Normally distributed numbers with mean 0 and variance 1 (Box & Muller 1958)."""
    first = uniform(k, *counters, 0)
    second = uniform(k, *counters, 1)
    # 1 - first is in (0, 1], so its logarithm is finite.
    radius = np.sqrt(-2 * np.log1p(-first))
    angle = 2 * np.pi * second
    return np.asarray(radius * np.cos(angle))


def below(k: np.uint64, limit: CounterLike, *counters: CounterLike) -> np.ndarray:
    """Uniform integers in [0, limit); limit may be an array."""
    scaled = uniform(k, *counters) * np.asarray(limit)
    return np.asarray(scaled).astype(np.int64)


def permutation(k: np.uint64, size: int) -> np.ndarray:
    """A random order of range(size)."""
    draws = bits(k, np.arange(size))
    return np.argsort(draws, kind="stable")


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: every bit of the input changes about half of the output's bits."""
    x = _folded(x, 30) * _FIRST_FACTOR
    x = _folded(x, 27) * _SECOND_FACTOR
    return _folded(x, 31)


def _folded(x: np.ndarray, count: int) -> np.ndarray:
    """The numbers xor themselves without their last `count` bits, so that high bits change low ones."""
    high_bits = x >> np.uint64(count)
    return np.asarray(x ^ high_bits)
