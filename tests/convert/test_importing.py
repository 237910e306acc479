"""`firth import`: folders with `.bin` weights become model folders; what is not weights alone is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth.convert import pickled
from firth.convert.weight_files import read_tensors
from firth.errors import BadInput


class Hostile:
    """Writes a file when it is unpickled without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.fixture
def source(run: Path, tmp_path: Path) -> Path:
    """A finished run as others publish it: a `.bin` file, sentence-transformers' files, nothing of ours."""
    folder = tmp_path / "source"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (folder / name).write_bytes((run / name).read_bytes())
    torch.save(read_tensors(run), folder / pickled.WEIGHTS)
    (folder / "1_Pooling").mkdir()
    kinds = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    rows = [{"idx": i, "path": path, "type": f"sentence_transformers.models.{k}"} for i, (k, path) in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 48}))
    return folder


def test_a_bin_file_becomes_the_same_model(source: Path, run: Path, command: Callable[..., Any]) -> None:
    out = source.parent / "out"
    done = command("import", source, "--out", out, "--unsafe-pickle", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["training"]["imported_from"] == "source"
    ours, theirs = firth.load(run), firth.load(out)
    assert list(theirs.checkpoint.goals) == ["masked_lm", "next_sentence"]
    assert np.array_equal(
        ours.embed(["a text", "一句话"], pooling="cls", normalise=True), theirs.embed(["a text", "一句话"])
    )
    assert (theirs.checkpoint.embedding.pooling, theirs.checkpoint.embedding.max_length) == ("cls", 48)


def test_without_the_flag_one_sentence(source: Path, command: Callable[..., Any]) -> None:
    done = command("import", source, "--out", source.parent / "out")
    assert done.code == 2
    assert str(source / "pytorch_model.bin") in done.err
    assert "--unsafe-pickle" in done.err
    assert done.err.count("\n") == 1
    assert not (source.parent / "out").exists()


def test_a_hostile_file_is_refused_and_does_nothing(source: Path, command: Callable[..., Any]) -> None:
    mark = source.parent / "mark"
    torch.save({"bert.weight": Hostile(mark)}, source / pickled.WEIGHTS)
    done = command("import", source, "--out", source.parent / "out", "--unsafe-pickle")
    assert done.code == 2
    assert "more than weights" in done.err
    assert done.err.count("\n") == 1
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"", b"not a file of tensors", b"PK\x03\x04broken"])
def test_damaged_files(source: Path, content: bytes) -> None:
    (source / pickled.WEIGHTS).write_bytes(content)
    with pytest.raises(BadInput, match=r"source has weights that cannot be read: pytorch_model.bin"):
        firth.import_model(source, out=source.parent / "out", unsafe_pickle=True)


def test_what_is_missing_is_named_in_the_source(source: Path) -> None:
    tensors = torch.load(source / pickled.WEIGHTS, weights_only=True)
    del tensors["bert.embeddings.LayerNorm.weight"]
    torch.save(tensors, source / pickled.WEIGHTS)
    with pytest.raises(firth.FirthError, match=f"{source} lacks the tensor bert.embeddings.LayerNorm.weight"):
        firth.import_model(source, out=source.parent / "out", unsafe_pickle=True)
    torch.save([1, 2], source / pickled.WEIGHTS)
    with pytest.raises(BadInput, match="does not hold tensors by name"):
        firth.import_model(source, out=source.parent / "out", unsafe_pickle=True)


def test_several_files_with_an_index(source: Path, run: Path) -> None:
    tensors = torch.load(source / pickled.WEIGHTS, weights_only=True)
    (source / pickled.WEIGHTS).unlink()
    names = sorted(tensors)
    parts = {"one.bin": names[::2], "two.bin": names[1::2]}
    for file, of_file in parts.items():
        torch.save({name: tensors[name] for name in of_file}, source / file)
    index = {"weight_map": {name: file for file, of_file in parts.items() for name in of_file}}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    firth.import_model(source, out=source.parent / "out", unsafe_pickle=True)
    made = read_tensors(source.parent / "out")
    assert all(torch.equal(made[name], tensor) for name, tensor in read_tensors(run).items())


def test_out_must_be_new_and_the_source_there(source: Path) -> None:
    with pytest.raises(BadInput, match="already exists"):
        firth.import_model(source, out=source)
    with pytest.raises(BadInput, match="does not exist"):
        firth.import_model(source / "absent", out=source.parent / "out")
