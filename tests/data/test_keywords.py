"""TextRank: PageRank equals a solved linear system; the words chosen are those in the middle of the text's links."""

from pathlib import Path

import numpy as np
import pytest

from firth import rng, words
from firth.data.keywords import DAMPING, keywords, rank
from firth.data.spoken import words_of
from firth.errors import BadConfig, BadInput


def test_rank_solves_the_equation() -> None:
    key, size = rng.key("links"), 30
    pairs = np.array(
        sorted({(min(a, b), max(a, b)) for a, b in rng.below(key, 25, np.arange(120)[:, None], [0, 1]) if a != b})
    )
    weights = 1 + rng.uniform(key, np.arange(len(pairs)), 2)
    matrix = np.zeros((size, size))
    matrix[pairs[:, 0], pairs[:, 1]] = matrix[pairs[:, 1], pairs[:, 0]] = weights
    totals = matrix.sum(1, keepdims=True)
    shares = np.where(totals > 0, matrix / np.maximum(totals, 1e-12), 1 / size)  # words 25 to 29 have no links
    wanted = np.linalg.solve(np.eye(size) - DAMPING * shares.T, np.full(size, (1 - DAMPING) / size))
    found = rank(size, pairs, weights)
    assert np.allclose(found, wanted, atol=1e-9)
    assert found.sum() == pytest.approx(1)


def test_words_of_two_languages() -> None:
    assert words_of("It's a well-known FACT_2, isn’t it?") == ["it's", "a", "well-known", "fact", "2", "isn’t", "it"]
    assert words_of("青蛙在池塘里，frogs sing。") == ["青蛙", "在", "池塘", "里", "frogs", "sing"]


def test_the_hub_of_a_text_comes_first() -> None:
    lines = ["The river feeds the mill.", "A river crosses the valley.", "In winter the river freezes.", "1984 and 42."]
    found = keywords(lines, top=3)
    assert found[0][0] == "river"
    assert len(found) == 3
    assert found[0][1] > found[1][1]
    chinese = ["青蛙喜欢池塘。", "池塘里有青蛙。", "青蛙在荷叶上唱歌。"]
    assert keywords(chinese, top=1)[0][0] == "青蛙"


def test_links_do_not_reach_over_lines_or_beyond_the_window() -> None:
    assert dict(keywords(["frogs sing", "bells ring"], window=2)) == pytest.approx(
        dict.fromkeys(["frogs", "sing", "bells", "ring"], 0.25)
    )
    near, far = keywords(["frogs crickets bells sing"], window=2), keywords(["frogs crickets bells sing"], window=4)
    assert dict(near)["crickets"] > dict(near)["frogs"]
    assert dict(far)["crickets"] == pytest.approx(dict(far)["frogs"])


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(BadInput, match=r"empty\.txt is empty; give it the text whose keywords to find\.$"):
        words.keywords(tmp_path / "empty.txt")


def test_a_text_without_content_is_refused() -> None:
    with pytest.raises(BadInput, match="no words"):
        keywords(["the of and 1984 的"])
    with pytest.raises(BadConfig, match="window"):
        keywords(["frogs"], window=1)
