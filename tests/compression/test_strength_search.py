"""The search for a strength, with measuring functions that are given: no model, no clock."""

import pytest

from firth.compression.strength_search import Chosen, Trial, Wanted, search
from firth.errors import BadConfig

COUNT = 20


def measured(number: int) -> Trial:
    """Scores fall from 1 by 0.01 with each strength, speeds rise from 1 by 0.1."""
    return Trial(kept=1 - number / 100, speedup=1 + number / 10)


@pytest.mark.parametrize(
    ("keep", "faster", "number", "reached"),
    [
        (0.955, None, 4, True),  # the strongest that keeps the score
        (None, 1.55, 6, True),  # the mildest that is fast enough
        (0.9, 1.55, 6, True),
        (0.955, 1.55, 4, False),  # the strongest that keeps the score, though it is too slow
        (None, 9.0, COUNT - 1, False),
        (0.5, None, COUNT - 1, True),
        (0.5, 9.0, COUNT - 1, False),
        (1.0, None, 0, True),
        (None, 0.5, 0, True),
    ],
)
def test_what_is_chosen(keep: float | None, faster: float | None, number: int, reached: bool) -> None:
    assert search(COUNT, measured, Wanted(keep, faster)) == Chosen(number, reached)


def test_nothing_keeps_the_score() -> None:
    found = search(COUNT, lambda number: Trial(0.5, 2.0), Wanted(keep=0.9))
    assert found == Chosen(0, reached=False)
    assert search(COUNT, lambda number: Trial(0.5, 2.0), Wanted(keep=0.9, faster=1.5)) == Chosen(0, reached=False)


def test_few_strengths_are_measured_and_each_once() -> None:
    asked: list[int] = []

    def measure(number: int) -> Trial:
        asked.append(number)
        return measured(number)

    search(1000, lambda number: measure(number // 50), Wanted(keep=0.955, faster=1.55))
    assert len(asked) <= 22
    asked.clear()
    search(COUNT, measure, Wanted(keep=0.955, faster=1.55))
    assert len(asked) == len(set(asked))


def test_one_strength() -> None:
    assert search(1, lambda number: Trial(1.0, 1.2), Wanted(faster=1.1)) == Chosen(0, reached=True)
    assert search(1, lambda number: Trial(1.0, 1.2), Wanted(faster=1.3)) == Chosen(0, reached=False)


@pytest.mark.parametrize(("keep", "faster"), [(0.0, None), (1.2, None), (-1.0, None), (None, 0.0), (None, -2.0)])
def test_numbers_that_make_no_sense(keep: float | None, faster: float | None) -> None:
    with pytest.raises(BadConfig, match=r"`keep=` is a share|`faster=` must be a finite number above 0"):
        Wanted(keep, faster)
    with pytest.raises(BadConfig):
        Wanted(keep=float("nan"))
