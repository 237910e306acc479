"""Logistic regression with several classes: vectors and labels in, the weights of a linear layer out.

Minimises the mean cross-entropy + l2 / (2 n) |W|^2 over W and b by L-BFGS, as scikit-learn does with C = 1 / l2. The
vectors are scaled to a mean length of 1 first, and the scale is folded into the weights.
"""

import numpy as np

from firth.train.lbfgs import minimise

ITERATIONS = 200


def fit(vectors_ED: np.ndarray, gold_E: np.ndarray, *, num_labels: int, l2: float) -> tuple[np.ndarray, np.ndarray]:
    """The weights (labels x D) and the bias (labels) of a linear layer over such vectors."""
    num_rows, width = vectors_ED.shape
    # Centred, so that the penalty does not depend on what all vectors have in common.
    centre_D = vectors_ED.mean(0)
    length = float(np.linalg.norm(vectors_ED, axis=1).mean()) or 1.0
    x_ED = ((vectors_ED - centre_D) / length).astype(np.float64)
    targets_ET = np.eye(num_labels)[gold_E]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weight_TD = flat[: num_labels * width].reshape(num_labels, width)
        bias_T = flat[num_labels * width :]
        scores_ET = x_ED @ weight_TD.T + bias_T
        scores_ET -= scores_ET.max(1, keepdims=True)
        log_sums_E = np.log(np.exp(scores_ET).sum(1))
        value = float(log_sums_E.sum() - (scores_ET * targets_ET).sum())
        errors_ET = np.exp(scores_ET - log_sums_E[:, None]) - targets_ET
        gradient_TD = errors_ET.T @ x_ED + l2 * weight_TD
        value += 0.5 * l2 * float((weight_TD**2).sum())
        gradient = np.concatenate([gradient_TD.ravel(), errors_ET.sum(0)])
        return value / num_rows, gradient / num_rows

    found = minimise(loss, np.zeros(num_labels * (width + 1)), iterations=ITERATIONS, tolerance=1e-7)
    weight_TD = found[: num_labels * width].reshape(num_labels, width) / length
    bias_T = found[num_labels * width :] - weight_TD @ centre_D
    return weight_TD, bias_T
