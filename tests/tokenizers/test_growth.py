"""New tokens for a domain: which words are taken, and that old ids and old text stay as they were."""

from pathlib import Path

import numpy as np
import pytest

from firth.errors import BadConfig, Unsupported
from firth.tokenizers.growth import _chinese_words, grow
from firth.tokenizers.wordpiece import WordPiece
from firth.tokenizers.wordpiece_folder import Added

LAW = ["被告人应当承担民事责任，原告提起诉讼。"] * 6 + [
    "The PLAINTIFF filed a writ; the plaintiff's writ was void."
] * 6


@pytest.fixture
def grown(tokenizer: WordPiece) -> WordPiece:
    return grow(tokenizer, LAW, count=6, min_count=3)


def test_words_that_save_the_most_tokens_come_in(tokenizer: WordPiece, grown: WordPiece) -> None:
    new = grown.vocab.tokens[len(tokenizer.vocab) :]
    assert "plaintiff" in new
    assert "民事责任" in new
    assert all(len(word) > 1 for word in new)
    kinds = [any("\u4e00" <= c <= "\u9fff" for c in word) for word in new]
    assert kinds == sorted(kinds)  # pieces first, then what is looked for in the text
    gains = [len(tokenizer.encode(word).ids) - 1 for word in new]
    assert min(gains) >= 1


def test_old_ids_stay_and_text_gets_shorter(tokenizer: WordPiece, grown: WordPiece) -> None:
    assert grown.vocab.tokens[: len(tokenizer.vocab)] == tokenizer.vocab.tokens
    assert grown.vocab.specials == tokenizer.vocab.specials
    untouched = "The quick brown fox, 一只狐狸。"
    assert np.array_equal(grown.encode(untouched).ids, tokenizer.encode(untouched).ids)
    for text in LAW:
        before, after = tokenizer.encode(text), grown.encode(text)
        assert len(after) < len(before)
        assert grown.ids_batch([text])[0] == after.ids.tolist()
    assert grown.encode("plaintiffs").tokens[0] == "plaintiff"


def test_offsets_and_word_starts_of_new_tokens(grown: WordPiece) -> None:
    text = "由被告承担民事责任, the plaintiff."
    encoding = grown.encode(text)
    new = [word for word in grown.vocab.tokens[-6:] if word in text]
    assert len(new) >= 2
    for word in new:
        place = encoding.tokens.index(word)
        start, end = encoding.offsets[place]
        assert text[start:end] == word
        assert encoding.word_starts[place]
    assert np.array_equal(grown.word_starts_batch([text])[0][1], encoding.word_starts)


def test_a_folder_keeps_the_new_tokens(grown: WordPiece, tmp_path: Path) -> None:
    grown.save(tmp_path)
    again = WordPiece.load(tmp_path)
    assert again.fingerprint == grown.fingerprint
    assert [e.ids.tolist() for e in again.encode_batch(LAW)] == [e.ids.tolist() for e in grown.encode_batch(LAW)]
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in LAW[::6]:
        assert theirs(text, add_special_tokens=False)["input_ids"] == grown.encode(text).ids.tolist()


def test_growing_again(grown: WordPiece) -> None:
    more = grow(grown, ["宪法规定公民享有权利。"] * 5, count=2, min_count=5)
    assert more.vocab.tokens[: len(grown.vocab)] == grown.vocab.tokens
    assert len(more.vocab) == len(grown.vocab) + 2
    with pytest.raises(Unsupported, match="finds no place"):
        grow(grown, ["jurisprudence"] * 5, count=1, min_count=5)


def test_too_little_text(tokenizer: WordPiece) -> None:
    with pytest.raises(BadConfig, match=r"has only \d+ words .* use `add=\d+`"):
        grow(tokenizer, LAW, count=1000, min_count=3)


def test_chinese_words_are_the_segmenters() -> None:
    assert _chinese_words("研究生命的起源") == ["研究", "生命", "起源"]
    assert _chinese_words("使用GPU训练，模型") == ["使用", "训练", "模型"]
    assert _chinese_words("no Chinese") == []


def test_a_new_word_is_not_special(grown: WordPiece) -> None:
    added = [one for one in grown.rules.added if not one.special]
    assert added
    assert all(isinstance(one, Added) and grown.vocab.ids[one.token] not in grown.vocab.specials for one in added)
