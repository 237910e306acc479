"""The cloze sentences of bench/: two hundred a language, one gap each, answers of one word or one character."""

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
KINDS = {"fact", "grammar", "sense", "phrase"}
ANSWER = {"en": re.compile(r"[a-z]+"), "zh": re.compile(r"[\u4e00-\u9fff]")}
LANGUAGES = pytest.mark.parametrize("language", ANSWER)


def rows(language: str) -> list[dict[str, str]]:
    with (BENCH / f"cloze.{language}.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True))


@LANGUAGES
def test_two_hundred_rows_of_three_columns(language: str) -> None:
    assert len(rows(language)) == 200
    assert all(list(row) == ["kind", "text", "answers"] and all(row.values()) for row in rows(language))


@LANGUAGES
def test_kinds_are_known_and_each_has_enough_rows(language: str) -> None:
    counts = Counter(row["kind"] for row in rows(language))
    assert counts.keys() == KINDS
    assert min(counts.values()) >= 40


@LANGUAGES
def test_a_text_has_one_mask_and_comes_once(language: str) -> None:
    texts = [row["text"] for row in rows(language)]
    assert [text for text in texts if text.count("[MASK]") != 1 or text != text.strip()] == []
    assert [text for text, count in Counter(texts).items() if count > 1] == []


@LANGUAGES
def test_an_answer_is_one_word_or_one_character_and_comes_once(language: str) -> None:
    for row in rows(language):
        answers = row["answers"].split("|")
        assert [answer for answer in answers if not ANSWER[language].fullmatch(answer)] == [], row["text"]
        assert len(set(answers)) == len(answers), row["text"]


def test_english_masks_stand_alone_and_chinese_texts_have_chinese_punctuation() -> None:
    for row in rows("en"):
        before, after = row["text"].split("[MASK]")
        assert not before or before[-1] == " ", row["text"]
        assert re.match(r"[ .,;:!?]", after), row["text"]
    for row in rows("zh"):
        assert not re.search(r"[\s,.;:!?\"'A-Za-z0-9]", row["text"].replace("[MASK]", "")), row["text"]
