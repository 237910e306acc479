"""Similarities of texts -> figures.

In: predicted similarities, on request with the vectors they come from, and which texts are alike. Out: accuracy, AUC
and F1 of pairs with labels, and the ranks at which texts find the texts that are like them.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from firth import metrics, rng
from firth.metrics.cosines import unit_vectors
from firth.tasks.task import Examples, Figures, Predictions, index_of
from firth.types import Prediction

log = logging.getLogger(__name__)

MAX_RANK = 100
"""Places of a ranking that are looked at; texts behind them count as not found."""
RECALL_AT = (1, 10)
BLOCK = 512
"""Texts ranked at once."""

Whitening = tuple[np.ndarray, np.ndarray]
"""The mean of some vectors, and a map: the centred vectors times the map have the unit matrix as covariance."""


class Similarity(Prediction):
    """A similarity with the vectors it comes from, which rankings need.

    The vectors are not a field, because answers to users do not show them.
    """

    vectors: tuple[np.ndarray, ...] = ()


def with_vectors(similarity: float, vectors: tuple[np.ndarray, ...]) -> Similarity:
    made = Similarity(similarity)
    # A prediction is frozen, and vectors are no field of it.
    object.__setattr__(made, "vectors", vectors)
    return made


def vectors_by_text(predictions: Predictions, examples: Examples) -> dict[str, np.ndarray]:
    """The vector of each text, if predictions have vectors."""
    vectors: dict[str, np.ndarray] = {}
    for prediction, example in zip(predictions, examples, strict=True):
        if isinstance(prediction, Similarity) and prediction.vectors:
            vectors.update(zip(example.texts, prediction.vectors, strict=True))
    return vectors


# Vectors


def fit_whitening(vectors_ND: np.ndarray, width: int = 0) -> Whitening:
    """The whitening of some vectors (Su et al. 2021, equation 5); a `width` keeps only the strongest directions."""
    mean_D = vectors_ND.mean(0)
    centred_DN = (vectors_ND - mean_D).T
    covariance_DD = np.cov(centred_DN.astype(np.float64))
    variances_D, directions_DD = np.linalg.eigh(covariance_DD)
    # Directions without variance cannot be scaled to the variance 1.
    order_D = np.argsort(-variances_D)
    has_variance_D = variances_D[order_D] > variances_D.max() * 1e-7
    kept = order_D[has_variance_D][: width or None]
    # N texts span N - 1 directions. Where all of these get the variance 1, every two texts have the same cosine.
    num_texts = len(vectors_ND)
    if len(kept) >= num_texts - 1:
        log.warning(
            f"The whitening is learned from {num_texts:,} texts and keeps {len(kept):,} directions, so all texts come "
            "out equally unlike; give more texts, or a whiten_width far below their number."
        )
    return mean_D, directions_DD[:, kept] / np.sqrt(variances_D[kept])


def whitened_units(vectors_ND: np.ndarray, whitening: Whitening | None) -> np.ndarray:
    """Vectors of length 1, after whitening if there is any."""
    if whitening is not None:
        mean_D, map_DD = whitening
        vectors_ND = (vectors_ND - mean_D) @ map_DD
    return unit_vectors(vectors_ND)


def random_direction(text: str) -> np.ndarray:
    """A vector that no other text is near."""
    key = rng.key("direction", text)
    return rng.uniform(key, np.arange(64)) - 0.5


# Figures


def pair_figures(is_alike: np.ndarray, similarities: np.ndarray, threshold: float) -> Figures:
    """Figures of pairs with labels."""
    gold = _as_sets(is_alike)
    predicted = _as_sets(similarities >= threshold)
    best_accuracy, _ = metrics.best_accuracy(is_alike, similarities)
    return {
        "auc": metrics.roc_auc(is_alike, similarities),
        "best_accuracy": best_accuracy,
        "accuracy": metrics.exact_match(gold, predicted),
        "f1": metrics.multilabel_f1(gold, predicted).micro.f1,
    }


def _as_sets(is_alike: np.ndarray) -> list[set[str]]:
    """Binary labels as sets with one name or none, whose micro F1 is that of the positive label."""
    sets: list[set[str]] = []
    for one in is_alike:
        sets.append({"alike"} if one else set())
    return sets


def ranking_figures(vectors: Mapping[str, np.ndarray], examples: Examples, is_alike: Sequence[bool]) -> Figures:
    """Each text with a like one looks for it among the second (and third) texts of all rows, by cosine.

    `vectors` have length 1; without any there are no figures.
    """
    candidates: list[str] = []
    for example in examples:
        candidates += example.texts[1:]
    candidates = list(dict.fromkeys(candidates))
    index = index_of(candidates)
    # For each first text the candidates that are like it.
    alike: dict[str, set[int]] = defaultdict(set)
    for example, alike_row in zip(examples, is_alike, strict=True):
        if alike_row:
            first, second = example.texts[:2]
            alike[first].add(index[second])
    if not alike or not vectors:
        return {}
    ranked = list(_ranked(alike, vectors, candidates))
    relevant = list(alike.values())
    figures = {"mrr": metrics.mean_reciprocal_rank(ranked, relevant)}
    for k in RECALL_AT:
        figures[f"recall@{k}"] = metrics.recall_at(ranked, relevant, k=k)
    return figures


def _ranked(
    alike: Mapping[str, set[int]],
    vectors: Mapping[str, np.ndarray],
    candidates: Sequence[str],
) -> Iterator[list[int]]:
    """For each text of `alike` the candidates with the highest cosines, the best first."""
    index = index_of(candidates)
    candidates_CD = np.stack([vectors[text] for text in candidates])
    texts = list(alike)
    for start in range(0, len(texts), BLOCK):
        block = texts[start : start + BLOCK]
        queries_QD = np.stack([vectors[text] for text in block])
        cosines_QC = queries_QD @ candidates_CD.T
        for text, cosines_C in zip(block, cosines_QC, strict=True):
            if text in index and index[text] not in alike[text]:
                cosines_C[index[text]] = -np.inf  # a text does not look for itself
            num_kept = min(MAX_RANK, len(cosines_C))
            best = np.argpartition(-cosines_C, num_kept - 1)[:MAX_RANK]
            # Of equal cosines the earlier candidate is first.
            order = np.lexsort((best, -cosines_C[best]))
            yield best[order].tolist()
