"""Co-occurrence ratios against counting by hand, and the command around them."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth import words
from firth.data import ratios
from firth.data.ratios import neighbour_counts
from firth.data.shards import Shards
from firth.errors import BadConfig, BadInput


@pytest.mark.parametrize(("window", "leave_out"), [(1, False), (4, False), (10, False), (4, True)])
def test_neighbours_are_counted_as_by_hand(
    shards: Shards, window: int, leave_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ratios, "_BLOCK_TOKENS", 1000)  # several blocks of documents
    word, *others = np.argsort(-shards.counts)[:6].tolist()
    without = frozenset(others if leave_out else [])
    wanted: dict[int, float] = defaultdict(float)
    for document in range(shards.num_documents):
        first, last = (shards.sentences[shards.documents[document + i]] for i in (0, 1))
        ids = [i for i in shards.ids[first:last].tolist() if i not in without]
        for i in (i for i, one in enumerate(ids) if one == word):
            for j in range(max(0, i - window), min(len(ids), i + window + 1)):
                if j != i:
                    wanted[ids[j]] += 1 / abs(i - j)
    found = neighbour_counts(shards, word, window=window, without=without)
    assert found.sum() == pytest.approx(sum(wanted.values()))
    assert np.allclose([found[i] for i in wanted], list(wanted.values()))


def test_ratios_tell_two_words_apart(tmp_path: Path, command: Callable[..., Any]) -> None:
    text = "\n\n".join(["solid ice is cold water", "gas steam is hot water"] * 6)
    (tmp_path / "text.txt").write_text("\n\n".join(f"{line} in {i}" for i, line in enumerate(text.split("\n\n"))))
    firth.prepare(tmp_path / "text.txt", out=tmp_path / "data", tokenizer="words", min_count=1, processes=0)
    table = words.ratios(tmp_path / "data", "ice", "steam", words=["solid", "gas", "water"], window=5)
    assert table["solid"]["ratio"] == float("inf")
    assert table["gas"]["ratio"] == 0
    assert table["water"]["ratio"] == pytest.approx(1)
    shown = command("ratios", tmp_path / "data", "ice", "steam", "solid", "water").out.splitlines()
    assert [line.split()[0] for line in shown[1:]] == ["solid", "water"]
    run = tmp_path / "run"
    firth.pretrain(tmp_path / "text.txt", recipe="glove", width=4, epochs=1, min_count=1, threads=1, out=run)
    assert words.ratios(run, "ice", "steam", words=["solid", "gas", "water"], window=5) == table
    code, _, err = command("ratios", tmp_path / "data", "ice", "snow", "solid")
    assert (code, "'snow' is not in the vocabulary" in err) == (2, True)
    assert "near spellings: is" in command("ratios", tmp_path / "data", "ice", "iss", "solid").err
    assert words.ratios(tmp_path / "data", "Ice", "steam", words=["gas"])["gas"]["ratio"] == 0
    with pytest.raises(BadConfig, match="none of them empty"):
        words.ratios(tmp_path / "data", "ice", "", words=["solid"])


def test_what_is_no_word_is_no_neighbour(tmp_path: Path) -> None:
    lines = [f"ice rare{i} water {'ice steam gas ' * (i % 2)}" for i in range(8)]
    (tmp_path / "text.txt").write_text("\n\n".join(lines))
    firth.prepare(tmp_path / "text.txt", out=tmp_path / "data", tokenizer="words", min_count=2, processes=0)
    table = words.ratios(tmp_path / "data", "ice", "steam", words=["water", "steam", "gas", "ice"], window=1)
    assert sum(row["ice"] for row in table.values()) == pytest.approx(1)
    assert table["water"]["ice"] == pytest.approx(12 / 16)  # beside the first ice of every line, and the second


def test_an_imported_model_has_no_text(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("ice 1 2\nsteam 3 4\n")
    firth.import_model(tmp_path / "v.txt", out=tmp_path / "model")
    with pytest.raises(BadInput, match="is a model that has no text; name the folder that `firth prepare` made"):
        words.ratios(tmp_path / "model", "ice", "steam", words=["ice"])
