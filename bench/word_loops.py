"""The compiled loops of word vectors alone, on made-up words in Zipf's proportions: seconds instead of minutes.

    taskset -c 1 python bench/word_loops.py --vocabulary 150_000

One thread, 100 dimensions, window 5, 5 negatives. Says words (for GloVe pairs) a second of CPU. The larger the tables,
the more the loops wait for memory; with `--vocabulary 2_000` they lie in the cache and only the arithmetic is left.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from firth.nn.huffman import Paths, huffman
from firth.objectives.glove_kernels import glove_kernel
from firth.objectives.sampling import Sampler, as_bits, keep_rates
from firth.objectives.word_kernels import SIGMOID, kernels

WIDTH, WINDOW, CHUNK = 100, 5, 2000


def timed(go: Callable[[int], Any], count: int) -> float:
    go(0)  # compiles
    start = time.process_time()
    go(count)
    return time.process_time() - start


def word2vec(kind: str, ids: np.ndarray, counts: np.ndarray) -> float:
    name, way = kind.split("-")
    tree = huffman(counts) if way == "hs" else Paths.none()
    sampler, keep = Sampler.of_counts(counts, 0.75), as_bits(keep_rates(counts, 1e-3))
    negatives, room = (0, int(np.diff(tree.bounds_V1).max()) + 1) if way == "hs" else (5, 6)
    tables = np.full((2, len(counts), WIDTH), 1e-3, np.float32)
    starts = np.arange(0, len(ids), CHUNK)
    keys = np.arange(1, len(starts) + 1).astype(np.uint64)

    def go(chunks: int) -> None:
        getattr(kernels(WIDTH), name)(
            ids, (starts[:chunks], np.minimum(starts + CHUNK, len(ids))[:chunks], keys[:chunks]),
            (np.arange(len(counts), dtype=np.int32), keep), (tree.bounds_V1, tree.nodes_P, tree.turns_P),
            (sampler.limit_V, sampler.alias_V), (0, 0, 0, 0), room, WINDOW, negatives, *tables,
            np.array([0.05, 1e-5, 1e12]), np.zeros(1, np.int64), 0, SIGMOID,
        )  # fmt: skip

    return len(ids) / timed(go, len(starts))


def glove(ids: np.ndarray, size: int) -> float:
    keys = ids[:-1].astype(np.int64) * size + ids[1:]
    weights, tables = np.full(len(keys), 2, np.float32), np.full((4, size, WIDTH + 1), 1e-2, np.float32)
    most, power, rate = np.float32(100), np.float32(0.75), np.float32(0.05)
    same = (keys, weights, most, power, size, tuple(tables), rate, np.zeros(1, np.int64), np.zeros(1), 0)
    return len(keys) / timed(lambda last: glove_kernel(WIDTH)(0, last, *same), len(keys))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--words", type=int, default=100_000)
    given = parser.parse_args()
    shares = 1 / (np.arange(given.vocabulary) + 2.7)
    ends = np.cumsum(shares / shares.sum())
    ids = np.searchsorted(ends, np.random.default_rng(1).random(given.words)).astype(np.uint32)
    counts = np.maximum(shares / shares.sum() * 4e7, 5).astype(np.int64)
    for kind in ("skip_gram-ns", "skip_gram-hs", "cbow-ns", "cbow-hs"):
        print(f"{kind:<14} {word2vec(kind, ids, counts):>12,.0f} words/s", flush=True)
    print(f"{'glove':<14} {glove(ids, given.vocabulary):>12,.0f} pairs/s")


if __name__ == "__main__":
    main()
