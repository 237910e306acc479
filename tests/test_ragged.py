"""Rows end to end: bounds, starts, owners and ranges."""

import numpy as np

from firth.ragged import bounds_of, owners_of, places_of, ranges, starts_of

SIZES = np.array([2, 0, 3])


def test_bounds_have_the_end_of_the_last_row() -> None:
    assert bounds_of(SIZES).tolist() == [0, 2, 2, 5]
    assert bounds_of([True, False, True]).tolist() == [0, 1, 1, 2]


def test_bounds_of_no_rows_are_whole_numbers() -> None:
    assert bounds_of([]).tolist() == [0]
    assert bounds_of([]).dtype == np.int64


def test_starts_owners_and_places_with_an_empty_row() -> None:
    assert starts_of(SIZES).tolist() == [0, 2, 2]
    assert owners_of(SIZES).tolist() == [0, 0, 2, 2, 2]
    assert places_of(SIZES).tolist() == [0, 1, 0, 1, 2]


def test_ranges_go_on_from_one_row_to_the_next() -> None:
    assert ranges(np.array([5, 1, 7]), np.array([7, 1, 8])).tolist() == [5, 6, 7]
