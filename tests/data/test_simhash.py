"""SimHash: near pairs are those of comparing all with all; fingerprints are near where texts are."""

import json
from collections import Counter
from collections.abc import Callable
from difflib import SequenceMatcher
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth import rng, samples
from firth.data.near_texts import near_texts
from firth.data.simhash import distance, drop_near_duplicates, fingerprint, near_pairs
from firth.errors import BadConfig
from firth.types import Document


@pytest.mark.parametrize("within", [0, 1, 3, 7, 20])
def test_near_pairs_are_those_of_brute_force(within: int) -> None:
    key = rng.key("marks")
    centres = rng.bits(key, np.arange(12), 0)
    flips = [1 << int(b) for b in rng.below(key, 64, np.arange(400), 1)]
    marks = [int(centres[i % 12]) for i in range(80)]
    for place, flip in enumerate(flips):
        marks[place % 80] ^= flip if place % 80 > 20 else 0
    wanted = {(i, j, distance(marks[i], marks[j])) for i, j in combinations(range(80), 2)}
    wanted = {row for row in wanted if row[2] <= within}
    found = list(near_pairs(marks, within=within))
    assert len(found) == len(set(found))
    assert set(found) == wanted
    assert wanted


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_small_change_moves_few_bits(language: str) -> None:
    lines = [line for line in samples.prose(language).read_text("utf-8").splitlines() if len(line) > 40]
    longest = " ".join(lines[:12])
    changed = longest.replace(lines[5][:30], "", 1)
    other = " ".join(lines[12:24])
    assert 0 < distance(fingerprint(longest), fingerprint(changed)) < 14
    assert distance(fingerprint(longest), fingerprint(other)) > 18


def test_case_and_punctuation_do_not_count_but_order_does() -> None:
    text = "The frog sat by the pond, and sang."
    assert fingerprint(text) == fingerprint("the FROG sat by the pond and sang")
    assert fingerprint(text) != fingerprint("the pond sat by the frog and sang")
    assert fingerprint(text, shingle=1) == fingerprint("the pond sat by the frog and sang", shingle=1)
    assert fingerprint("...") == fingerprint("") == 0


def test_a_word_alone_is_its_own_hash() -> None:
    votes = fingerprint("frog")
    assert votes == fingerprint("frog frog frog", shingle=1)
    assert 10 < votes.bit_count() < 54


def test_distances_that_say_nothing_are_refused() -> None:
    with pytest.raises(BadConfig, match="0 to 31"):
        list(near_pairs([1, 2], within=32))


def test_streaming_keeps_the_first_of_each_near_group() -> None:
    lines = [line for line in samples.prose("en").read_text("utf-8").splitlines() if len(line) > 40][:30]
    texts = [*lines, *(f"{line} Indeed." for line in lines[:10]), *lines[5:8]]
    marks = [fingerprint(text) for text in texts]
    kept: list[int] = []
    for place, mark in enumerate(marks):
        if all(distance(mark, marks[other]) > 8 for other in kept):
            kept.append(place)
    tally = Counter[str]()
    documents = [Document((text,), str(place)) for place, text in enumerate(texts)]
    found = list(drop_near_duplicates(documents, within=8, tally=tally))
    assert [int(document.source) for document in found] == kept
    assert 0 < tally["near_duplicate_documents"] == len(texts) - len(kept)


def test_prepare_drops_near_duplicates_when_asked(tmp_path: Path, command: Callable[..., Any]) -> None:
    lines = [line for line in samples.prose("en").read_text("utf-8").splitlines() if len(line) > 40][:8]
    long = " ".join(lines)
    (tmp_path / "text.txt").write_text("\n\n".join([long, f"{long} Indeed.", *lines]), "utf-8")
    for near, kept in ((None, 10), (6, 9)):
        health = firth.prepare(
            tmp_path / "text.txt", out=tmp_path / f"data-{near}", tokenizer="words", min_count=1, processes=0,
            near_duplicates=near,
        )  # fmt: skip
        assert health["documents"] == kept
        assert health["near_duplicate_documents"] == 10 - kept
    options = ("--tokenizer", "words", "--min-count", 1, "--near-duplicates", 6)
    assert "1 near-duplicates" in command("prepare", tmp_path / "text.txt", "--out", tmp_path / "data", *options).out


def test_duplicates_through_the_command(tmp_path: Path, command: Callable[..., Any]) -> None:
    lines = [line for line in samples.prose("zh").read_text("utf-8").splitlines() if len(line) > 40][:6]
    long = "".join(lines)
    (tmp_path / "text.txt").write_text("\n".join([long, *lines, long + "好。"]), "utf-8")
    shown = command("duplicates", tmp_path / "text.txt", "--within", 6).out.splitlines()
    [pair] = json.loads(command("duplicates", tmp_path / "text.txt", "--within", 6, "--json").out)["pairs"]
    assert len(shown) == 3
    assert pair["first"].endswith("1")
    assert pair["second"].endswith("8")
    assert pair["second_text"] == long + "好。"
    assert f"{pair['alike']:.0%}" in shown[0]
    assert lines[0][:30] in shown[1]


NINETEEN = "the quick brown fox jumps over the lazy dog while two small grey cats watch from a very old"


def test_one_changed_word_of_a_short_line_is_found(tmp_path: Path, command: Callable[..., Any]) -> None:
    assert len(NINETEEN.split()) == 19
    changed = NINETEEN.replace("lazy", "sleepy")
    reordered = " ".join(reversed(NINETEEN.split()))
    (tmp_path / "lines.txt").write_text("\n".join([NINETEEN, "Another line of words.", changed, reordered]))
    shown = command("duplicates", tmp_path / "lines.txt").out.splitlines()
    assert [line.strip().partition("  ")[2] for line in shown[1:]] == [NINETEEN, changed]
    assert shown[0] == "95% of the words are the same"
    assert command("duplicates", tmp_path / "lines.txt", "--alike", 0.96).out == ""


def test_texts_between_short_and_long_are_found_whatever_their_lengths() -> None:
    words = [f"word{number}" for number in range(300)]
    for size in (20, 99, 100, 150, 199, 200, 201, 250):
        first = " ".join(words[:size])
        second = first.replace(f"word{size // 2} ", "")
        pairs = near_texts(["something else", first, second], within=12)
        assert [(pair.first, pair.second) for pair in pairs] == [(1, 2)], size
        assert pairs[0].alike == pytest.approx((size - 1) / size)


def test_near_texts_are_those_that_comparing_all_with_all_finds() -> None:
    key = rng.key("near texts")
    vocabulary = [f"w{number}" for number in range(12)]
    texts = []
    for row in range(60):
        length = 3 + int(rng.below(key, 8, row, 0))
        texts.append(" ".join(vocabulary[int(rng.below(key, 12, row, place + 1))] for place in range(length)))
    found = {(pair.first, pair.second) for pair in near_texts(texts, alike=0.7)}
    expected = set()
    for second in range(60):
        for first in range(second):
            one, other = texts[first].split(), texts[second].split()
            blocks = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
            if sum(block.size for block in blocks) >= 0.7 * max(len(one), len(other)):
                expected.add((first, second))
    assert expected
    assert found == expected


def test_keywords_through_the_command(command: Callable[..., Any]) -> None:
    rows = json.loads(command("keywords", samples.prose("en"), "--top", 4, "--json").out)["words"]
    assert [row["word"] for row in rows] == [
        line.split()[1] for line in command("keywords", samples.prose("en"), "--top", 4).out.splitlines()
    ]
    assert len(rows) == 4


def test_texts_without_words_are_like_nothing() -> None:
    marks = [fingerprint(text) for text in ("...", "the cat sat", "?!", "the cat sat")]
    assert list(near_pairs(marks, within=3)) == [(1, 3, 0)]
    documents = [Document((text,)) for text in ("...", "?!", "the cat sat", "the cat sat")]
    tally: Counter[str] = Counter()
    assert len(list(drop_near_duplicates(documents, within=3, tally=tally))) == 3
    assert tally["near_duplicate_documents"] == 1
