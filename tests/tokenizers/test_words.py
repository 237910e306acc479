import sys
from itertools import pairwise

import numpy as np
import pytest

from firth.errors import Unsupported
from firth.tokenizers.segmentation import chinese_borders, has_chinese
from firth.tokenizers.vocab import SPECIALS, Vocab
from firth.tokenizers.wordpiece import WordPiece
from firth.tokenizers.wordpiece_folder import WordPieceRules

SENTENCE = "使用语言模型来预测下一个词的probability"
WORDS = ["使用", "语言", "模型", "来", "预测", "下", "一个", "词", "的", "probability"]


def words(text: str) -> list[str]:
    return [text[start:end].strip() for start, end in pairwise([*chinese_borders(text).tolist(), len(text)])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SENTENCE, WORDS),
        ("don't stop", ["don", "'", "t", "stop"]),
        ("预测 probability，语言模型 3.5", ["预测", "probability", "，", "语言", "模型", "3", ".", "5"]),
        ("语言\ud800模型", ["语言", "\ud800", "模型"]),
        ("", []),
        ("  ", []),
    ],
)
def test_borders_are_the_segmenters_in_chinese_and_spaces_and_punctuation_elsewhere(
    text: str, expected: list[str]
) -> None:
    assert (words(text) if expected else chinese_borders(text).tolist()) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("", False), ("abc é ， ひらがな 한국", False), ("a词", True), ("\U00020000", True)]
)
def test_has_chinese(text: str, expected: bool) -> None:
    assert has_chinese(text) is expected


@pytest.mark.parametrize("unknown", ["", "模", "使用语言模型来预测下一个词的"])
def test_tokens_start_words_where_borders_fall_on_their_left_edge(unknown: str) -> None:
    """Also where characters are unknown, so that tokens and characters cannot be matched by counting."""
    characters = sorted(set(SENTENCE) - set(unknown) - set("probability"))
    tokenizer = WordPiece(Vocab((*SPECIALS, *characters, "prob", "##ability")), WordPieceRules(True, True, True))
    expected = [len(word) > 0 and i == 0 for word in WORDS[:-1] for i in range(len(word))] + [True, False]
    encoding = tokenizer.encode(SENTENCE)
    assert encoding.word_starts.tolist() == expected
    texts = ["", SENTENCE, "plain prob", "语言", "模型"]  # a word must not reach over the end of a text
    for text, (ids, starts) in zip(texts, tokenizer.word_starts_batch(texts), strict=True):
        alone = tokenizer.encode(text)
        np.testing.assert_array_equal(ids, alone.ids)
        np.testing.assert_array_equal(starts, alone.word_starts)


def test_without_a_segmenter_each_character_is_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = WordPiece(Vocab((*SPECIALS, "语", "言")), WordPieceRules(True, True, True))
    monkeypatch.setattr("firth.tokenizers.wordpiece.has_segmenter", lambda: False)
    assert tokenizer.encode("语言").word_starts.tolist() == [True, True]


def test_text_without_chinese_needs_no_segmenter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rjieba", None)
    assert chinese_borders("no words").tolist() == [0, 3]
    with pytest.raises(Unsupported, match="pip install rjieba"):
        chinese_borders("语言")
