"""What a logistic regression says about rows that it was not trained on.

In: vectors, labels and folds. Out: the probabilities of each row by a regression on the other folds. The strength of
its penalty is the one that gives the held-out labels the highest likelihood.
"""

import numpy as np

from firth.train import logistic

PENALTIES = (0.1, 1.0, 10.0)
"""Candidates for the weight of the squared weights, for vectors of length 1."""


def held_out_probabilities(vectors_ND: np.ndarray, labels_N: np.ndarray, folds_N: np.ndarray) -> np.ndarray:
    """N x T: the probabilities of each row by a regression trained on the other folds."""
    candidates = []
    for l2 in PENALTIES:
        probabilities_NT = _out_of_fold(vectors_ND, labels_N, folds_N, l2=l2)
        candidates.append(probabilities_NT)
    return max(candidates, key=lambda probabilities_NT: mean_log_likelihood(probabilities_NT, labels_N))


def mean_log_likelihood(probabilities_NT: np.ndarray, labels_N: np.ndarray) -> float:
    """Of the rows' own labels."""
    rows_N = np.arange(len(labels_N))
    own_N = probabilities_NT[rows_N, labels_N]
    # No logarithm of 0.
    positive_N = np.maximum(own_N, 1e-12)
    return float(np.log(positive_N).mean())


def _out_of_fold(vectors_ND: np.ndarray, labels_N: np.ndarray, folds_N: np.ndarray, *, l2: float) -> np.ndarray:
    num_labels = int(labels_N.max()) + 1
    probabilities_NT = np.empty((len(labels_N), num_labels))
    for fold in range(int(folds_N.max()) + 1):
        is_held_out_N = folds_N == fold
        is_trained_on_N = ~is_held_out_N
        layer = logistic.fit(vectors_ND[is_trained_on_N], labels_N[is_trained_on_N], num_labels=num_labels, l2=l2)
        probabilities_NT[is_held_out_N] = layer.probabilities(vectors_ND[is_held_out_N])
    return probabilities_NT
