"""What probes, heads and senses find, on models whose answer is known."""

from pathlib import Path

import numpy as np
import pytest

from firth.study import sets
from firth.study.probe_sets import probe_files
from firth.study.probing import _masks, _ridge, heads, probe, senses
from firth.study.sets import Sources
from firth.study.similarities import SIMHASH, similarity


def test_ridge_finds_a_linear_border() -> None:
    generator = np.random.default_rng(1)
    states = generator.normal(size=(200, 8))
    gold = (states[:, 2] > 0).astype(int)
    other = generator.normal(size=(100, 8))
    guessed = _ridge(states, gold, other, num_labels=2)
    assert (guessed == (other[:, 2] > 0)).mean() > 0.9


def test_patterns_leave_special_tokens_out() -> None:
    masks = _masks(["[CLS]", "a", "b", "a", "[SEP]"])
    assert np.argwhere(masks["previous"]).tolist() == [[2, 1], [3, 2]]
    assert np.argwhere(masks["next"]).tolist() == [[1, 2], [2, 3]]
    assert np.argwhere(masks["same"]).tolist() == [[1, 3], [3, 1]]
    assert np.argwhere(masks["separator"]).tolist() == [[1, 0], [1, 4], [2, 0], [2, 4], [3, 0], [3, 4]]


def test_only_context_tells_the_order_of_words(tmp_path: Path) -> None:
    train, test = probe_files(Sources(tmp_path), "order", "en", seed=1)
    figures = probe(tmp_path / "out", model="en-small", train=[train], test=[test])
    last = sets.num_layers("en-small")
    assert f"layer_{last + 1}" not in figures
    assert figures[f"layer_{last}"] > 0.75 > 0.65 > figures["layer_0"]


def test_a_word_asked_about_is_where_its_label_is(tmp_path: Path) -> None:
    train, _ = probe_files(Sources(tmp_path), "entities", "zh", seed=1)
    for line in train.read_text("utf-8").splitlines():
        words, _, labels = line.partition("\t")
        assert len(words.split(" ")) == len(labels.split(" "))
        kinds = [label for label in labels.split(" ") if label != "-"]
        assert len(kinds) <= 2 * sum(kind != "O" for kind in kinds)


def test_a_head_that_looks_back(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("The river runs past the old mill and the new houses.\n")
    figures = heads(tmp_path, model="en-small", chosen=[lines], texts=[lines])
    assert figures["previous_best_1"] > 0.9 > 0.3 > figures["previous_mean_1"]
    assert figures["previous_heads"] >= 1


@pytest.mark.parametrize("word", ["apple"])
def test_equal_lines_have_the_same_sense(word: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    sentences = ["She ate a red apple.", "She ate a green apple.", "The apple firm sold phones."]
    sets.write_rows(lines, [*sentences[:2], sentences[2], sentences[2]])
    figures = senses(tmp_path, model="en-small", words=(word,), lines=[lines])
    assert figures[f"layer_{sets.num_layers('en-small')}_1"] == 1.0


def test_a_text_may_hold_other_line_separators(tmp_path: Path) -> None:
    """Sets are written with a line feed after each row; Unicode has more separators, which texts contain."""
    pairs = tmp_path / "pairs.tsv"
    rows = ["a river\u2028runs\tthe river\x85runs\t5", "a mill\tthe sea\t1", "old houses\told mills\t2"]
    sets.write_rows(pairs, rows)
    figures = similarity(tmp_path / "out", pairs=[pairs], way=SIMHASH)
    assert -1 <= figures["spearman"] <= 1
