"""How likely a label is wrong: held-out probabilities and the given labels in, a chance for each row out.

A row's true label is drawn from the model's probabilities, sharpened or flattened by a temperature. With the noise rate
r the label that was written down is another one, any of them alike. So the given label y of a row has the likelihood
(1 - r) p(y) + r (1 - p(y)) / (T - 1), and the second part's share of it is the chance that the label is wrong. Both
numbers are those that make all given labels most likely, together with a prior for the rate. The chance depends on the
given label's own probability: with many similar labels, that another one is likelier means little, but a probability
of almost 0 means much.
"""

from dataclasses import dataclass

import numpy as np

from firth.metrics.calibration import at_temperature

TEMPERATURES = np.exp(np.linspace(-1.0, 1.0, 21))
NOISE_RATES = np.array([0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2])
PRIOR_RATE = 0.04
"""About the share of wrong labels that people have found in published sets (Northcutt et al. 2021) ..."""
PRIOR_WEIGHT = 0.05
"""... and how much it counts, as a share of the rows: they say little about the rate if there are many labels. Chosen
on rows of SST-2 and TNEWS with 0, 5 and 10 % flipped labels that no figure is reported on."""


@dataclass(frozen=True)
class LabelNoise:
    """What is wrong in a file as a whole, and in each of its rows."""

    rate: float
    """The estimated share of wrong labels."""
    chances_N: np.ndarray
    """Of each row, the chance that its label is wrong."""


def estimate_noise(probabilities_NT: np.ndarray, labels_N: np.ndarray) -> LabelNoise:
    """The most likely noise rate with the chances that follow from it."""
    num_rows, num_labels = probabilities_NT.shape
    best_rate = 0.0
    best_own_N = np.ones(num_rows)
    best_value = -np.inf
    for temperature in TEMPERATURES:
        smoothed_NT = at_temperature(probabilities_NT, temperature)
        own_N = smoothed_NT[np.arange(num_rows), labels_N]
        for rate in NOISE_RATES:
            likelihood_N = (1 - rate) * own_N + _wrong(own_N, rate, num_labels)
            prior = PRIOR_RATE * np.log(rate) + (1 - PRIOR_RATE) * np.log(1 - rate)
            # No logarithm of 0.
            positive_N = np.maximum(likelihood_N, 1e-12)
            value = float(np.log(positive_N).mean() + PRIOR_WEIGHT * prior)
            if value > best_value:
                best_value = value
                best_rate = float(rate)
                best_own_N = own_N
    wrong_N = _wrong(best_own_N, best_rate, num_labels)
    right_N = (1 - best_rate) * best_own_N
    return LabelNoise(best_rate, wrong_N / np.maximum(wrong_N + right_N, 1e-12))


def _wrong(own_N: np.ndarray, rate: float, num_labels: int) -> np.ndarray:
    """The part of a given label's likelihood that noise explains."""
    return rate * (1 - own_N) / max(num_labels - 1, 1)
