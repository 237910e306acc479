"""Keyed, counter-based random numbers: a draw is a pure function of its key and counters.

A draw depends on its key (seed, purpose, epoch ...) and its counters (document, sequence, token), never on earlier
draws. So a run sees the same data for any number of workers, ranks or restarts, and whole arrays are drawn at once. The
mixer is the finaliser of splitmix64 (Steele et al. 2014), applied once for each counter.
"""

import hashlib

import numpy as np

CounterLike = np.ndarray | np.generic | int
"""A counter or an array of counters; several are broadcast against each other."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio, splitmix64's increment


def key(*parts: int | str) -> np.uint64:
    """One 64-bit key from any mix of numbers and words."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


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
    top_bits = bits(k, *counters) >> np.uint64(11)
    return np.asarray(top_bits * (1.0 / (1 << 53)))


def normal(k: np.uint64, *counters: CounterLike) -> np.ndarray:
    """Normally distributed numbers with mean 0 and variance 1 (Box & Muller 1958)."""
    # 1 - u is in (0, 1], so its logarithm is finite.
    radius = np.sqrt(-2 * np.log1p(-uniform(k, *counters, 0)))
    angle = 2 * np.pi * uniform(k, *counters, 1)
    return np.asarray(radius * np.cos(angle))


def below(k: np.uint64, limit: CounterLike, *counters: CounterLike) -> np.ndarray:
    """Uniform integers in [0, limit); limit may be an array."""
    return np.asarray(uniform(k, *counters) * np.asarray(limit)).astype(np.int64)


def permutation(k: np.uint64, size: int) -> np.ndarray:
    """A random order of range(size)."""
    return np.argsort(bits(k, np.arange(size)), kind="stable")


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: every bit of the input changes about half of the output's bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
