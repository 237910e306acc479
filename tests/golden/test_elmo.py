"""allennlp's small ELMo against the embeddings stored beside it."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import firth
from firth.convert import elmo
from firth.data.items import cut_window, pack_windows
from firth.encoders.elmo import Elmo
from firth.inference.model import Model
from firth.tensors import Batch
from firth.tokenizers.characters import Characters, spell

h5py = pytest.importorskip("h5py")
FOLDER = Path(os.environ.get("FIRTH_GOLDEN", Path(__file__).parents[3] / "shared" / "golden")) / "elmo"
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="no stored embeddings: set FIRTH_GOLDEN to their folder")
TEXTS, ENTRIES = 3, 10
WORDS = Characters.of((), Characters.Config(split="spaces"))
"""The stored sentences have spaces between their words."""


@pytest.fixture(scope="module")
def encoder() -> Elmo:
    weights = elmo.find(FOLDER)
    assert weights is not None
    return elmo.load(weights)[0]


@pytest.fixture(scope="module")
def sentences() -> list[list[str]]:
    found: list[list[str]] = json.loads((FOLDER / "sentences.json").read_text())
    assert [len(texts) for texts in found] == [ENTRIES] * TEXTS
    return found


def stored(text: int, entry: int) -> np.ndarray:
    """Forward and backward states of the upper layer, side by side, without the marks of the sentence."""
    with h5py.File(FOLDER / f"lm_embeddings_{text}.hdf5", "r") as file:
        return np.concatenate(list(file[str(entry)][...]), 1)


def packed(texts: list[str]) -> Batch:
    read = WORDS.encode_batch(texts)
    return pack_windows([cut_window(WORDS.vocab, (one, 0, len(one))) for one in read])


def differences(states_ND: torch.Tensor, batch: Batch, entry: int) -> list[float]:
    pieces = states_ND.split(batch.bounds_B1.diff().tolist())
    return [float(np.abs(p[1:-1].numpy() - stored(text, entry)).max()) for text, p in enumerate(pieces)]


@torch.inference_mode()
def test_the_first_sentence_of_each_text_needs_no_memory(encoder: Elmo, sentences: list[list[str]]) -> None:
    batch = packed([texts[0] for texts in sentences])
    assert max(differences(encoder(batch).last_ND, batch, 0)) < 1e-5


@torch.inference_mode()
def test_with_memory_from_sentence_to_sentence_all_are_equal(encoder: Elmo, sentences: list[list[str]]) -> None:
    memory = None
    for entry in range(ENTRIES):
        batch = packed([texts[entry] for texts in sentences])
        layers, memory = encoder.read(batch, memory)
        assert max(differences(layers[-1], batch, entry)) < 1e-5
        if entry:  # what is remembered matters
            assert max(differences(encoder(batch).last_ND, batch, entry)) > 1e-3


@torch.inference_mode()
def test_words_without_context(encoder: Elmo) -> None:
    words = (FOLDER / "vocab_test.txt").read_text().split()
    marks = {"<S>": WORDS.vocab.cls, "</S>": WORDS.vocab.sep}
    rows = [WORDS.vocab.parts([marks[word]])[0].tolist() if word in marks else spell(word) for word in words]
    assert marks.keys() <= set(words)
    bounds_N1 = torch.tensor(np.cumsum([0, *map(len, rows)]))
    found = encoder.words(torch.tensor([c for row in rows for c in row]), bounds_N1)
    with h5py.File(FOLDER / "elmo_token_embeddings.hdf5", "r") as file:
        assert np.abs(found.numpy() - file["embedding"][...]).max() < 1e-5
    longer = torch.cat([torch.tensor(rows[0]), torch.tensor(spell("x" * 60))])  # a long neighbour changes the padding
    beside = encoder.words(longer, torch.tensor([0, len(rows[0]), len(longer)]))
    assert (beside[0] - found[0]).abs().max() < 1e-6


def test_imported_it_is_a_model_folder(encoder: Elmo, sentences: list[list[str]], tmp_path: Path) -> None:
    told = firth.import_model(FOLDER, out=tmp_path / "model")
    assert told["encoder"]["cell_width"] == 64
    model = firth.load(tmp_path / "model")
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(model.encoder.state_dict()[name], tensor)
    model = Model(replace(model.checkpoint, tokenizer=WORDS))
    with torch.inference_mode():
        batch = packed([sentences[0][0]])
        mean = encoder(batch).last_ND.mean(0).numpy()
    assert np.abs(model.embed([sentences[0][0]])[0] - mean).max() < 1e-5
    assert replace(model.encoder.config, dropout=0.0) == replace(encoder.config, dropout=0.0)
