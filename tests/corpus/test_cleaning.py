"""Clean lines, and duplicates found in little memory."""

import unicodedata
from collections import Counter

import numpy as np
import pytest

from firth.corpus import cleaning
from firth.corpus.cleaning import MIN_LINE_BYTES, Seen, clean_documents, clean_line, drop_duplicates
from firth.types import Document

LONG = "A line that is long enough to count as a duplicate when it comes again: {}."


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("  two\t words\u00a0\u3000here \x0b\x85", "two words here"),
        ("cafe\u0301", "café"),
        ("a\x00b\x07c\x7f\u200b\ufeffd\u00ad\u202ee\ud800", "abcde"),
        ("\u200b \u200b", ""),
        ("नमस्\u200dते می\u200cخواهم", "नमस्\u200dते می\u200cخواهم"),
        ("a \u200b b", "a b"),
        ("👩\u200d👩\u200d👧 ❤\ufe0f", "👩\u200d👩\u200d👧 ❤\ufe0f"),
    ],
)
def test_clean_line(raw, clean):
    assert clean_line(raw) == clean
    assert clean_line(clean) == clean


def test_every_control_and_format_character_is_removed_but_those_scripts_need():
    kept = {
        chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) in ("Cc", "Cf", "Cs") and clean_line(chr(c))
    }
    assert {"\u200c", "\u200d", "\u0600", "\u180e"} <= kept
    assert all(
        unicodedata.category(c) == "Cf" and not unicodedata.bidirectional(c).endswith(("E", "O", "I")) for c in kept
    )
    assert len(kept) < 50


def test_mojibake_is_repaired_on_request():
    pytest.importorskip("ftfy")
    document = Document(("It was the cafÃ© of FranÃ§ois.",))
    assert next(clean_documents([document], repair=True)).lines == ("It was the café of François.",)
    assert next(clean_documents([document])).lines == document.lines


def test_documents_without_text_are_left_out():
    documents = [Document(("\u200b", "  ")), Document((" a ", "\x00"), "here")]
    assert list(clean_documents(documents)) == [Document(("a",), "here")]


def dedupe(*documents):
    tally = Counter()
    return [d.lines for d in drop_duplicates(map(Document, documents), tally=tally)], tally


def test_long_lines_go_once_and_short_ones_stay():
    first, second = LONG.format(1), LONG.format(2)
    kept, tally = dedupe((first, "Yes."), (second, "Yes.", first), ("Yes.", "No.", first, first))
    assert kept == [(first, "Yes."), (second, "Yes."), ("Yes.", "No.")]
    assert tally == {"documents_read": 3, "lines_read": 9, "duplicate_lines": 3}


def test_the_length_that_counts_is_in_bytes():
    chinese = "这一行有二十个汉字所以够长可以算作重复行"
    assert len(chinese.encode()) == MIN_LINE_BYTES
    kept, _ = dedupe((chinese, "a"), ("b", chinese), ("c", chinese[1:]), ("d", chinese[1:]))
    assert kept == [(chinese, "a"), ("b",), ("c", chinese[1:]), ("d", chinese[1:])]


def test_documents_go_once_whatever_their_length():
    line = LONG.format(1)
    kept, tally = dedupe(
        ("Yes.",), ("Yes.",), ("Yes.", "No."), ("Yes.", "No."), (line,), (line,), ("a", line), (line, line)
    )
    assert kept == [("Yes.",), ("Yes.", "No."), (line,), ("a",)]
    assert tally["duplicate_documents"] == 3
    assert tally["duplicate_lines"] == 3
    assert tally["emptied_documents"] == 1


def test_duplicates_are_found_across_batches(monkeypatch):
    monkeypatch.setattr(cleaning, "_BATCH", 100)
    documents = [(LONG.format(i % 40), f"{i}") for i in range(120)]
    kept, tally = dedupe(*documents)
    assert kept == documents[:40] + [(f"{i}",) for i in range(40, 120)]
    assert tally["duplicate_lines"] == 80


def test_seen_agrees_with_a_set(monkeypatch):
    monkeypatch.setattr(Seen, "MAX_RUN", 300)
    seen, known = Seen(), set()
    for step in range(60):
        keys = np.random.default_rng(step).integers(0, 3000, 50).astype(np.uint64)
        expected = [not (k in known or known.add(k)) for k in keys.tolist()]
        assert seen.first_times(keys).tolist() == expected
    assert len(seen) == len(known)
    assert max(map(len, seen.runs)) <= 300
    assert len(seen.runs) < 30


def test_a_million_fingerprints_take_eight_megabytes():
    seen = Seen()
    for block in range(100):
        assert seen.first_times(np.arange(block * 10_000, (block + 1) * 10_000).astype(np.uint64)).all()
    assert seen.nbytes == 8_000_000
    assert len(seen.runs) < 12
    assert not seen.first_times(np.arange(0, 1_000_000, 999).astype(np.uint64)).any()
