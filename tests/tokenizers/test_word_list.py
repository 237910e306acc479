"""Whole words as tokens, and fastText's words with their n-grams."""

import json
from pathlib import Path

import fasttext
import numpy as np
import pytest

from firth import tokenizers
from firth.errors import BadConfig, BadInput, Damaged
from firth.tokenizers import subwords
from firth.tokenizers.subwords import Subwords, ngram_hashes
from firth.tokenizers.vocab import SPECIALS
from firth.tokenizers.word_list import Words

TEXTS = ["The cat's hat, the CAT.", "语言模型预测下一个词", "naïve cafe\u0301 the", "the 语言 cat"]


def made(**changes: object) -> Words:
    return Words.train(iter(TEXTS), Words.Config(**{"min_count": 1, **changes}))  # type: ignore[arg-type]


def test_english_by_punctuation_and_chinese_by_segments() -> None:
    words = made()
    assert words.words("The cat's hat.") == ["the", "cat", "'", "s", "hat", "."]
    assert words.words("语言模型预测") == ["语言", "模型", "预测"]
    assert words.words("cafe\u0301 naïve_x") == ["cafe\u0301", "naïve", "_", "x"]
    assert words.words("GPT语言2模型") == ["gpt", "语言", "2", "模型"]


def test_by_count_then_by_code_point() -> None:
    words = made()
    assert words.vocab.tokens[: len(SPECIALS) + 2] == (*SPECIALS, "the", "cat")
    assert words.counts[5:7].tolist() == [4, 3]
    assert list(words.counts[5:]) == sorted(words.counts[5:], reverse=True)
    assert made(vocab_size=7).vocab.tokens[5:] == ("the", "cat")
    assert made(min_count=2).vocab.tokens[5:] == ("the", "cat", "语言")


def test_case_and_spaces() -> None:
    assert "CAT" in made(lowercase=False).vocab.ids
    assert made(split="spaces").words("The cat's hat, 语言模型") == ["the", "cat's", "hat,", "语言模型"]


def test_fewer_words_by_a_higher_count() -> None:
    words = made()
    fewer, new = words.at_least(3)
    assert fewer.vocab.tokens[5:] == ("the", "cat")
    old = words.ids_batch(["the cat hat 语言"])[0]
    assert new[old].tolist() == [5, 6, 1, 1]
    assert new[:5].tolist() == list(range(5))


def test_a_folder_is_known_by_its_class(tmp_path: Path) -> None:
    words = made()
    assert words.save(tmp_path) == ("tokenizer_config.json", "vocab.txt")
    again = tokenizers.load(tmp_path)
    assert isinstance(again, Words)
    assert again.counts.tolist() == words.counts.tolist()
    (tmp_path / "vocab.txt").write_text("the\n")
    with pytest.raises(Damaged, match=r"vocab\.txt"):
        tokenizers.load(tmp_path)
    (tmp_path / "vocab.txt").write_text("the\t1\n")
    with pytest.raises(Damaged, match="does not begin with"):
        tokenizers.load(tmp_path)


def test_nothing_left_is_said() -> None:
    with pytest.raises(BadInput, match="occurs 9 times"):
        made(min_count=9)
    with pytest.raises(BadConfig, match="min_count"):
        Words.Config(min_count=0)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> "fasttext.FastText._FastText":
    """The fasttext program's own idea of parts."""
    path = tmp_path_factory.mktemp("fasttext") / "text.txt"
    path.write_text("the frog 青蛙 在 池塘 naïve\n" * 20)
    return fasttext.train_unsupervised(str(path), dim=2, bucket=1000, minCount=1, epoch=1, verbose=0, thread=1)


@pytest.mark.parametrize("word", ["the", "frog", "青蛙", "池塘里", "naïve", "x", "日", "unseen", "👩‍🚀"])
def test_parts_are_those_of_the_fasttext_program(program: "fasttext.FastText._FastText", word: str) -> None:
    listed = [w for w in program.get_words() if w != "</s>"]
    words = Subwords.of(["</s>", *listed], Subwords.Config(num_buckets=1000, lowercase=False))
    order = {i: program.get_word_id(token) for i, token in enumerate(words.vocab.tokens[5:], 5)}
    _, theirs = program.get_subwords(word)
    ours = [order.get(part, part - len(words.vocab) + len(order)) for part in words.word_parts(word)]
    assert ours == theirs.tolist()


def test_n_grams_of_words_begin_at_their_first() -> None:
    config = Subwords.Config(min_count=1, max_ngram=0, word_ngrams=3, num_buckets=50)
    words = Subwords.train(iter(TEXTS), config)
    encoding = words.encode("the cat zebra")
    assert encoding.part_sizes is not None
    assert encoding.part_sizes.tolist() == [1 + 2, 1 + 1, 0]
    assert encoding.parts is not None
    assert ((encoding.parts < len(words.vocab)) | (encoding.parts < words.num_rows)).all()
    first, sizes = encoding.parts_between(1, 3)
    assert first.tolist() == encoding.parts[3:5].tolist()
    assert sizes.tolist() == [2, 0]


def test_settings_of_parts_make_sense(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="num_buckets"):
        Subwords.Config(num_buckets=0)
    Subwords.of(["a"], Subwords.Config(word_ngrams=2, num_buckets=9)).save(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "FirthSubwords"
    assert tokenizers.load(tmp_path).config.word_ngrams == 2  # type: ignore[attr-defined]
    assert len(ngram_hashes("ab", 1, 4)) == len(["<a", "<ab", "<ab>", "a", "ab", "ab>", "b", "b>"])
    assert np.array_equal(ngram_hashes("", 3, 6), [])


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server reads whatever clients send: long forms are not kept, and a full memory forgets."""
    words = Words.of(["the", "cat", "x" * 100], Words.Config())
    asked = [" ".join(f"w{i}" for i in range(50)), "y" * 5000, "The cat " + "X" * 100]
    first = words.ids_batch(asked)
    assert first[2] == [words.vocab.ids[token] for token in ("the", "cat", "x" * 100)]
    assert max(map(len, words._id_cache)) <= 40
    monkeypatch.setattr(type(words._id_cache), "MOST", 10)
    assert words.ids_batch(asked) == first
    words.ids_batch(["a b c d e f g h i j k l"])
    assert len(words._id_cache) <= 10
    assert "l" in words._id_cache


def test_remembered_parts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    words = Subwords.of(["the"], Subwords.Config(num_buckets=100))
    long = words.word_parts("y" * 5000)
    assert long == words.made_parts("y" * 5000)
    assert not words._parts_cache
    monkeypatch.setattr(subwords, "_MOST_CHARACTERS", 30)
    for i in range(1000, 1100):
        assert words.word_parts(f"w{i}") == words.made_parts(f"w{i}")
        assert sum(map(len, words._parts_cache)) <= 40
    assert words._parts_cache
