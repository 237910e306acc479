"""What the page asks before anybody types: the default models answer it sensibly, in both languages."""

import re
from pathlib import Path

import numpy as np
import pytest

import firth
from firth import serving
from firth.inference.model import Model

TEXTS = (Path(str(serving.__file__)).parent / "page" / "texts.js").read_text("utf-8")


@pytest.fixture(scope="module", params=[0, 1], ids=["en", "zh"])
def place(request: pytest.FixtureRequest) -> int:
    """Which of the page's languages: their texts stand one after the other."""
    return int(request.param)


@pytest.fixture(scope="module")
def model(place: int) -> Model:
    return firth.load(("en-small", "zh-small")[place])


def example(panel: str, place: int) -> list[str]:
    """The sentences that a panel opens with."""
    block = re.findall(rf"\n    {panel}: \{{\n(.*?)\n    \}},", TEXTS, re.DOTALL)[place]
    found = re.search(r"example: (\[.*?\]|\".*?\")", block, re.DOTALL)
    assert found is not None
    return re.findall(r'"(.*?)"', found[1])


def test_the_word_of_neighbours_is_known(model: Model, place: int) -> None:
    (word,) = example("neighbours", place)
    assert len(model.neighbours(word, top=5)) == 5


def test_sentences_that_belong_together_are_nearest(model: Model, place: int) -> None:
    sentences = example("compare", place)
    vectors = model.embed(sentences)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T - 2 * np.eye(len(sentences))
    assert cosines.argmax(axis=1)[:4].tolist() == [1, 0, 3, 2]
