"""L-BFGS against functions whose minimum is known, and OWL-QN against scikit-learn's L1."""

import numpy as np
import pytest

from firth.train.lbfgs import minimise


def rosenbrock(x: np.ndarray) -> tuple[float, np.ndarray]:
    a, b = x[:-1], x[1:]
    gradient = np.zeros_like(x)
    gradient[:-1] = -400 * a * (b - a**2) - 2 * (1 - a)
    gradient[1:] += 200 * (b - a**2)
    return float((100 * (b - a**2) ** 2 + (1 - a) ** 2).sum()), gradient


def test_a_crooked_valley() -> None:
    values: list[float] = []
    found = minimise(
        rosenbrock, np.full(6, -1.2), iterations=500, tolerance=1e-14, report=lambda _, value: values.append(value)
    )
    np.testing.assert_allclose(found, np.ones(6), atol=1e-4)
    assert values == sorted(values, reverse=True)


def test_l1_sets_numbers_to_exact_zero_like_scikit_learn() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    draw = np.random.default_rng(0)
    rows, wanted = draw.normal(size=(200, 10)), np.zeros(10)
    wanted[:3] = [3.0, -2.0, 0.5]
    gold = np.where(draw.random(200) < 1 / (1 + np.exp(-rows @ wanted)), 1.0, -1.0)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        margin = gold * (rows @ x)
        return float(np.logaddexp(0, -margin).sum()), -rows.T @ (gold / (1 + np.exp(margin)))

    found = minimise(loss, np.zeros(10), l1=8.0, iterations=500, tolerance=1e-12)
    theirs = linear.LogisticRegression(
        l1_ratio=1.0, C=1 / 8, solver="saga", fit_intercept=False, max_iter=10_000, tol=1e-8
    )
    np.testing.assert_allclose(found, theirs.fit(rows, gold).coef_[0], atol=1e-3)
    assert (found == 0).sum() >= 4


def test_known_curvatures_save_iterations() -> None:
    curvature = np.logspace(0, 6, 50)

    def bowl(x: np.ndarray) -> tuple[float, np.ndarray]:
        return float(curvature @ (x - 1) ** 2 / 2), curvature * (x - 1)

    plain, scaled = (minimise(bowl, np.zeros(50), iterations=12, scale=scale) for scale in (1.0, 1 / curvature))
    assert bowl(scaled)[0] < 1e-9 < bowl(plain)[0]
    sparse = minimise(bowl, np.zeros(50), iterations=100, l1=1e3, tolerance=1e-12, scale=1 / curvature)
    np.testing.assert_allclose(sparse, np.maximum(0, 1 - 1e3 / curvature), atol=1e-4)


def test_the_minimum_itself_is_left_alone() -> None:
    assert minimise(rosenbrock, np.ones(3)).tolist() == [1, 1, 1]
