"""The labelled sets: enough rows, legal formats, nothing twice, labels that fit their texts."""

import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from firth import samples
from firth.errors import BadConfig

LANGUAGES = pytest.mark.parametrize("language", samples.LANGUAGES)
CHINESE = re.compile(r"[\u4e00-\u9fff]")


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True))


def sentences(path: Path) -> list[list[list[str]]]:
    blocks = path.read_text("utf-8").rstrip("\n").split("\n\n")
    return [[line.split(" ") for line in block.split("\n")] for block in blocks]


def questions(language: str) -> list[tuple[str, dict[str, Any]]]:
    data = json.loads(samples.labelled("answers", language).read_text("utf-8"))["data"]
    return [(p["context"], qa) for article in data for p in article["paragraphs"] for qa in p["qas"]]


@LANGUAGES
def test_classify_is_balanced_and_has_no_row_twice(language: str) -> None:
    rows = table(samples.labelled("classify", language))
    assert len(rows) == 480
    assert all(list(row) == ["text", "label"] and all(row.values()) for row in rows)
    assert len({row["text"] for row in rows}) == len(rows)
    counts = Counter(row["label"] for row in rows)
    assert set(counts) == ({"positive", "negative"} if language == "en" else {"正面", "负面"})
    assert max(counts.values()) == min(counts.values())
    # A split by position keeps the balance.
    assert 0.4 < sum(row["label"] == rows[0]["label"] for row in rows[:30]) / 30 < 0.6


@LANGUAGES
def test_topics_are_balanced_and_do_not_name_themselves(language: str) -> None:
    rows = table(samples.labelled("topics", language))
    assert len({row["text"] for row in rows}) == len(rows) == 480
    counts = Counter(row["label"] for row in rows)
    assert len(counts) == 6
    assert set(counts.values()) == {80}
    assert [row for row in rows if row["label"] in row["text"].lower().replace(".", "").split()] == []


@LANGUAGES
def test_pairs_spread_over_the_whole_range(language: str) -> None:
    rows = table(samples.labelled("pairs", language))
    assert len(rows) >= 66
    assert all(list(row) == ["first", "second", "score"] and all(row.values()) for row in rows)
    assert len({frozenset((row["first"], row["second"])) for row in rows}) == len(rows)
    assert all(row["first"] != row["second"] and re.fullmatch(r"[0-5]\.\d", row["score"]) for row in rows)
    scores = [float(row["score"]) for row in rows]
    assert (min(scores), max(scores)) == (0, 5)
    assert all(sum(low <= score <= low + 1 for score in scores) >= 8 for low in range(5))


@LANGUAGES
def test_entities_are_legal_bio(language: str) -> None:
    found = sentences(samples.labelled("entities", language))
    assert len(found) == 420
    assert len({tuple(token for token, _ in sentence) for sentence in found}) == len(found)
    starts: Counter[str] = Counter()
    for sentence in found:
        before = "O"
        for token, tag in sentence:
            assert token
            assert re.fullmatch(r"O|[BI]-(PER|ORG|LOC)", tag)
            assert not tag.startswith("I-") or before[2:] == tag[2:], sentence
            starts[tag] += tag.startswith("B-")
            before = tag
    assert all(starts[f"B-{kind}"] >= 140 for kind in ("PER", "ORG", "LOC"))
    if language == "zh":
        assert all(len(token) == 1 for sentence in found for token, _ in sentence)


@LANGUAGES
def test_answers_lie_where_they_say(language: str) -> None:
    found = questions(language)
    assert len(found) >= 34
    assert len({context for context, _ in found}) >= 10
    assert len({qa["id"] for _, qa in found}) == len({qa["question"] for _, qa in found}) == len(found)
    assert sum(qa["is_impossible"] for _, qa in found) >= 8
    for context, qa in found:
        assert qa["is_impossible"] is not bool(qa["answers"])
        for answer in qa["answers"]:
            start, text = answer["answer_start"], answer["text"]
            assert text
            assert context[start : start + len(text)] == text
            edges = context[max(start - 1, 0) : start] + context[start + len(text) : start + len(text) + 1]
            assert language == "zh" or not any(map(str.isalnum, edges)), text


@pytest.mark.parametrize("task", samples.TASKS)
def test_chinese_files_are_chinese_and_english_ones_are_not(task: str) -> None:
    chinese, english = (samples.labelled(task, language).read_text("utf-8") for language in ("zh", "en"))
    assert len(CHINESE.findall(chinese)) >= 700
    assert not CHINESE.search(english)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadConfig, match=r"'clasify'.*topics, classify, pairs, entities, answers"):
        samples.labelled("clasify", "en")
    with pytest.raises(BadConfig, match=r"'fr'.*en, zh"):
        samples.labelled("classify", "fr")
