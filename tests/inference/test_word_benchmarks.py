"""Files of word pairs and analogies as people publish them: headers, words the model cannot give, bad lines."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth import rng
from firth.convert.vector_files import write_vectors
from firth.errors import BadInput
from firth.inference.lexicon import Lexicon
from firth.inference.word_benchmarks import evaluate_word_file

WORDS = ["love", "sex", "tiger", "cat", "book", "paper", "青蛙", "池塘"]
PAIRS = [("love", "sex", "6.77"), ("tiger", "cat", "7.35"), ("book", "paper", "7.46"), ("青蛙", "池塘", "5.5")]


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return (rng.uniform(rng.key("word tests"), np.arange(8)[:, None], np.arange(6)) - 0.5).astype(np.float32)


@pytest.fixture(scope="module")
def lexicon(rows: np.ndarray) -> Lexicon:
    return Lexicon({word: i for i, word in enumerate(WORDS)}, rows)


@pytest.mark.parametrize(
    ("header", "between", "part"),
    [
        ("Word 1,Word 2,Human (mean)", ",", ""),
        ("Word 1\tWord 2\tHuman (mean)", "\t", ""),
        ("word1 word2 POS SimLex999", " ", "A "),
        ("word1\tword2\tPOS\tSimLex999\tconc(w1)", "\t", "N\t"),
        ("词1;词2;分数", ";", ""),
    ],
)
def test_a_line_that_names_the_columns_is_no_pair(
    header: str, between: str, part: str, lexicon: Lexicon, tmp_path: Path
) -> None:
    lines = [f"{a}{between}{b}{between}{part}{score}" for a, b, score in PAIRS]
    (tmp_path / "named.txt").write_text("\n".join([header, *lines]), "utf-8")
    (tmp_path / "plain.txt").write_text("\n".join(lines), "utf-8")
    found = evaluate_word_file(lexicon, tmp_path / "named.txt")
    assert found == evaluate_word_file(lexicon, tmp_path / "plain.txt")
    assert (found.pairs, found.coverage) == (4, 1.0)
    assert np.isfinite(found.spearman)


def test_an_answer_that_is_not_listed_cannot_be_right(rows: np.ndarray, tmp_path: Path) -> None:
    """As with fastText, where every word has a vector, but only listed words are given as answers."""
    made = Lexicon({word: i for i, word in enumerate(WORDS)}, rows, compose=lambda word: rows[len(word) % 8])
    (tmp_path / "questions.txt").write_text("love sex tiger unlisted\nunlisted sex tiger cat\nlove sex tiger cat\n")
    found = evaluate_word_file(made, tmp_path / "questions.txt")
    assert (found.questions, found.coverage) == (3, pytest.approx(2 / 3))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("love sex 6\ntiger nobody 5\n", "knows both words of 1 of 2 pairs, and a rank correlation needs two"),
        (
            "love sex 6\ntiger cat nan\nbook paper 3\n",
            "line 2: the score 'nan' is no finite number; correct or remove it",
        ),
        ("love sex 6\ntiger cat 6\n", "people give all 2 known pairs one number"),
        ("love sex 6\ntiger cat\nbook paper 3\n", "line 2: not two words and a number in column 3; correct or remove"),
        (": a\nlove sex tiger nobody\n", "all four words of none of its 1 analogies"),
        (": a\nlove sex tiger\n", "line 2: 3 words where an analogy has 4; correct or remove the line"),
    ],
)
def test_what_gives_no_figure_is_refused(content: str, says: str, lexicon: Lexicon, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text(content)
    with pytest.raises(BadInput, match=rf"bad\.txt.*{says}"):
        evaluate_word_file(lexicon, tmp_path / "bad.txt")


def test_files_of_one_name_keep_their_own_figures(
    rows: np.ndarray, tmp_path: Path, command: Callable[..., Any]
) -> None:
    write_vectors(tmp_path / "v.txt", [(WORDS, rows)], count=8, width=6, kind="word2vec")
    firth.import_model(tmp_path / "v.txt", out=tmp_path / "model")
    files = [tmp_path / name for name in ("en/pairs.txt", "zh/pairs.txt", "other.txt")]
    for count, file in enumerate(files, 2):
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{a} {b} {score}\n" for a, b, score in PAIRS[:count]), "utf-8")
    found = firth.evaluate(tmp_path / "model", words=files)
    assert {name: row["pairs"] for name, row in found.items()} == {str(files[0]): 2, str(files[1]): 3, "other": 4}
    (tmp_path / "q.txt").write_text(": known\nlove sex tiger cat\n: strange\nno body knows this\n")
    shown = command("evaluate", tmp_path / "model", "--words", tmp_path / "q.txt").out.splitlines()
    assert shown[2].split() == ["strange", "accuracy", "-", "0.0%", "of", "1"]


def test_the_nearest_word_is_found_block_by_block(
    rows: np.ndarray, lexicon: Lexicon, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, without = rows[[0, 5, 7]] + 0.1 * rows[[1, 2, 3]], [["love"], [], ["池塘", "nobody"]]
    whole = lexicon.nearest_rows(asked, without)
    monkeypatch.setattr("firth.inference.lexicon._BLOCK_ROWS", 3)
    assert lexicon.nearest_rows(asked, without) == whole
    cosines = asked @ rows.T / np.linalg.norm(rows, axis=1)
    cosines[0, 0] = cosines[2, 7] = -9
    assert whole == cosines.argmax(1).tolist()
    assert 0 not in Lexicon(lexicon.row_by_word, rows, hidden=[0]).nearest_rows(rows[:1], [[]])
