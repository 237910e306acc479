"""Scores on cases small enough to work out by hand, and what is undefined."""

import math

import pytest

from firth import metrics
from firth.errors import BadInput


def test_labels_are_compared_by_name() -> None:
    assert metrics.accuracy([1, 0, 1], ["1", "0", "0"]) == pytest.approx(2 / 3)
    assert metrics.f1([1, 0], ["1", "1"]).rows["1"] == metrics.Row(0.5, 1.0, pytest.approx(2 / 3), 1)


def test_undefined_scores() -> None:
    assert metrics.matthews(["a", "a"], ["a", "a"]) == 0
    assert metrics.f1(["a"], ["b"]).rows["b"] == metrics.Row(0.0, 0.0, 0.0, 0)
    for figure in (
        metrics.accuracy([], []),
        metrics.pearson([1, 1], [1, 2]),
        metrics.spearman([1, 2], [3, 3]),
        metrics.pearson([1], [1]),
        metrics.roc_auc([True, True], [0.1, 0.2]),
        metrics.recall_at([[1]], [[]], k=1),
        metrics.best_f1([], [])[0],
    ):
        assert math.isnan(figure)


def test_unequal_lengths_and_unknown_labels_are_refused() -> None:
    with pytest.raises(BadInput, match="1 predictions for 2 examples"):
        metrics.f1(["a", "b"], ["a"])
    with pytest.raises(BadInput, match="'c' is not among the known labels"):
        metrics.confusion(["a"], ["c"], labels=["a", "b"])
    with pytest.raises(BadInput, match="Sentence 2 has 1 tokens but 2"):
        metrics.entity_f1([["O"], ["O"]], [["O"], ["O", "O"]], scheme="BIO")
    with pytest.raises(BadInput, match="Sentence 1"):
        metrics.segmentation([["ab"]], [["a", "c"]], vocabulary=[])


def test_thresholds_lie_between_scores_and_never_part_equal_ones() -> None:
    assert metrics.best_accuracy([True, True, False], [0.9, 0.5, 0.1]) == (1.0, pytest.approx(0.3))
    assert metrics.best_accuracy([True, False, False], [0.5, 0.5, 0.5]) == (pytest.approx(2 / 3), 1.5)
    assert metrics.best_f1([True, False], [0.5, 0.5]) == (pytest.approx(2 / 3), 0.5)


def test_rankings_with_several_relevant_items() -> None:
    ranked, relevant = [["a", "b", "c"], ["c", "b", "a"], ["a", "b", "c"]], [{"b", "c"}, {"c", "x"}, set[str]()]
    assert metrics.recall_at(ranked, relevant, k=2) == 0.5
    assert metrics.mean_reciprocal_rank(ranked, relevant) == pytest.approx((1 / 2 + 1) / 2)


@pytest.mark.parametrize(
    ("scheme", "tags", "found"),
    [
        ("BIO", "I-A B-A I-A B-A I-B O", [("A", 1, 3), ("A", 3, 4)]),
        ("BIOES", "B-A I-A E-A S-B B-A O E-A B-A I-A", [("A", 0, 3), ("B", 3, 4)]),
        ("BMES", "B E S B M E B", [("", 0, 2), ("", 2, 3), ("", 3, 6)]),
        ("IO", "I-A I-A I-B O I-B", [("A", 0, 2), ("B", 2, 3), ("B", 4, 5)]),
    ],
)
def test_entities(scheme: str, tags: str, found: list[tuple[str, int, int]]) -> None:
    assert metrics.entities(tags.split(), scheme) == found


@pytest.mark.parametrize("tag", ["E-A", "BI-A", "", "PER", "-A"])
def test_tags_outside_the_scheme_are_named(tag: str) -> None:
    with pytest.raises(BadInput, match=f"Tag '{tag}' does not belong to BIO"):
        metrics.entities(["O", tag], "BIO")


def test_entity_and_token_figures() -> None:
    gold, predicted = [["B-A", "I-A", "O", "B-B"]], [["B-A", "O", "O", "B-B"]]
    table = metrics.entity_f1(gold, predicted, scheme="BIO")
    assert (table.rows["A"].f1, table.rows["B"].f1, table.micro.f1, table.macro.f1) == (0, 1, 0.5, 0.5)
    assert metrics.token_accuracy(gold, predicted) == 0.75


@pytest.mark.parametrize(
    ("gold", "predicted", "em", "f1"),
    [
        ("The Beatles", "beatles.", 1, 1),
        ("a U.S. dollar", "us dollar", 1, 1),  # punctuation goes before the words are cut
        ("anthem", "an them", 0, 0),  # an article only as a word: 'them' against 'anthem'
        ("twenty-one", "twenty one", 0, 0),  # the hyphen glues: 'twentyone'
        ("“quoted”", "quoted", 0, 0),  # only ASCII punctuation goes
        ("in  the\tyear 1999", "in year\n1999", 1, 1),
        ("cat cat dog", "cat dog dog", 0, 2 / 3),  # words count as often as they stand
        ("café", "cafe", 0, 0),
        ("the a an", "", 1, 1),  # both are nothing
        ("5 km", "", 0, 0),
        ("A-the B", "athe b", 1, 1),  # the hyphen goes first, so 'athe' holds no article
        ("an apple a day", "apple day", 1, 1),
        ("one two three four", "two three", 0, 2 / 3),
    ],
)
def test_squad_rules(gold: str, predicted: str, em: float, f1: float) -> None:
    assert metrics.squad([[gold]], [predicted]) == {"em": em, "f1": pytest.approx(f1)}


def test_squad_takes_the_best_gold_and_parts_unanswerable_questions() -> None:
    golds = [["Paris", "the city of Paris"], [], ["x"], []]
    figures = metrics.squad(golds, ["city of paris", "", "", "Rome"])
    assert figures == {"em": 0.5, "f1": 0.5, "has_em": 0.5, "has_f1": 0.5, "no_em": 0.5, "no_f1": 0.5}


def test_null_threshold() -> None:
    """Answering the two surest keeps one right answer and the one rightly left open; the tie stays together."""
    doubt, scores, answerable = [0.1, 0.2, 0.7, 0.7, 0.9], [1, 0.5, 1, 0, 0], [1, 1, 1, 0, 0]
    best = metrics.null_threshold(doubt, scores, answerable=answerable, answered=[1, 1, 1, 1, 1])
    assert best == (pytest.approx((1 + 0.5 + 2) / 5), 0.2)
    assert metrics.null_threshold([0.3], [0], answerable=[0], answered=[1]) == (1.0, pytest.approx(-0.7))


@pytest.mark.parametrize(
    ("gold", "predicted", "em", "f1"),
    [
        ("《红楼梦》", "红楼梦", 1, 1),  # punctuation does not count
        (
            "北京大学",
            "北京的大学",
            0,
            2 * (2 / 5) * (2 / 4) / (2 / 5 + 2 / 4),
        ),  # the longest common run, not all overlap
        ("Windows 95系统", "windows 95", 0, 2 * 1 * (2 / 4) / (1 + 2 / 4)),  # words outside Chinese are one token each
        ("1,000.5元", "1,000.5", 0, 2 * 1 * 0.5 / 1.5),
        ("上海", "北京", 0, 0),
        ("上海", "", 0, 0),
    ],
)
def test_cmrc_rules(gold: str, predicted: str, em: float, f1: float) -> None:
    assert metrics.cmrc([["别的", gold]], [predicted]) == {"em": em, "f1": pytest.approx(f1)}


def test_segmentation_by_hand() -> None:
    found = metrics.segmentation([["中国", "人民", "好"]], [["中", "国", "人民", "好"]], vocabulary={"人民", "中国"})
    assert found.words == metrics.Row(0.5, pytest.approx(2 / 3), pytest.approx(4 / 7), 3)
    assert (found.oov_rate, found.oov_recall, found.iv_recall) == (pytest.approx(1 / 3), 1.0, 0.5)
    assert math.isnan(metrics.segmentation([["a"]], [["a"]], vocabulary={"a"}).oov_recall)
