"""The pages under docs/study follow from the rows that lie beside them, and from nothing else."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from firth import study as studies
from firth.config import from_dict, resolve
from firth.files import read_json
from firth.study.design import Study
from firth.study.pictures import pictures
from firth.study.presenting import Made, as_markdown, verdicts
from firth.study.running import ROWS, Score, read_rows
from firth.study.studies import MADE, MARKDOWN

DOCS = Path(__file__).resolve().parents[2] / "docs" / "study"
FOLDERS = sorted(path.parent for path in DOCS.glob(f"*/{ROWS}"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_page_is_what_its_rows_say(folder: Path) -> None:
    study: Study = resolve(studies.TABLE, folder.name, "study")
    rows = read_rows(folder / ROWS)
    made = from_dict(Made, read_json(folder / MADE))
    page = (folder / MARKDOWN).read_text("utf-8")
    assert page == as_markdown(study, rows, made=made)
    for sentence in (*verdicts(study, rows, "en"), *verdicts(study, rows, "zh")):
        assert sentence in page
    for picture in pictures(study, rows):
        assert (folder / picture.file_name).read_text("utf-8") == picture.standalone()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_rows_are_whole(folder: Path) -> None:
    rows = read_rows(folder / ROWS)
    places = [(row.system, row.dataset, row.seed, row.x) for row in rows]
    assert len(set(places)) == len(places)
    for row in rows:
        assert (row.score is None) == bool(row.failed)
        if row.score is not None:
            assert row.figures[row.figure] == row.score
    # No row is longer than what a reader of a diff can bear.
    assert (folder / ROWS).stat().st_size < 300_000


def test_the_range_of_two_seeds_does_not_flatten_the_others() -> None:
    texts = {"en": "?", "zh": "？"}
    scores = {"many": [0.60, 0.61, 0.62], "two": [0.50, 0.70], "one": [0.55]}
    rows = []
    for system, own in scores.items():
        rows += [Score(system, "set", seed, "f1", score, "", 1.0) for seed, score in enumerate(own)]
    [picture] = pictures(Study("test", texts, texts, lambda sources: []), rows)
    assert "two (range cut)" in picture.svg
    assert "many (range cut)" not in picture.svg
    # With nothing beside it there is nothing to flatten.
    [alone] = pictures(Study("test", texts, texts, lambda sources: []), rows[3:5])
    assert "range cut" not in alone.svg


def test_what_systems_are_compared_with_has_the_ring() -> None:
    texts = {"en": "?", "zh": "？"}
    study = Study("test", texts, texts, lambda sources: [], against="speedup")
    rows = [
        # A run that failed has no figure whose name could label the axis.
        Score("half", "set", 1, "", None, "", 1.0, failed="It failed."),
        Score("half", "set", 2, "f1", 0.8, "", 1.0, figures={"f1": 0.8, "speedup": 2.0}),
        Score("original", "set", 2, "f1", 0.9, "", 1.0, figures={"f1": 0.9}),
    ]
    [picture] = pictures(study, rows)
    assert picture.heading == "set: f1"
    circles = [part for part in ElementTree.fromstring(picture.svg).iter() if part.tag.endswith("circle")]
    _, original, ring = [(part.get("cx"), part.get("cy")) for part in circles]
    assert original == ring


def test_there_are_pages() -> None:
    assert {folder.name for folder in FOLDERS} >= {"ablations", "chains", "heads", "lineage", "senses", "similarity"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_index_names_the_page(folder: Path) -> None:
    assert f"| [{folder.name}]({folder.name}/{MARKDOWN}) |" in (DOCS / "index.md").read_text("utf-8")
