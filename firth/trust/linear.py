"""Probabilities from vectors: multinomial logistic regression, and what it says about rows that it was not trained on.

In: a vector and the index of a label for each row. Out: for each row the probabilities by a regression that was trained
on the other folds. The strength of the penalty is the one that gives the held-out labels the highest likelihood.
"""

import numpy as np

from firth import rng
from firth.train.lbfgs import minimise

PENALTIES = (1e-3, 1e-2, 1e-1)
"""Candidates for the weight of the squared weights, for each row."""


def folds_of(groups: list[object], *, count: int, seed: int) -> np.ndarray:
    """The fold of each row, from 0; rows of one group are in one fold, and the folds are about equally large."""
    different = list(dict.fromkeys(groups))
    order = rng.permutation(rng.key(seed, "folds"), len(different)).tolist()
    fold_of_group = {different[place]: number % count for number, place in enumerate(order)}
    return np.array([fold_of_group[group] for group in groups], np.int64)


def held_out_probabilities(vectors_ND: np.ndarray, labels_N: np.ndarray, folds_N: np.ndarray) -> np.ndarray:
    """N x T: the probabilities of each row by a regression trained on the other folds."""
    scaled_ND = _standardised(vectors_ND)
    num_labels = int(labels_N.max()) + 1
    best_NT = np.full((len(labels_N), num_labels), 1 / num_labels)
    best_likelihood = -np.inf
    for penalty in PENALTIES:
        found_NT = _out_of_fold(scaled_ND, labels_N, folds_N, num_labels, penalty)
        own_N = found_NT[np.arange(len(labels_N)), labels_N]
        likelihood = float(np.log(np.maximum(own_N, 1e-12)).mean())
        if likelihood > best_likelihood:
            best_likelihood = likelihood
            best_NT = found_NT
    return best_NT


def _out_of_fold(
    vectors_ND: np.ndarray, labels_N: np.ndarray, folds_N: np.ndarray, num_labels: int, penalty: float
) -> np.ndarray:
    probabilities_NT = np.empty((len(labels_N), num_labels))
    for fold in range(int(folds_N.max()) + 1):
        is_held_out_N = folds_N == fold
        weights_DT = fit(vectors_ND[~is_held_out_N], labels_N[~is_held_out_N], num_labels=num_labels, penalty=penalty)
        probabilities_NT[is_held_out_N] = softmax(vectors_ND[is_held_out_N] @ weights_DT)
    return probabilities_NT


def fit(vectors_ND: np.ndarray, labels_N: np.ndarray, *, num_labels: int, penalty: float) -> np.ndarray:
    """D x T weights that minimise the mean cross-entropy plus the penalty; a last column of ones is the bias."""
    num_rows, width = vectors_ND.shape
    gold_NT = np.zeros((num_rows, num_labels))
    gold_NT[np.arange(num_rows), labels_N] = 1

    def cost(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights_DT = flat.reshape(width, num_labels)
        probabilities_NT = softmax(vectors_ND @ weights_DT)
        own_N = (probabilities_NT * gold_NT).sum(1)
        value = -float(np.log(np.maximum(own_N, 1e-12)).mean()) + 0.5 * penalty * float((weights_DT**2).sum())
        gradient_DT = vectors_ND.T @ (probabilities_NT - gold_NT) / num_rows + penalty * weights_DT
        return value, gradient_DT.reshape(-1)

    return minimise(cost, np.zeros(width * num_labels), iterations=80).reshape(width, num_labels)


def softmax(scores_NT: np.ndarray) -> np.ndarray:
    powers_NT = np.exp(scores_NT - scores_NT.max(1, keepdims=True))
    return np.asarray(powers_NT / powers_NT.sum(1, keepdims=True))


def _standardised(vectors_ND: np.ndarray) -> np.ndarray:
    """Columns of mean 0 and a common deviation of about 1, and a column of ones."""
    centred_ND = vectors_ND.astype(np.float64) - vectors_ND.mean(0)
    deviation = float(centred_ND.std()) or 1.0
    ones_N1 = np.ones((len(vectors_ND), 1))
    return np.hstack([centred_ND / deviation, ones_N1])
