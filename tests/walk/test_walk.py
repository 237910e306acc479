"""The first test to read: raw text becomes a vocabulary, shards, a pre-trained BERT and answers."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import firth

PLACES, THINGS = ("garden", "forest", "meadow", "valley", "island"), ("door", "shop", "road", "gate", "bridge", "well")
DOCUMENTS = "\n\n".join(
    f"In year {year} the {thing} was open. The {place} was green and the river was long.\n"
    f"Then it rained on the {place} for {year} days. So the {thing} of the {place} was closed."
    for year, (thing, place) in enumerate((thing, place) for thing in THINGS for place in PLACES * 4)
)
SMALL = [
    "encoder.bert.width=64",
    "encoder.bert.num_heads=2",
    "encoder.bert.ffn_width=128",
    "batches.tokens=512",
    "batches.max_length=32",
    "train.optim.rate=0.003",
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(DOCUMENTS)
    return path


def test_from_text_to_answers(text: Path, tmp_path: Path) -> None:
    health = firth.prepare(text, out=tmp_path / "data", vocab_size=150, processes=0)
    assert health["documents"] == 120

    last = firth.pretrain(tmp_path / "data", recipe="bert", out=tmp_path / "run", steps=300, changes=SMALL)
    assert last["masked_lm"] < health["entropy_nats"]

    model = firth.load(tmp_path / "run")
    rows = model.fill("Then it [MASK] on the garden for 3 days.", top=3)
    assert rows[0].token == "rained"
    assert rows[0].text == "Then it rained on the garden for 3 days."
    assert 1 >= rows[0].probability >= rows[1].probability >= rows[2].probability > 0

    vectors = model.embed(["The door is open.", "The river is long.", "The door is open."])
    assert vectors.shape == (3, 64)
    assert np.array_equal(vectors[0], vectors[2])
    assert not np.array_equal(vectors[0], vectors[1])

    figures = firth.evaluate(tmp_path / "run", data=tmp_path / "data")
    assert figures["perplexity"] == pytest.approx(np.exp(figures["masked_lm"]))
    assert 0 <= figures["next_sentence_accuracy"] <= 1
    assert model.info().vocabulary == 150

    model.save(tmp_path / "copy")
    assert firth.load(tmp_path / "copy").fill("The [MASK] was open.", top=3) == model.fill(
        "The [MASK] was open.", top=3
    )


def test_the_same_walk_in_the_shell(text: Path, tmp_path: Path) -> None:
    firth_command = str(Path(sys.executable).with_name("firth"))

    def run(*arguments: str) -> str:
        done = subprocess.run([firth_command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    health = json.loads(run("prepare", text.name, "--out", "data", "--vocab-size", "150", "--json"))
    assert health["documents"] == 120
    last = json.loads(run("pretrain", "data", "--out", "run", "--size", "tiny", "--steps", "10", "--json", *SMALL))
    assert last["masked_lm"] > 0
    (tmp_path / "lines.txt").write_text("The door is open.\nThe river is long.\n")
    assert json.loads(run("embed", "run", "--file", "lines.txt", "--out", "vectors.npy", "--json"))["texts"] == 2
    assert np.load(tmp_path / "vectors.npy").shape == (2, 64)
    assert len(json.loads(run("fill", "run", "The [MASK] was open.", "--json"))["fills"]) == 5
    assert json.loads(run("evaluate", "run", "--data", "data", "--json"))["masked_lm"] > 0
    assert "parameters" in run("info", "run")
