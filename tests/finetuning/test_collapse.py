"""Seeds that collapsed to one answer: found, told of with a remedy, and marked in results, headlines and report."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import firth
from firth.files import read_json
from firth.finetuning.collapse import same_answer
from firth.finetuning.figures import headlines
from firth.tasks.conll import Sentence
from firth.types import Example, Prediction


def _found(labels: Sequence[Any], golds: Sequence[Any]) -> str | None:
    return same_answer([Prediction(label) for label in labels], [Example(("x",), gold) for gold in golds])


@pytest.mark.parametrize(
    ("labels", "golds", "wanted"),
    [
        (["a"] * 8, ["a", "b"] * 4, "a"),
        (["a"] * 7 + ["b"], ["a", "b"] * 4, None),
        (["a"] * 8, ["a"] * 8, None),  # it is right
        (["a"] * 6, ["a", "b"] * 3, None),  # too few rows
        ([()] * 8, [("x",), ()] * 4, "none"),
        ([2.5 + 0.001 * i for i in range(8)], [0.0, 5.0] * 4, "about 2.5"),
        ([2.5 + 0.1 * i for i in range(8)], [0.0, 5.0] * 4, None),
        ([2.5] * 8, [2.5] * 8, None),
        ([0.5] * 8, ["0", "1"] * 4, "about 0.5"),  # similarities of labelled pairs
        ([0.5] * 8, [None] * 8, None),
    ],
)
def test_one_answer_for_rows_that_differ_is_a_collapse(labels: Any, golds: Any, wanted: str | None) -> None:
    assert _found(labels, golds) == wanted


def test_sentences_without_words_say_nothing() -> None:
    sentences = [Sentence(("",), gold=())] * 8
    assert same_answer([Prediction(())] * 8, sentences) is None


def test_sentences_whose_words_all_get_one_tag_are_a_collapse() -> None:
    rows = [Sentence(("a b",), ("O", "B-PER"), words=((0, 1), (2, 3))) for _ in range(8)]
    assert same_answer([Prediction(("O", "O"))] * 8, rows) == "O"
    assert same_answer([Prediction(("O", "B-PER"))] * 8, rows) is None


@pytest.mark.parametrize(("rate", "collapses"), [("0", True), ("3e-3", False)])
def test_a_collapsed_seed_is_told_of_and_marked(
    run: Path, tmp_path: Path, messages: Callable[[], str], rate: str, collapses: bool
) -> None:
    train = tmp_path / "train.tsv"
    rows = [f"{'long ' * 8 if i % 2 else 'short '}{i}\t{'long' if i % 2 else 'short'}" for i in range(60)]
    train.write_text("\n".join(["text\tlabel", *rows]), "utf-8")
    out = tmp_path / "tuned"
    changes = ("epochs=4", "batch_size=8", f"train.optim.rate={rate}")
    firth.finetune(run, task="classify", train=train, dev=train, out=out, seeds=1, changes=changes, device="cpu")
    said = messages()
    summary = read_json(out / "results.json")
    marked = summary["tasks"]["classify"]["collapsed_seeds"]
    report = (out / "report.html").read_text("utf-8")
    assert ("Warning: seed 1 collapsed" in said) is collapses
    assert ("epochs=8" in said) is collapses
    assert [found["seed"] for found in marked] == ([1] if collapses else [])
    assert any("collapsed" in line for line in headlines(summary)) is collapses
    assert ("collapsed; it gives every row" in report) is collapses


def test_an_undefined_figure_has_no_mean(run: Path, tmp_path: Path) -> None:
    """A dev file with one number for all rows has no order, so its correlation is undefined."""
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\n" + "".join(f"day {number}\t{number}\n" for number in range(12)), "utf-8")
    dev = tmp_path / "dev.tsv"
    dev.write_text("text\tlabel\n" + "".join(f"night {number}\t1\n" for number in range(4)), "utf-8")
    summary = firth.finetune(
        run, task="classify", kind="number", train=rows, dev=dev, out=tmp_path / "out", changes=["epochs=1"]
    )
    assert summary["tasks"]["classify"]["figures"]["dev"]["spearman"] == {"mean": None, "deviation": None}
    # In memory as on disk.
    written = read_json(tmp_path / "out/results.json")["tasks"]["classify"]
    assert summary["tasks"]["classify"]["figures"] == written["figures"]
    assert "spearman undefined" in headlines(summary)[0]
