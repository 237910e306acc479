"""Every study can be laid out, and a small one runs from the command to its page, twice with the same figures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firth import study as studies
from firth.config import resolve
from firth.study import sets, similarity
from firth.study.design import Study
from firth.study.steps import TABLE
from firth.study.store import Store


@pytest.mark.parametrize("name", studies.TABLE)
def test_a_study_is_laid_out(name: str, tmp_path: Path) -> None:
    study: Study = resolve(studies.TABLE, name, "study")
    assert study.name == name
    cells = study.cells(tmp_path)
    assert {cell.run.step for cell in cells} <= TABLE.keys()
    places = [(cell.system, cell.dataset, cell.seed, cell.x) for cell in cells]
    assert len(set(places)) == len(places)
    systems = {cell.system for cell in cells}
    for claim in study.claims:
        assert {claim.better, claim.worse} <= systems
        assert set(claim.text) == {"en", "zh"}


def test_the_parts_of_the_pairs_are_the_whole(tmp_path: Path) -> None:
    parts = sets.folds_of_pairs(tmp_path, "zh")
    rows = [row for path in parts for row in path.read_text("utf-8").splitlines()[1:]]
    assert len(parts) == sets.FOLDS
    assert len(rows) == len(set(rows)) == 70


def test_a_share_of_sentences(tmp_path: Path) -> None:
    train, _ = sets.labelled(tmp_path, "entities-en")
    whole = train.read_text("utf-8").rstrip("\n").split("\n\n")
    part = sets.share_of_sentences(train, 0.1).read_text("utf-8").rstrip("\n").split("\n\n")
    assert part == whole[: round(len(whole) / 10)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The study of similarity with two ways that take no time, so that the test is short."""
    monkeypatch.setattr(similarity, "MODELS", {"en": "en-small"})
    monkeypatch.setattr(similarity, "WAYS", ("mean", "mean+centred"))


@pytest.mark.usefixtures("small")
def test_from_the_command_to_the_page(tmp_path: Path, command: Callable[..., Any]) -> None:
    answer = command("study", "similarity", "--out", tmp_path / "one")
    assert answer.code == 0
    page = tmp_path / "one/similarity/page.html"
    assert answer.out == f"{page}\n"
    rows = [json.loads(line) for line in (tmp_path / "one/similarity/rows.jsonl").read_text("utf-8").splitlines()]
    assert {row["system"] for row in rows} == {"mean", "mean+centred", "word2vec", "simhash"}
    assert len(rows) == 4 * sets.FOLDS
    text = page.read_text("utf-8")
    assert "Vectors are better than SimHash" in text
    assert "向量优于 SimHash" in text
    assert "<svg" in text
    # The same study again, from nothing: the same figures.
    command("study", "similarity", "--out", tmp_path / "two")
    again = [json.loads(line) for line in (tmp_path / "two/similarity/rows.jsonl").read_text("utf-8").splitlines()]
    assert [(row["key"], row["score"]) for row in again] == [(row["key"], row["score"]) for row in rows]


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    from firth.study.lineage import CORE, pretrained

    run = pretrained(CORE["tf-idf"], sets.corpus(tmp_path))
    store = Store(tmp_path / "runs")
    store.do(run)
    # As if the process had ended before the result was written.
    (tmp_path / "runs" / run.key / "result.json").unlink()
    assert Store(tmp_path / "runs").do(run).failed == ""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "Name one study (lineage, ablations, similarity, chains, layers) or give --all."),
        (("lineage", "--all"), "Name one study (lineage, ablations, similarity, chains, layers) or give --all."),
        (("nothing",), "There is no study named 'nothing' (known: lineage, ablations, similarity, chains, layers)."),
        (("lineage", "--minutes", "0"), "--minutes must be above 0."),
    ],
)
def test_mistakes(words: tuple[str, ...], sentence: str, tmp_path: Path, command: Callable[..., Any]) -> None:
    answer = command("study", *words, "--out", tmp_path / "out")
    assert answer.code == 2
    assert answer.err == f"firth: {sentence}\n"
