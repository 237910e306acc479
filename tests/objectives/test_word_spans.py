"""Random sums and random places: every possibility is equally likely, and nothing overlaps."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from firth import rng
from firth.objectives.word_spans import PackText, composition, place_spans, rounded

MANY = 6000
KEY = rng.key("spans")


def test_every_sum_is_equally_likely() -> None:
    rows = np.arange(MANY)
    parts, owner = composition(np.full(MANY, 6), np.full(MANY, 3), rows, key=KEY, purpose=0)
    assert owner.tolist() == np.repeat(rows, 3).tolist()
    counts = Counter(map(tuple, parts.reshape(MANY, 3).tolist()))
    assert len(counts) == 10  # ways to write 6 as an ordered sum of three numbers
    assert all(sum(found) == 6 and min(found) > 0 for found in counts)
    assert max(counts.values()) < 1.25 * min(counts.values())


def test_numbers_of_parts_may_differ() -> None:
    totals, parts = np.array([5, 0, 1, 7]), np.array([2, 0, 1, 7])
    found, owner = composition(totals, parts, np.arange(4), key=KEY, purpose=0)
    assert np.bincount(owner, minlength=4).tolist() == parts.tolist()
    assert np.bincount(owner, found, minlength=4).tolist() == totals.tolist()


def text_of_words(num_sequences: int, num_words: int) -> PackText:
    """Sequences of words of two tokens each."""
    num_tokens = num_sequences * num_words * 2
    return PackText(
        ids_T=np.arange(num_tokens),
        sequence_T=np.repeat(np.arange(num_sequences), 2 * num_words),
        word_starts_T=np.arange(num_tokens) % 2 == 0,
        rows_B=np.arange(num_sequences),
    )


@pytest.mark.parametrize("min_gap", [0, 1])
def test_every_place_is_equally_likely(min_gap: int) -> None:
    """Two spans of 2 and 1 words among 6."""
    text = text_of_words(MANY, 6)
    counts_B = np.full(MANY, 2)
    spans = place_spans(text, np.tile([2, 1], MANY), counts_B, min_gap=min_gap, key=KEY, purpose=1)
    first = text.offsets_T[spans.first_J].reshape(MANY, 2)
    assert (spans.ends_J - spans.first_J).tolist() == [4, 2] * MANY
    assert spans.number_J.tolist() == [0, 1] * MANY
    assert not (first % 2).any()
    places = Counter(map(tuple, (first // 2).tolist()))
    possible = {(a, b) for a, b in combinations(range(6), 2) if b >= a + 2 + min_gap}
    assert set(places) == possible
    assert max(places.values()) < 1.3 * min(places.values())


def test_sequences_may_have_no_spans() -> None:
    text = text_of_words(3, 4)
    for min_gap in (0, 1):
        spans = place_spans(text, np.array([4, 1]), np.array([0, 1, 1]), min_gap=min_gap, key=KEY, purpose=1)
        assert spans.sequence_J.tolist() == [1, 2]
        assert (spans.first_J[0], spans.ends_J[0]) == (8, 16)
        assert 16 <= spans.first_J[1] < spans.ends_J[1] <= 24


def test_rounding_keeps_the_mean() -> None:
    values = rounded(np.full(MANY, 2.3), np.arange(MANY), key=KEY, purpose=2)
    assert set(values.tolist()) == {2, 3}
    assert abs(values.mean() - 2.3) < 0.02
