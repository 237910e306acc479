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
    centre_D = vectors_ED.mean(0)
    centred_ED = vectors_ED.astype(np.float64) - centre_D
    mean_square = (centred_ED**2).sum(1).mean()
    scale = float(np.sqrt(mean_square)) or 1.0
    targets_ET = np.eye(num_labels)[gold_E]
    loss = _Loss(centred_ED / scale, targets_ET, l2=l2)
    found = minimise(loss, loss.start(), iterations=ITERATIONS, tolerance=1e-7)
    scaled = loss.layer(found)
    # For the vectors as they are: without the scale, and with the centre.
    weight_TD = scaled.weight_TD / scale
    bias_T = scaled.bias_T - weight_TD @ centre_D
    return LinearLayer(weight_TD, bias_T)


class _Loss:
    """The mean cross-entropy of all rows and the penalty, as a function of weights and biases that lie end to end."""

    def __init__(self, x_ED: np.ndarray, targets_ET: np.ndarray, *, l2: float) -> None:
        self.x_ED = x_ED
        self.targets_ET = targets_ET
        self.l2 = l2
        self.num_rows, self.num_labels = targets_ET.shape
        self.width = x_ED.shape[1]

    def start(self) -> np.ndarray:
        """Where the search begins: all zero."""
        return np.zeros(self.num_labels * (self.width + 1))

    def layer(self, flat: np.ndarray) -> LinearLayer:
        """The weights and the biases."""
        num_weights = self.num_labels * self.width
        weight_TD = flat[:num_weights].reshape(self.num_labels, self.width)
        return LinearLayer(weight_TD, flat[num_weights:])

    def __call__(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """The value and its gradient."""
        layer = self.layer(flat)
        probabilities_ET = layer.probabilities(self.x_ED)
        likelihood_E = (probabilities_ET * self.targets_ET).sum(1)
        # No logarithm of 0.
        positive_E = np.maximum(likelihood_E, 1e-12)
        cross_entropy = -float(np.log(positive_E).sum())
        squares = float((layer.weight_TD**2).sum())
        value = cross_entropy + 0.5 * self.l2 * squares

        errors_ET = probabilities_ET - self.targets_ET
        weight_gradient_TD = errors_ET.T @ self.x_ED + self.l2 * layer.weight_TD
        bias_gradient_T = errors_ET.sum(0)
        gradient = np.concatenate([weight_gradient_TD.ravel(), bias_gradient_T])
        return value / self.num_rows, gradient / self.num_rows


def softmax(scores_ET: np.ndarray) -> np.ndarray:
    """Scores as probabilities, row by row."""
    # Less the largest score of each row, so that no power overflows.
    largest_E1 = scores_ET.max(1, keepdims=True)
    powers_ET = np.exp(scores_ET - largest_E1)
    return np.asarray(powers_ET / powers_ET.sum(1, keepdims=True))
