"""Logistic regression with several classes: vectors and labels in, the weights of a linear layer out.

Minimises the cross-entropy of all rows + l2 / 2 |W|^2 over W and b by L-BFGS, as scikit-learn does with C = 1 / l2. The
vectors are centred and scaled to a mean squared length of 1 first, so that a penalty means the same for the vectors of
any model; the weights that come out are for the vectors as they are.
"""

from typing import NamedTuple

import numpy as np

from firth.train.lbfgs import minimise

ITERATIONS = 200


class LinearLayer(NamedTuple):
    """The scores of the labels are vectors_ED @ weight_TD.T + bias_T."""

    weight_TD: np.ndarray
    bias_T: np.ndarray

    def probabilities(self, vectors_ED: np.ndarray) -> np.ndarray:
        """E x T."""
        return softmax(vectors_ED @ self.weight_TD.T + self.bias_T)


def fit(vectors_ED: np.ndarray, gold_E: np.ndarray, *, num_labels: int, l2: float) -> LinearLayer:
    """The layer that makes the labels (their indices) most likely."""
    num_rows, width = vectors_ED.shape
    centre_D = vectors_ED.mean(0)
    centred_ED = vectors_ED.astype(np.float64) - centre_D
    scale = float(np.sqrt((centred_ED**2).sum(1).mean())) or 1.0
    x_ED = centred_ED / scale
    targets_ET = np.eye(num_labels)[gold_E]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weight_TD = flat[: num_labels * width].reshape(num_labels, width)
        bias_T = flat[num_labels * width :]
        probabilities_ET = softmax(x_ED @ weight_TD.T + bias_T)
        own_E = (probabilities_ET * targets_ET).sum(1)
        value = -float(np.log(np.maximum(own_E, 1e-12)).sum()) + 0.5 * l2 * float((weight_TD**2).sum())
        errors_ET = probabilities_ET - targets_ET
        gradient_TD = errors_ET.T @ x_ED + l2 * weight_TD
        gradient = np.concatenate([gradient_TD.ravel(), errors_ET.sum(0)])
        return value / num_rows, gradient / num_rows

    found = minimise(loss, np.zeros(num_labels * (width + 1)), iterations=ITERATIONS, tolerance=1e-7)
    weight_TD = found[: num_labels * width].reshape(num_labels, width) / scale
    bias_T = found[num_labels * width :] - weight_TD @ centre_D
    return LinearLayer(weight_TD, bias_T)


def softmax(scores_ET: np.ndarray) -> np.ndarray:
    """Scores as probabilities, row by row."""
    powers_ET = np.exp(scores_ET - scores_ET.max(1, keepdims=True))
    return np.asarray(powers_ET / powers_ET.sum(1, keepdims=True))
