"""Vectors as the rows of an array -> rows of length one, whose dot products are cosines."""

import numpy as np


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """The vectors scaled to length one; a vector of zeros stays as it is."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12))
