"""Vectors in, clusters out: k-means (Lloyd 1982) with k-means++ initial centres (Arthur and Vassilvitskii 2007).

The number of clusters is the one with the highest mean silhouette (Rousseeuw 1987). Random numbers are keyed, so the
same vectors always give the same clusters. Vectors are N x D, centres C x D.
"""

import numpy as np

from firth import rng

RESTARTS = 8
"""k-means runs from this many different initial centres; the tightest result is kept."""
MAX_ITERATIONS = 100


def cluster(vectors_ND: np.ndarray, *, max_clusters: int, count: int | None = None) -> tuple[np.ndarray, float]:
    """The cluster of each vector, where cluster 0 is the largest, and the mean silhouette.

    With `count` there are that many clusters; without it, the best number from 2 to `max_clusters`. Fewer than three
    different vectors are one cluster with a silhouette of 0.
    """
    # Vectors that differ only by rounding count as one.
    different = np.unique(vectors_ND.round(5), axis=0)
    if len(different) < 3 or count == 1:
        one_cluster_N = np.zeros(len(vectors_ND), np.int64)
        return one_cluster_N, 0.0
    lowest_count = 2
    highest_count = min(max_clusters, len(different) - 1)
    if count:
        lowest_count = count
        highest_count = count
    distances_NN = _distances(vectors_ND, vectors_ND)
    candidates = []
    scores = []
    for k in range(lowest_count, highest_count + 1):
        labels_N = kmeans(vectors_ND, k)
        candidates.append(labels_N)
        scores.append(silhouette(distances_NN, labels_N))
    best = int(np.argmax(scores))
    return _largest_first(candidates[best]), scores[best]


def _largest_first(labels_N: np.ndarray) -> np.ndarray:
    """The same clusters, numbered by size; clusters without vectors disappear."""
    _, labels_N = np.unique(labels_N, return_inverse=True)
    sizes_C = np.bincount(labels_N)
    order_C = np.argsort(-sizes_C, kind="stable")
    # The rank of each cluster is the inverse permutation of that order.
    rank_C = np.argsort(order_C)
    return rank_C[labels_N]


def kmeans(vectors_ND: np.ndarray, count: int) -> np.ndarray:
    """The cluster of each vector, from the restart with the smallest squared distances to the centres."""
    runs = []
    for restart in range(RESTARTS):
        centres_CD = _initial_centres(vectors_ND, count, restart=restart)
        runs.append(_lloyd(vectors_ND, centres_CD))
    _, labels_N = min(runs, key=lambda run: run[0])
    return labels_N


def silhouette(distances_NN: np.ndarray, labels_N: np.ndarray) -> float:
    """The mean over all vectors of (b - a) / max(a, b).

    a is the mean distance to the other vectors of its cluster, b the mean distance to the vectors of the nearest other
    cluster. A vector alone in its cluster counts 0.
    """
    sizes_C = np.bincount(labels_N)
    sums = []
    for k in range(len(sizes_C)):
        to_cluster = distances_NN[:, labels_N == k]
        sums.append(to_cluster.sum(1))
    sums_NC = np.stack(sums, 1)
    rows_N = np.arange(len(labels_N))
    own_sum_N = sums_NC[rows_N, labels_N]
    own_size_N = sizes_C[labels_N]
    # The distance of a vector to itself is 0, so the sum has one term less than the cluster has vectors.
    a_N = own_sum_N / np.maximum(own_size_N - 1, 1)
    means_NC = sums_NC / np.maximum(sizes_C, 1)
    # Neither an empty cluster nor its own can be the nearest other cluster.
    means_NC[:, sizes_C == 0] = np.inf
    means_NC[rows_N, labels_N] = np.inf
    b_N = means_NC.min(1)
    larger_N = np.maximum(a_N, b_N)
    scores_N = (b_N - a_N) / np.maximum(larger_N, 1e-12)
    silhouettes_N = np.where(own_size_N > 1, scores_N, 0.0)
    return float(silhouettes_N.mean())


def _initial_centres(vectors_ND: np.ndarray, count: int, *, restart: int) -> np.ndarray:
    """k-means++: each next centre is drawn with a probability proportional to its squared distance to the others."""
    key = rng.key("centres", restart)
    draws_C = rng.uniform(key, np.arange(count))
    num_vectors = len(vectors_ND)
    chosen = [int(draws_C[0] * num_vectors)]
    for draw in draws_C[1:]:
        distances_NC = _distances(vectors_ND, vectors_ND[chosen])
        weights_N = distances_NC.min(1) ** 2
        # A draw, scaled to the total weight, falls into the interval of one vector.
        ends_N = np.cumsum(weights_N)
        total_weight = ends_N[-1]
        row = np.searchsorted(ends_N, draw * total_weight, side="right")
        chosen.append(int(row.clip(max=num_vectors - 1)))
    return vectors_ND[chosen]


def _lloyd(vectors_ND: np.ndarray, centres_CD: np.ndarray) -> tuple[float, np.ndarray]:
    """Assigns vectors to the nearest centre and moves centres to the mean of their vectors, until nothing changes.

    Gives the sum of squared distances and the cluster of each vector; `centres_CD` is changed in place.
    """
    labels_N = np.full(len(vectors_ND), -1)
    for _ in range(MAX_ITERATIONS):
        distances_NC = _distances(vectors_ND, centres_CD)
        previous_N = labels_N
        labels_N = distances_NC.argmin(1)
        if np.array_equal(previous_N, labels_N):
            break
        for k in np.unique(labels_N):
            members = vectors_ND[labels_N == k]
            centres_CD[k] = members.mean(0)
    squares_N = distances_NC.min(1) ** 2
    return float(squares_N.sum()), labels_N


def _distances(left_ND: np.ndarray, right_MD: np.ndarray) -> np.ndarray:
    """Euclidean distances between all pairs, by |x - y|^2 = |x|^2 + |y|^2 - 2 x.y."""
    left_squares_N = (left_ND**2).sum(1)
    right_squares_M = (right_MD**2).sum(1)
    squares_NM = left_squares_N[:, None] + right_squares_M - 2 * left_ND @ right_MD.T
    # Rounding can make the square of a small distance negative.
    squares_NM = np.maximum(squares_NM, 0)
    return np.asarray(np.sqrt(squares_NM))
