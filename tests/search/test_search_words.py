"""The words of an index: BM25 as its formula says, English and Chinese, from files."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from firth.data.spoken import words_of
from firth.search.words import K1, B, WordIndex, write_words

PASSAGES = [
    "Rain falls when warm air rises and cools. Rain fills the rivers.",
    "Glass is made of sand.",
    "Rivers end in the sea.",
    "雨水流进河里。",
    "!!!",
]


@pytest.fixture
def words(tmp_path: Path) -> WordIndex:
    write_words(tmp_path, PASSAGES)
    return WordIndex(tmp_path)


def bm25(question: str) -> list[float]:
    """The formula, passage by passage, over the most that the question can reach."""
    counted = [Counter(words_of(passage)) for passage in PASSAGES]
    lengths = [count.total() for count in counted]
    mean_length = sum(lengths) / len(lengths)
    asked = set(words_of(question))
    holders = {word: sum(word in count for count in counted) for word in asked}
    idf = {word: math.log(1 + (len(PASSAGES) - n + 0.5) / (n + 0.5)) for word, n in holders.items()}
    scores = []
    for count, length in zip(counted, lengths, strict=True):
        norm = K1 * (1 - B + B * length / mean_length)
        gains = [idf[word] * count[word] * (K1 + 1) / (count[word] + norm) for word in asked]
        scores.append(sum(gains) / sum(idf[word] * (K1 + 1) for word in asked))
    return scores


@pytest.mark.parametrize("question", ["Where does RAIN fall?", "the rivers and the sea", "河里的雨水", "nothing here"])
def test_scores_are_those_of_the_formula(words: WordIndex, question: str) -> None:
    np.testing.assert_allclose(words.scores(question), bm25(question), rtol=1e-5)


def test_a_question_without_words_has_no_scores(words: WordIndex) -> None:
    assert not words.scores("?!").any()


def test_passages_without_words_can_be_indexed(tmp_path: Path) -> None:
    write_words(tmp_path, ["!!!", "..."])
    np.testing.assert_array_equal(WordIndex(tmp_path).scores("rain"), [0.0, 0.0])


def test_a_word_counts_at_most_as_often_as_a_byte_holds(tmp_path: Path) -> None:
    write_words(tmp_path, ["rain " * 1000, "sun"])
    scores = WordIndex(tmp_path).scores("rain")
    assert 0 < scores[0] < 1
    assert scores[1] == 0
