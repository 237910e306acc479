"""Hard negatives: near, but never a partner, and less similar than the partner by the margin."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import firth
from firth.errors import BadConfig
from firth.finetuning import labelled
from firth.search.mining import mine_triplets
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
