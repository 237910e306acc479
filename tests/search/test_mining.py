"""Hard negatives: near, but never a partner, and less similar than the partner by the margin."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import firth
from firth.errors import BadConfig, BadInput
from firth.finetuning import labelled
from firth.search.mining import mine_triplets
from firth.search.pairs import read_pairs
from firth.tasks.compare import CompareConfig

PAIRS = [
    ("When does rain fall?", "Rain falls when warm air rises and cools."),
    ("When does rain fall?", "It rains when clouds are heavy."),
    ("What is glass made of?", "Glass is made of sand."),
    ("Where do rivers end?", "Rivers end in the sea."),
    ("Who keeps bees?", "Beekeepers keep bees."),
]


def test_a_negative_is_the_nearest_text_that_may_be_one(run: Path) -> None:
    model = firth.load(run)
    triplets = mine_triplets(model, PAIRS, negatives=2, margin=0.0)
    assert triplets
    partners = {first: {second for one, second in PAIRS if one == first} for first, _ in PAIRS}
    candidates = [second for _, second in PAIRS]
    for first, second in PAIRS:
        found = [triplet.negative for triplet in triplets if (triplet.text, triplet.positive) == (first, second)]
        vectors = model.embed([first, *candidates], normalise=True)
        cosines = dict(zip(candidates, (vectors[1:] @ vectors[0]).tolist(), strict=True))
        allowed = [
            text for text in candidates if text not in partners[first] and cosines[text] <= cosines[second] + 1e-6
        ]
        expected = sorted(allowed, key=lambda text: -cosines[text])[:2]
        assert found == expected


def test_a_larger_margin_leaves_fewer(run: Path) -> None:
    model = firth.load(run)
    counts = [len(mine_triplets(model, PAIRS, negatives=4, margin=margin)) for margin in (0.0, 0.01, 3.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0
    assert counts[0] > 0
    with pytest.raises(BadConfig, match="at least"):
        mine_triplets(model, PAIRS, margin=-1.0)


def test_the_file_is_one_that_compare_reads(run: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("anchor\tpositive\n" + "".join(f"{first}\t{second}\n" for first, second in PAIRS))
    out = tmp_path / "triplets.tsv"
    answer = command("search", "mine", pairs, "--model", run, "--out", out, "--margin", 0, "--json")
    assert answer.code == 0, answer.err
    rows = list(csv.DictReader(out.read_text("utf-8").splitlines(), delimiter="\t"))
    expected = mine_triplets(firth.load(run), PAIRS, margin=0.0)
    assert [(row["anchor"], row["positive"], row["negative"]) for row in rows] == [
        (triplet.text, triplet.positive, triplet.negative) for triplet in expected
    ]
    data = labelled.read("compare", CompareConfig(), {"train": out})
    assert data.config.kind == "triplets"
    assert len(data.examples["train"]) == len(rows)


def test_a_file_with_one_text_a_row_is_refused(run: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\nA day.\tgood\nA night.\tbad\n")
    out = tmp_path / "triplets.tsv"
    answer = command("search", "mine", rows, "--model", run, "--out", out)
    assert answer.code == 2
    assert "one column of texts (text)" in answer.err
    assert not out.exists()


SCORED = [
    ("Warm air rises.", "Air that is warm goes up.", "4.5"),
    ("Rivers end in the sea.", "The sea takes all rivers.", "4"),
    ("Bees make honey.", "Glass is made of sand.", "0.5"),
]


def write_rows(path: Path, header: str, rows: list[tuple[str, ...]]) -> Path:
    path.write_text("\n".join(["\t".join(header.split()), *("\t".join(row) for row in rows)]) + "\n")
    return path


def test_scores_need_the_one_from_which_on_texts_belong_together(
    run: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    rows = write_rows(tmp_path / "rows.tsv", "first second score", SCORED)
    out = tmp_path / "triplets.tsv"
    mine = ("search", "mine", rows, "--model", run, "--out", out, "--margin", 0, "--json")
    refused = command(*mine)
    assert (refused.code, refused.out) == (2, "")
    assert "scores from 0.5 to 4.5 in its column 'score'" in refused.err
    assert "such as --min-score 2.5" in refused.err
    assert not out.exists()
    mined = command(*mine, "--min-score", 2.5)
    assert (mined.code, json.loads(mined.out)["pairs"]) == (0, 2)
    assert "2 of 3 pairs have a 'score' of at least 2.5 and are used." in mined.err
    assert "Bees make honey." not in out.read_text()
    assert "lower --min-score" in command(*mine[:4], run, "--out", tmp_path / "none.tsv", "--min-score", 5).err


@pytest.mark.parametrize("header", ["first second label", "anchor positive label"])
def test_labels_of_0_and_1_say_which_pairs_belong_together(header: str, tmp_path: Path) -> None:
    labelled_rows = [(first, second, str(int(float(score) > 2))) for first, second, score in SCORED]
    rows = write_rows(tmp_path / "rows.tsv", header, labelled_rows)
    assert read_pairs(rows) == [(first, second) for first, second, _ in SCORED[:2]]


def test_scores_that_say_nothing_are_refused_with_what_helps(tmp_path: Path) -> None:
    for cells, said in {
        ("", "", ""): "the column 'score' is empty; name another with `score_column=`",
        ("0", "0", ""): "no pair with a 'score' of 1, so none belongs together; add some, or name another column",
        ("1", "nan", "0"): "row 3: the 'score' is 'nan', and only numbers say",
        ("inf", "4", "0"): "row 2: the 'score' is 'inf', and only numbers say",
    }.items():
        scored = [(first, second, cell) for (first, second, _), cell in zip(SCORED, cells, strict=True)]
        rows = write_rows(tmp_path / "rows.tsv", "first second score", scored)
        with pytest.raises(BadInput, match=said):
            read_pairs(rows)


def test_columns_can_be_named_and_a_name_is_no_score(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.tsv", "left right quality", SCORED)
    texts = {"text_column": "left", "second_column": "right"}
    assert len(read_pairs(rows, **texts)) == 3
    assert len(read_pairs(rows, **texts, score_column="quality", min_score=4.0)) == 2
    with pytest.raises(BadConfig, match="no column of scores"):
        read_pairs(rows, **texts, min_score=4.0)
    with pytest.raises(BadInput, match="no column 'grade'; its columns are left, right, quality"):
        read_pairs(rows, **texts, score_column="grade")
    named = write_rows(tmp_path / "named.tsv", "first second label", [("A day.", "A night.", "unlike")])
    with pytest.raises(BadInput, match="row 2: the 'label' is 'unlike'"):
        read_pairs(named)


def test_the_first_object_of_a_json_file_may_lack_its_score(tmp_path: Path) -> None:
    objects = [{"first": "A day.", "second": "A night."}, {"first": "A cat.", "second": "A dog.", "label": 0}]
    objects.append({"first": "Rain.", "second": "It rains.", "label": 1})
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f"{json.dumps(row)}\n" for row in objects))
    assert read_pairs(rows) == [("Rain.", "It rains.")]


def test_rows_that_cannot_be_used_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = write_rows(tmp_path / "rows.tsv", "anchor positive", [*PAIRS, ("A day.", " ")])
    assert read_pairs(rows) == PAIRS
    assert "1 row left out, the first of them row 7: an empty text" in caplog.text
