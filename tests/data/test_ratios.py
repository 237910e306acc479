"""Co-occurrence ratios against counting by hand, and the command around them."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth.data.ratios import neighbour_counts
from firth.data.shards import Shards


@pytest.mark.parametrize("window", [1, 4, 10])
def test_neighbours_are_counted_as_by_hand(shards: Shards, window: int) -> None:
    word = int(shards.counts.argmax())
    wanted: dict[int, float] = defaultdict(float)
    for document in range(shards.num_documents):
        first, last = (shards.sentences[shards.documents[document + i]] for i in (0, 1))
        ids = shards.ids[first:last].tolist()
        for i in (i for i, one in enumerate(ids) if one == word):
            for j in range(max(0, i - window), min(len(ids), i + window + 1)):
                if j != i:
                    wanted[ids[j]] += 1 / abs(i - j)
    found = neighbour_counts(shards, word, window=window)
    assert found.sum() == pytest.approx(sum(wanted.values()))
    assert np.allclose([found[i] for i in wanted], list(wanted.values()))


def test_ratios_tell_two_words_apart(tmp_path: Path, command: Callable[..., Any]) -> None:
    text = "\n\n".join(["solid ice is cold water", "gas steam is hot water"] * 6)
    (tmp_path / "text.txt").write_text("\n\n".join(f"{line} in {i}" for i, line in enumerate(text.split("\n\n"))))
    firth.prepare(tmp_path / "text.txt", out=tmp_path / "data", tokenizer="words", min_count=1, processes=0)
    table = firth.ratios(tmp_path / "data", "ice", "steam", words=["solid", "gas", "water"], window=5)
    assert table["solid"]["ratio"] == float("inf")
    assert table["gas"]["ratio"] == 0
    assert table["water"]["ratio"] == pytest.approx(1)
    shown = command("ratios", tmp_path / "data", "ice", "steam", "solid", "water").out.splitlines()
    assert [line.split()[0] for line in shown[1:]] == ["solid", "water"]
    run = tmp_path / "run"
    firth.pretrain(tmp_path / "text.txt", recipe="glove", width=4, epochs=1, min_count=1, threads=1, out=run)
    assert firth.ratios(run, "ice", "steam", words=["solid", "gas", "water"], window=5) == table
    code, _, err = command("ratios", tmp_path / "data", "ice", "snow", "solid")
    assert (code, "'snow' is not in the vocabulary" in err) == (2, True)
