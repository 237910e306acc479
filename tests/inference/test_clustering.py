"""k-means and silhouettes against scikit-learn and by hand."""

import numpy as np
import pytest

from firth import rng
from firth.inference.clustering import _distances, cluster, kmeans, silhouette

SKLEARN = pytest.importorskip("sklearn.metrics")


def clouds(count: int, *, apart: float, size: int = 15) -> tuple[np.ndarray, np.ndarray]:
    """Points around `count` places on a line."""
    rows = np.arange(count * size)
    noise = np.stack([rng.uniform(rng.key("clouds", column), rows) for column in range(4)], 1) - 0.5
    labels = rows % count
    noise[:, 0] += apart * labels
    return noise, labels


@pytest.mark.parametrize("count", [2, 3, 5])
def test_silhouette_equals_scikit_learn(count: int) -> None:
    vectors, labels = clouds(count, apart=0.7)
    labels[0] = count  # one alone in its group
    ours = silhouette(_distances(vectors, vectors), labels)
    assert ours == pytest.approx(SKLEARN.silhouette_score(vectors, labels), abs=1e-6)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_clouds_apart_are_found(count: int) -> None:
    vectors, labels = clouds(count, apart=4.0)
    found, score = cluster(vectors, max_clusters=6)
    assert SKLEARN.adjusted_rand_score(labels, found) == 1
    assert score > 0.7
    again, _ = cluster(vectors, max_clusters=6)
    assert np.array_equal(found, again)


def test_kmeans_is_as_tight_as_scikit_learns() -> None:
    from sklearn.cluster import KMeans

    vectors, _ = clouds(5, apart=0.6, size=20)
    labels = kmeans(vectors, 4)
    inertia = sum(((vectors[labels == k] - vectors[labels == k].mean(0)) ** 2).sum() for k in np.unique(labels))
    assert inertia <= 1.02 * KMeans(4, n_init=20, random_state=0).fit(vectors).inertia_


def test_the_largest_group_comes_first() -> None:
    vectors = np.array([[0.0], [0.1], [9.0], [9.1], [9.2], [9.3]])
    assert cluster(vectors, max_clusters=3)[0].tolist() == [1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("vectors", [np.zeros((6, 3)), np.repeat(np.eye(2), 3, 0), np.ones((1, 2))])
def test_too_few_different_vectors_are_one_group(vectors: np.ndarray) -> None:
    labels, score = cluster(vectors, max_clusters=4)
    assert labels.tolist() == [0] * len(vectors)
    assert score == 0
