"""Words from tags, and scores as SIGHAN counts them."""

import numpy as np
import pytest

from firth.tasks import conll, segmenting


def sentence(words: str) -> conll.Sentence:
    tags = "".join(conll.segment_tags(len(word)) for word in words.split())
    text = words.replace(" ", "")
    return conll.Sentence((text,), tuple(tags), 0, tuple((i, i + 1) for i in range(len(text))))


def test_words_from_tags() -> None:
    gold = sentence("我们 在 图书馆")
    assert segmenting.words_of(gold, gold.gold) == ["我们", "在", "图书馆"]
    assert segmenting.words_of(conll.sentence(["BERT", "好"]), ("B", "E")) == ["BERT好"]
    assert segmenting.with_tags(conll.sentence(["New", "York"]), ("A", "N")) == "New/A York/N"


def test_scores_by_hand() -> None:
    gold, guess = [sentence("我们 在 图书馆")], [sentence("我们 在 图 书馆").gold]
    figures = segmenting.score(gold, guess, known=segmenting.hashes(["我们", "书馆"]))
    assert (figures["precision"], figures["recall"]) == (2 / 4, 2 / 3)
    assert (figures["oov_rate"], figures["oov_recall"], figures["iv_recall"]) == (2 / 3, 1 / 2, 1)
    assert "oov_recall" not in segmenting.score(gold, guess, known=np.empty(0, np.int64))


def test_known_words_are_recognised_by_their_hashes() -> None:
    known = segmenting.HashedWords(segmenting.hashes(["上海", "上海", "\ud800"]))
    assert len(known) == 2
    assert "上海" in known
    assert "北京" not in known
    with pytest.raises(TypeError, match="hashes"):
        list(known)


def test_a_model_of_pieces_reads_characters_one_by_one() -> None:
    seen = conll.spelled(sentence("１９９８年 GDP"))
    assert seen.texts == ("1 9 9 8 年 G D P",)
    assert [seen.texts[0][start:end] for start, end in seen.words] == list("1998年GDP")
    assert seen.gold == sentence("１９９８年 GDP").gold
    assert conll.spelled(conll.split("", unit="character")).texts == ("",)
