"""A step that compares texts without labels: pairs of texts -> how well their similarity agrees with given scores."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from firth.errors import BadConfig
from firth.study.sets import find_model, read_rows
from firth.study.states import read_layers

if TYPE_CHECKING:
    from firth.inference.model import Model

Figures = Mapping[str, float]
SIMHASH = "simhash"
FIRST_LAST = "first-last"
"""The mean over the tokens of the first and the last layer's states."""
EMBEDDINGS = "embeddings"
"""The mean over the tokens of what the model reads before any context: static vectors."""
PERCENTILES = (5, 50, 95)
"""Of all cosines; a picture shows those of unrelated texts."""
SMALLEST_VARIANCE = 1e-3
"""Directions with less variance than this share of the largest are left out of whitening."""


def similarity(
    out: Path,
    *,
    pairs: Sequence[Path],
    way: str,
    model: Path | str | None = None,
    weights: Sequence[Path] = (),
    sample: Sequence[Path] = (),
) -> Figures:
    """Pairs of texts with scores -> the rank correlation of cosines with them, without any training on labels.

    Every file of `pairs` has a figure of its own, `spearman_1` for the first one.
    `unrelated_1` is the median cosine of texts of different rows.
    `way` is a pooling (mean, cls, first-last, embeddings), with `+centred` or `+whitened` for vectors that are changed
    by what the texts of `sample` show, or simhash, which needs no model.
    """
    del out, weights
    import firth

    rows_of_files = [_read_pairs(path) for path in pairs]
    rows = list(chain.from_iterable(rows_of_files))
    gold = np.array([score for _, _, score in rows])
    # The first and the second text of each row in turns.
    texts: list[str] = []
    for first, second, _ in rows:
        texts += [first, second]
    if way == SIMHASH:
        return _by_file(_simhash_similarity(texts), gold, rows_of_files)
    if model is None:
        raise BadConfig(f"The way {way} needs a model.")
    loaded = firth.load(find_model(model))
    pooling, _, change = way.partition("+")
    vectors = _vectors(loaded, texts, pooling)
    if change:
        # The change is learned from other texts than those compared, where there are some.
        others = read_rows(sample[0]) if sample else texts
        sample_texts = [text for text in others if text.strip()]
        vectors = _changed(vectors, _vectors(loaded, sample_texts, pooling), change)
    firsts = vectors[0::2]
    seconds = vectors[1::2]
    figures = _by_file(_cosines(firsts, seconds), gold, rows_of_files)
    # Each text with that of the next row.
    unrelated = _cosines(firsts, np.roll(seconds, 1, axis=0))
    for number, part in enumerate(_split(unrelated, rows_of_files), start=1):
        figures[f"unrelated_{number}"] = float(np.median(part))
    for percent in PERCENTILES:
        figures[f"unrelated_percentile_{percent}"] = float(np.percentile(unrelated, percent))
    return figures


Rows = Sequence[tuple[str, str, float]]


def _by_file(similar: np.ndarray, gold: np.ndarray, rows_of_files: Sequence[Rows]) -> dict[str, float]:
    """The correlation on all rows and on those of each file, and percentiles of the similarities."""
    from firth.metrics import spearman

    figures = {"spearman": float(spearman(similar, gold))}
    parts = zip(_split(similar, rows_of_files), _split(gold, rows_of_files), strict=True)
    for number, (own, own_gold) in enumerate(parts, start=1):
        figures[f"spearman_{number}"] = float(spearman(own, own_gold))
    for percent in PERCENTILES:
        figures[f"percentile_{percent}"] = float(np.percentile(similar, percent))
    return figures


def _split(values: np.ndarray, rows_of_files: Sequence[Rows]) -> list[np.ndarray]:
    ends = np.cumsum([len(rows) for rows in rows_of_files])
    return np.split(values, ends[:-1])


def _read_pairs(path: Path) -> Rows:
    """Rows of first, second and score."""
    rows = []
    for line in read_rows(path):
        first, second, score = line.split("\t")[:3]
        rows.append((first, second, float(score)))
    return rows


def _vectors(model: "Model", texts: Sequence[str], pooling: str) -> np.ndarray:
    """One vector a text."""
    if pooling not in (FIRST_LAST, EMBEDDINGS):
        return np.asarray(model.embed(texts, pooling=pooling, normalise=False))
    pooled = []
    for _, layers_KLD in read_layers(model, texts):
        if pooling == EMBEDDINGS:
            pooled.append(layers_KLD[0].mean(0))
        else:
            # Layer 0 is the embeddings, so the first block's output is layer 1.
            pooled.append(((layers_KLD[1] + layers_KLD[-1]) / 2).mean(0))
    return np.stack(pooled)


def _changed(vectors: np.ndarray, sample: np.ndarray, change: str) -> np.ndarray:
    """The vectors without the mean of the sample's, and for `whitened` with the same variance in all directions."""
    mean = sample.mean(0)
    centred: np.ndarray = vectors - mean
    if change == "centred":
        return centred
    if change != "whitened":
        raise BadConfig(f"Vectors cannot be '{change}' (known: centred, whitened).")
    covariance = np.cov((sample - mean).T)
    values, directions = np.linalg.eigh(covariance)
    # Where the sample does not vary, noise would be scaled up.
    kept = values > values.max() * SMALLEST_VARIANCE
    whitened: np.ndarray = centred @ directions[:, kept] / np.sqrt(values[kept])
    return whitened


def _cosines(firsts: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """The cosine of each row with the same row of the other array."""
    products = (firsts * seconds).sum(1)
    lengths = np.linalg.norm(firsts, axis=1) * np.linalg.norm(seconds, axis=1)
    cosines: np.ndarray = products / np.maximum(lengths, 1e-12)
    return cosines


def _simhash_similarity(texts: Sequence[str]) -> np.ndarray:
    """The share of equal bits of two texts' fingerprints."""
    from firth.data.simhash import BITS, fingerprint

    prints = [fingerprint(text, shingle=1) for text in texts]
    shares = []
    for first, second in zip(prints[0::2], prints[1::2], strict=True):
        differing = (first ^ second).bit_count()
        shares.append(1 - differing / BITS)
    return np.array(shares)
