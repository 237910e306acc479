"""Chance is a pure function of its key and counters."""

import numpy as np
import pytest

from firth import rng

KEY = rng.key("test", 1)


def test_keys_tell_parts_and_types_apart() -> None:
    keys = [rng.key(*parts) for parts in ((1,), (2,), ("1",), (1, 2), (12,), ("a", "b"), ("ab",), ())]
    assert len(set(keys)) == len(keys)
    assert rng.key(1, "mask", 0) == np.uint64(0xB28841DAC4594DB5)  # the data of old runs rest on this number


def test_an_epoch_that_is_not_fresh_has_the_key_of_the_first() -> None:
    assert rng.epoch_key(1, "mask", 3, fresh=True) == rng.key(1, "mask", 3)
    assert rng.epoch_key(1, "mask", 3, fresh=False) == rng.key(1, "mask", 0)


def test_a_draw_does_not_depend_on_what_is_drawn_with_it() -> None:
    whole = rng.bits(KEY, np.arange(100)[:, None], np.arange(50))
    assert whole.shape == (100, 50)
    assert whole[17, 31] == rng.bits(KEY, 17, 31)
    assert np.array_equal(whole[3:9, 4], rng.bits(KEY, np.arange(3, 9), 4))
    assert len(np.unique(whole)) == whole.size


def test_other_keys_and_swapped_counters_give_other_draws() -> None:
    numbers = np.arange(1000)
    assert not np.isin(rng.bits(KEY, numbers), rng.bits(rng.key("test", 2), numbers)).any()
    assert (rng.bits(KEY, numbers, numbers + 1) != rng.bits(KEY, numbers + 1, numbers)).all()
    assert (rng.bits(KEY, numbers) != rng.bits(KEY, numbers, 0)).all()


def test_uniform_is_uniform() -> None:
    draws = rng.uniform(KEY, np.arange(200_000))
    assert draws.min() >= 0
    assert draws.max() < 1
    counts = np.bincount((draws * 20).astype(int), minlength=20)
    chi_square = ((counts - 10_000) ** 2 / 10_000).sum()
    assert chi_square < 43.8  # 0.1 % of 19 degrees of freedom
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.01
    planes = rng.uniform(KEY, np.arange(400)[:, None], np.arange(400))
    assert abs(np.corrcoef(planes[:, :-1].ravel(), planes[:, 1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(planes[:-1].ravel(), planes[1:].ravel())[0, 1]) < 0.01


@pytest.mark.parametrize("limit", [1, 7, 30_522])
def test_below_reaches_every_number_and_no_other(limit: int) -> None:
    draws = rng.below(KEY, limit, np.arange(400_000))
    assert (draws.min(), draws.max()) == (0, limit - 1)
    assert len(np.unique(draws)) == limit


def test_below_takes_an_array_of_limits() -> None:
    limits = np.array([1, 2, 1000])
    assert (rng.below(KEY, limits, np.arange(5000)[:, None]).max(0) == limits - 1).all()


def test_permutations() -> None:
    order = rng.permutation(KEY, 1000)
    assert sorted(order.tolist()) == list(range(1000))
    assert np.array_equal(order, rng.permutation(KEY, 1000))
    assert not np.array_equal(order, rng.permutation(rng.key("other"), 1000))
    assert abs(np.corrcoef(order, np.arange(1000))[0, 1]) < 0.1
    assert rng.permutation(KEY, 0).tolist() == []
