"""Intervals and corrections against scipy's and hand-worked values."""

import math

import pytest
from scipy import stats

from firth.study.intervals import holm, mean_interval, outcome, p_value, t_probability, t_quantile


@pytest.mark.parametrize("freedom", [1, 2, 4, 9, 30])
@pytest.mark.parametrize("probability", [0.6, 0.95, 0.975, 0.995])
def test_quantiles_are_those_of_scipy(freedom: int, probability: float) -> None:
    expected = stats.t.ppf(probability, freedom)
    assert t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-4)
    assert t_probability(expected, freedom) == pytest.approx(probability, abs=1e-6)


def test_an_interval_is_that_of_scipy() -> None:
    scores = [0.61, 0.64, 0.58, 0.66]
    found = mean_interval(scores)
    low, high = stats.t.interval(0.95, 3, loc=sum(scores) / 4, scale=stats.sem(scores))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-5)


def test_a_single_score_has_no_range() -> None:
    found = mean_interval([0.5])
    assert (found.mean, found.low, found.high, found.is_known) == (0.5, -math.inf, math.inf, False)
    assert p_value([0.5]) == 1.0


def test_p_values_are_those_of_scipy() -> None:
    differences = [0.02, 0.05, -0.01, 0.04]
    assert p_value(differences) == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=1e-4)
    # Three times the same: a coin shows one side three times in a row with the probability 2 / 8.
    assert p_value([0.1, 0.1, 0.1]) == 0.25
    assert p_value([0.0, 0.0]) == 1.0
    # So are differences that are equal but for the rounding of floats.
    assert p_value([0.9 - 0.8, 0.4 - 0.3, 0.7 - 0.6]) == 0.25
    assert p_value([0.3 - 0.1 - 0.2, 0.0, 0.0]) == 1.0


def test_holms_correction() -> None:
    # 0.01 * 3; 0.02 * 2, at least the one before; 0.04 * 1, at least the one before.
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_outcomes() -> None:
    assert outcome(0.1, 0.01) == "holds"
    assert outcome(-0.1, 0.01) == "reversed"
    assert outcome(0.1, 0.05) == "undecided"
