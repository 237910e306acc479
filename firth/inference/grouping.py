"""Vectors -> groups. k-means (Lloyd 1982) with spread-out first centres (Arthur and Vassilvitskii 2007); the number of
groups is the one with the highest mean silhouette (Rousseeuw 1987). The same vectors always give the same groups."""

import numpy as np

from firth import rng

RESTARTS = 8
ROUNDS = 100


def group(vectors: np.ndarray, *, most: int, count: int | None = None) -> tuple[np.ndarray, float]:
    """The group of each vector, the largest group first, and the silhouette; `count` groups, or the best of 2..`most`.

    Fewer than three different vectors are one group with a silhouette of 0."""
    different = len(np.unique(vectors.round(5), axis=0))
    if different < 3 or count == 1:
        return np.zeros(len(vectors), np.int64), 0.0
    distances = _distances(vectors, vectors)
    tried = [kmeans(vectors, k) for k in ([count] if count else range(2, min(most, different - 1) + 1))]
    scores = [silhouette(distances, labels) for labels in tried]
    best = int(np.argmax(scores))
    _, labels = np.unique(tried[best], return_inverse=True)
    rank = np.argsort(np.argsort(-np.bincount(labels), kind="stable"))
    return rank[labels], scores[best]


def kmeans(vectors: np.ndarray, count: int) -> np.ndarray:
    """The group of each vector, of the restart whose vectors lie closest to their centres."""
    runs = [_lloyd(vectors, _spread(vectors, count, restart)) for restart in range(RESTARTS)]
    return min(runs, key=lambda run: run[0])[1]


def silhouette(distances: np.ndarray, labels: np.ndarray) -> float:
    """The mean over all vectors of (b - a) / max(a, b): a is the mean distance within its group, b to the nearest other
    group. A vector alone in its group counts 0."""
    sizes = np.bincount(labels)
    sums = np.stack([distances[:, labels == k].sum(1) for k in range(len(sizes))], 1)
    rows, own = np.arange(len(labels)), sizes[labels]
    within = sums[rows, labels] / np.maximum(own - 1, 1)
    means = sums / np.maximum(sizes, 1)
    means[:, sizes == 0], means[rows, labels] = np.inf, np.inf
    other = means.min(1)
    each = np.where(own > 1, (other - within) / np.maximum(np.maximum(within, other), 1e-12), 0.0)
    return float(each.mean())


def _spread(vectors: np.ndarray, count: int, restart: int) -> np.ndarray:
    """First centres: each next one is drawn in proportion to its squared distance from those chosen before."""
    draws = rng.uniform(rng.key("centres", restart), np.arange(count))
    chosen = [int(draws[0] * len(vectors))]
    for draw in draws[1:]:
        weights = np.cumsum(_distances(vectors, vectors[chosen]).min(1) ** 2)
        chosen.append(int(np.searchsorted(weights, draw * weights[-1], side="right").clip(max=len(vectors) - 1)))
    return vectors[chosen]


def _lloyd(vectors: np.ndarray, centres: np.ndarray) -> tuple[float, np.ndarray]:
    labels = np.full(len(vectors), -1)
    for _ in range(ROUNDS):
        distances = _distances(vectors, centres)
        before, labels = labels, distances.argmin(1)
        if np.array_equal(before, labels):
            break
        for k in np.unique(labels):
            centres[k] = vectors[labels == k].mean(0)
    return float((distances.min(1) ** 2).sum()), labels


def _distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    squares = (left**2).sum(1)[:, None] + (right**2).sum(1) - 2 * left @ right.T
    return np.asarray(np.sqrt(np.maximum(squares, 0)))
