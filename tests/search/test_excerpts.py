"""Parts of passages: whole words around those of the question, within the columns of a line."""

from firth.data.spoken import words_of
from firth.search.excerpts import COLUMNS, ELLIPSIS, excerpt

LONG = " ".join(f"word{i} and more, (as said) before." for i in range(40))
CHINESE = "江南的雨季从六月中旬开始，正好是梅子黄熟的时候，所以人们叫它梅雨。" * 4


def inside(shown: str) -> str:
    """An excerpt without its ellipses."""
    return shown.removeprefix(f"{ELLIPSIS} ").removesuffix(f" {ELLIPSIS}")


def test_a_text_that_fits_is_whole() -> None:
    assert excerpt("Two words.", {"words": 1.0}) == "Two words."
    assert excerpt("字" * (COLUMNS // 2), {}) == "字" * (COLUMNS // 2)


def test_without_a_word_of_the_question_the_beginning_is_shown() -> None:
    shown = excerpt(LONG, {"absent": 3.0})
    assert shown.endswith(f" {ELLIPSIS}")
    assert LONG.startswith(inside(shown))
    assert COLUMNS - 15 < len(inside(shown)) <= COLUMNS
    assert words_of(inside(shown)) == words_of(LONG)[: len(words_of(inside(shown)))]


def test_a_word_of_the_question_is_shown_with_text_on_both_sides() -> None:
    shown = excerpt(LONG, {"word20": 1.0})
    assert shown.startswith(f"{ELLIPSIS} ")
    assert shown.endswith(f" {ELLIPSIS}")
    assert inside(shown) in LONG
    assert 10 < inside(shown).index("word20") < COLUMNS - 20
    assert set(words_of(inside(shown))) <= set(words_of(LONG))


def test_one_rare_word_weighs_more_than_some_that_are_everywhere() -> None:
    shown = excerpt(LONG, {"and": 1.0, "more": 1.0, "word33": 1.5})
    assert "word33" in shown


def test_a_word_that_says_little_does_not_move_the_excerpt() -> None:
    assert "word33" in excerpt(LONG, {"word33": 0.4})
    assert excerpt(LONG, {"word33": 0.4, "absent": 3.0}).startswith("word0 ")


def test_the_end_of_a_text_fills_the_line() -> None:
    shown = excerpt(f"{LONG} End.", {"end": 1.0})
    assert shown.endswith("before. End.")
    assert len(inside(shown)) > COLUMNS - 15


def test_a_chinese_character_takes_two_columns_and_words_stay_whole() -> None:
    shown = excerpt(CHINESE, {"梅雨": 1.0})
    assert "梅雨" in shown
    assert COLUMNS // 2 - 6 < len(inside(shown)) <= COLUMNS // 2
    assert set(words_of(inside(shown))) <= set(words_of(CHINESE))


def test_text_without_borders_is_cut_anywhere() -> None:
    assert excerpt("x" * 500, {}) == f"{'x' * COLUMNS} {ELLIPSIS}"
    assert excerpt("!" * 500, {}) == f"{'!' * COLUMNS} {ELLIPSIS}"
    assert excerpt(f"see {'x' * 500} there", {"there": 1.0}).endswith("there")
