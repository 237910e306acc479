"""One folder is one model: it comes back as it was, and damage is found."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import firth
from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint, Embedding
from firth.convert import mapped
from firth.errors import BadInput, Damaged, Unsupported
from firth.files import write_json, write_manifest


@pytest.fixture
def folder(run: Path, tmp_path: Path) -> Path:
    firth.load(run).save(tmp_path / "model")
    return tmp_path / "model"


def test_a_saved_model_comes_back_bit_for_bit(run: Path, folder: Path) -> None:
    first, second = checkpoints.load(run), checkpoints.load(folder)
    assert first.encoder.config == second.encoder.config
    assert {name: goal.config for name, goal in first.goals.items()} == {
        name: goal.config for name, goal in second.goals.items()
    }
    for one, two in [(first.encoder, second.encoder), *((first.goals[n], second.goals[n]) for n in first.goals)]:
        assert one.state_dict().keys() == two.state_dict().keys()
        assert all(torch.equal(tensor, two.state_dict()[name]) for name, tensor in one.state_dict().items())
    assert first.tokenizer.fingerprint == second.tokenizer.fingerprint
    assert first.info == second.info
    assert not second.encoder.training


def test_saving_twice_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    checkpoints.save(tmp_path / "again", checkpoints.load(folder))
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "vocab.txt", "firth.json"])
def test_a_flipped_bit_is_found_and_named(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) * 2 // 3] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(Damaged, match=name):
        checkpoints.load(folder)


def test_folders_that_hold_no_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a folder"):
        checkpoints.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"no config\.json"):
        checkpoints.load(tmp_path / "empty")
    (tmp_path / "empty" / "run.toml").write_text("")
    with pytest.raises(BadInput, match="not finished"):
        checkpoints.load(tmp_path / "empty")
    (folder / "manifest.json").unlink()
    with pytest.raises(Damaged, match="incomplete"):
        checkpoints.load(folder)
    (folder / "run.toml").write_text("")
    with pytest.raises(BadInput, match="not finished"):
        checkpoints.load(folder)


def test_a_newer_format_is_refused(folder: Path) -> None:
    values = json.loads((folder / "firth.json").read_text())
    (folder / "firth.json").write_text(json.dumps({**values, "format": 99}))
    with pytest.raises(Damaged, match="format 99"):
        checkpoints.load(folder)


def theirs(folder: Path, **changes: object) -> None:
    """Makes the folder one that others wrote, with another config."""
    (folder / "firth.json").unlink(missing_ok=True)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **changes}))


def test_configs_firth_cannot_honour(folder: Path) -> None:
    theirs(folder, model_type="llama")
    with pytest.raises(Unsupported, match="'llama'"):
        checkpoints.load(folder)
    theirs(folder, model_type="bert", position_embedding_type="relative_key")
    with pytest.raises(Unsupported, match="position_embedding_type"):
        checkpoints.load(folder)
    theirs(folder, position_embedding_type="absolute", hidden_act="swish")
    with pytest.raises(firth.FirthError, match="'swish'"):
        checkpoints.load(folder)
    theirs(folder, hidden_act="gelu")
    assert checkpoints.load(folder).goals


def test_a_vocabulary_larger_than_the_model_is_refused(folder: Path, tmp_path: Path) -> None:
    theirs(folder)
    more = [*(folder / "vocab.txt").read_text().splitlines(), *(f"extra{i}" for i in range(100))]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(more) + "\n")
    with pytest.raises(BadInput, match="the tokenizer has 1300 tokens"):
        checkpoints.load(folder)


@pytest.mark.parametrize("embedding", [Embedding("cls", True, 12), Embedding("max"), Embedding(normalise=True)])
def test_how_texts_become_vectors_is_kept(folder: Path, tmp_path: Path, embedding: Embedding) -> None:
    old = checkpoints.load(folder)
    checkpoints.save(tmp_path / "new", Checkpoint(old.encoder, old.goals, old.tokenizer, embedding=embedding))
    model = firth.load(tmp_path / "new")
    assert model.checkpoint.embedding == embedding
    vectors = model.embed(["A short text.", "Another text, and a longer one, which goes on and on. " * 3])
    norms = np.linalg.norm(vectors, axis=1)
    assert np.allclose(norms, 1, atol=1e-5) == embedding.normalise


def test_the_card_says_what_it_is(run: Path) -> None:
    card = (run / "README.md").read_text()
    assert "2 layers, width 32, 2 heads" in card
    assert "masked_lm" in card
    assert "firth.load" in card


def test_a_folder_can_be_moved(folder: Path, tmp_path: Path) -> None:
    shutil.move(folder, tmp_path / "elsewhere")
    assert firth.load(tmp_path / "elsewhere").fill("The [MASK].", top=1)


def test_large_weights_are_written_straight_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"a": torch.randn(7, 3), "b": torch.randn(2), "c": torch.randn(())}
    mapped.write_weights(tmp_path / "small", tensors)
    monkeypatch.setattr(mapped, "LARGE", 0)
    mapped.write_weights(tmp_path / "large", tensors)
    for name in ("small", "large"):
        found = load_file(tmp_path / name)
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[key], tensor) for key, tensor in tensors.items())


def test_saving_over_another_model_leaves_nothing_of_it(folder: Path) -> None:
    plain = checkpoints.load(folder)
    checkpoints.save(folder, replace(plain, embedding=Embedding("cls", True, 16)))
    assert checkpoints.load(folder).embedding == Embedding("cls", True, 16)
    checkpoints.save(folder, plain)
    assert checkpoints.load(folder).embedding == Embedding()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hidden_size": "128"}, "'hidden_size' must be a number"),
        ({"intermediate_size": 1}, "not of one model: .* has"),
        (None, "must be JSON objects"),
    ],
)
def test_a_config_that_does_not_fit_is_one_sentence(folder: Path, change: dict[str, object] | None, told: str) -> None:
    (folder / "firth.json").unlink()  # as from elsewhere, without a manifest to look at
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps([] if change is None else {**config, **change}))
    with pytest.raises(Damaged, match=told):
        checkpoints.load(folder)


def test_settings_of_another_version_are_told_with_the_folder(folder: Path) -> None:
    ours = json.loads((folder / "firth.json").read_text())
    ours["goals"]["masked_lm"]["whole_words"] = True
    write_json(folder / "firth.json", ours)
    manifest = json.loads((folder / "manifest.json").read_text())
    write_manifest(folder, list(manifest["files"]))
    with pytest.raises(Damaged, match="another version"):
        checkpoints.load(folder)


def test_resuming_into_a_folder_that_is_no_run_leaves_its_files(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "proj"
    out.mkdir()
    (out / "README.md").write_text("my notes")
    with pytest.raises(BadInput, match="exists and holds no run"):
        firth.pretrain(data, out=out, steps=2, resume=True)
    assert (out / "README.md").read_text() == "my notes"
