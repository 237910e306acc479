"""Chance as a pure function: keyed, counter-based random numbers.

A draw depends on its key (seed, purpose, epoch ...) and its counters (document, sequence, token), never on what was
drawn before. So a run sees the same data whatever the number of workers, ranks or restarts, and whole arrays are drawn
at once. The mixer is splitmix64's finaliser (Steele et al. 2014), applied once for each counter.
"""

import hashlib
from typing import Any

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def key(*parts: int | str) -> np.uint64:
    """One 64-bit key from any mix of numbers and words."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def bits(k: np.uint64, *counters: Any) -> np.ndarray:
    """Uniform 64-bit numbers for every combination of (broadcast) counters."""
    with np.errstate(over="ignore"):
        state = np.asarray(k, np.uint64)
        for counter in counters:
            state = _mix(state + (np.asarray(counter).astype(np.uint64) + np.uint64(1)) * _GOLDEN)
        return state


def uniform(k: np.uint64, *counters: Any) -> np.ndarray:
    """Uniform numbers in [0, 1) with 53 random bits."""
    return np.asarray((bits(k, *counters) >> np.uint64(11)) * (1.0 / (1 << 53)))


def normal(k: np.uint64, *counters: Any) -> np.ndarray:
    """Numbers in a normal distribution of mean 0 and variance 1 (Box & Muller 1958)."""
    radius = np.sqrt(-2 * np.log1p(-uniform(k, *counters, 0)))
    return np.asarray(radius * np.cos(2 * np.pi * uniform(k, *counters, 1)))


def below(k: np.uint64, limit: Any, *counters: Any) -> np.ndarray:
    """Uniform integers in [0, limit); limit may be an array."""
    return np.asarray(uniform(k, *counters) * np.asarray(limit)).astype(np.int64)


def permutation(k: np.uint64, size: int) -> np.ndarray:
    """A random order of range(size)."""
    return np.argsort(bits(k, np.arange(size)), kind="stable")


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
