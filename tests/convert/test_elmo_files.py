"""ELMo's files: what is missing, strange or damaged is told of in one sentence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth.convert import elmo
from firth.encoders.elmo import Elmo
from firth.errors import BadInput, Damaged, FirthError, Unsupported

h5py = pytest.importorskip("h5py")
SHAPE = Elmo.Config(
    vocab_size=5, width=8, cell_width=6, character_width=3, filters=((1, 2), (2, 4)), num_highways=1, dropout=0.1
)


def options(**changes: Any) -> dict[str, Any]:
    lstm = {"cell_clip": 3, "proj_clip": 3, "use_skip_connections": True, "n_layers": 2, "projection_dim": 4, "dim": 6}
    cnn = {"embedding": {"dim": 3}, "filters": [[1, 2], [2, 4]], "n_highway": 1, "n_characters": 262}
    cnn |= {"max_characters_per_token": 50, "activation": "relu"}
    return {"lstm": lstm | changes.pop("lstm", {}), "char_cnn": cnn | changes.pop("char_cnn", {})}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An ELMo of random numbers in the shapes allennlp's files have."""
    random = np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (261, 3), "CNN_proj/W_proj": (6, 4), "CNN_proj/b_proj": (4,)}
    for i, (size, count) in enumerate(SHAPE.filters):
        shapes |= {f"CNN/W_cnn_{i}": (1, size, 3, count), f"CNN/b_cnn_{i}": (count,)}
    for name in ("transform", "carry"):
        shapes |= {f"CNN_high_0/W_{name}": (6, 6), f"CNN_high_0/b_{name}": (6,)}
    for direction in (0, 1):
        for layer in (0, 1):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes |= {f"{cell}/W_0": (8, 24), f"{cell}/B": (24,), f"{cell}/W_P_0": (6, 4)}
    (tmp_path / "elmo").mkdir()
    with h5py.File(tmp_path / "elmo" / "small_weights.hdf5", "w") as file:
        for name, shape in shapes.items():
            file[name] = random.normal(size=shape).astype(np.float32)
    (tmp_path / "elmo" / "small_options.json").write_text(json.dumps(options()))
    return tmp_path / "elmo"


def test_gates_are_put_in_order_and_nothing_is_forgotten_at_first(folder: Path) -> None:
    weights = elmo.find(folder)
    assert weights is not None
    encoder, _ = elmo.load(weights)
    assert encoder.config == SHAPE
    with h5py.File(weights, "r") as file:
        theirs = file["RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell/B"][...].reshape(4, 6)
    ours = encoder.blocks[0].bias.detach().view(2, 4, 6)[1].numpy()
    assert np.array_equal(ours, theirs[[0, 2, 1, 3]] + np.array([[0], [1], [0], [0]], np.float32))
    assert torch.equal(encoder.words.characters.weight[0], torch.zeros(3))


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"lstm": {"proj_clip": 5}}, Unsupported, "two different clips"),
        ({"lstm": {"use_skip_connections": False}}, Unsupported, "no skip connections"),
        ({"lstm": {"dim": 7}}, Damaged, "small_options.json"),
        ({"lstm": {"n_layers": 3}}, Damaged, "lacks RNN_0/RNN/MultiRNNCell/Cell2"),
        ({"lstm": {"n_layers": 1}}, Unsupported, "RNN_0/RNN/MultiRNNCell/Cell1"),
        ({"char_cnn": {"n_characters": 100}}, Unsupported, "100 characters"),
        ({"char_cnn": {"activation": "gelu"}}, FirthError, "relu or tanh"),
    ],
)
def test_options_that_do_not_fit(changes: Any, kind: type, says: str, folder: Path, tmp_path: Path) -> None:
    (folder / "small_options.json").write_text(json.dumps(options(**changes)))
    with pytest.raises(kind, match=says):
        firth.import_model(folder, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_that_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    path = folder / "small_weights.hdf5"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(Damaged, match=r"small_weights\.hdf5 cannot be read as hdf5"):
        firth.import_model(folder, out=tmp_path / "out")
    (folder / "other_weights.hdf5").write_bytes(b"")
    with pytest.raises(BadInput, match="several files of weights"):
        firth.import_model(folder, out=tmp_path / "out")
    (folder / "other_weights.hdf5").unlink()
    (folder / "small_options.json").write_text("{}")
    with pytest.raises(BadInput, match=r"small_options\.json is not an ELMo's: KeyError\('lstm'\)"):
        firth.import_model(folder, out=tmp_path / "out")
