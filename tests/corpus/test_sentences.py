"""Sentences of English, Chinese and both."""

import time

import pytest

from firth.corpus.sentences import split


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Dr. Smith paid $3.50. Why? Nobody knows!", ["Dr. Smith paid $3.50.", "Why?", "Nobody knows!"]),
        ('"Yes." She left.', ['"Yes."', "She left."]),
        ("Well… I see. Très bien.", ["Well… I see.", "Très bien."]),
        ("你好！我走了。真的？是；对……好", ["你好！", "我走了。", "真的？", "是；", "对……", "好"]),
        ("他说：“走吧。”她笑了（真的！）。", ["他说：“走吧。”", "她笑了（真的！）。"]),
        ("「好！」『是。』】完", ["「好！」", "『是。』】", "完"]),
        ("“好！”，他说。", ["“好！”，他说。"]),
        ("《你好！！》很好看。", ["《你好！！》很好看。"]),
        ('他说:"你好。"然后走了。"走吧。"她说', ['他说:"你好。"', "然后走了。", '"走吧。"', "她说"]),
        ("你好!!今天怎么样?3.5元。", ["你好!!", "今天怎么样?", "3.5元。"]),
        (
            "我读 Dr. Smith 的书。He likes it. 你好！It is 3.5 miles. Good.",
            ["我读 Dr. Smith 的书。", "He likes it.", "你好！", "It is 3.5 miles.", "Good."],
        ),
        ("こんにちは。はい", ["こんにちは。", "はい"]),
        ("  no end ", ["no end"]),
        (" ", []),
        ("", []),
    ],
)
def test_split(text, sentences):
    assert split(text) == sentences


@pytest.mark.parametrize("piece", ["。", "！》", "！”，", "！）", ".", "中.", '中。"', "中", "word ", "A. ", "…", "（"])
def test_time_is_linear_whatever_the_line(piece):
    text = "中" + piece * (200_000 // len(piece))
    start = time.process_time()
    assert "".join(split(text)).replace(" ", "") == text.replace(" ", "")
    assert time.process_time() - start < 2
