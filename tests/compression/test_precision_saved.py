"""Few bits, a precision saved in the folder, and ONNX: the same model in another form."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth import checkpoint as checkpoints
from firth.compression import onnx_export
from firth.convert.row_quantised import QUANTISED
from firth.data.items import pack_windows
from firth.errors import Unsupported
from firth.inference import precision_choice
from firth.inference.saved_precision import ServingEncoder
from firth.tasks.predicting import outputs_of

TEXTS = ["a good day", "The door is open, and everybody who comes by looks in to see what is going on inside today."]
Compress = Callable[..., Any]


@pytest.mark.parametrize("bits", [4, 8])
def test_a_folder_of_few_bits_round_trips(bits: int, compress: Compress, rows: Path, tmp_path: Path) -> None:
    figures = compress("weights", f"bits={bits}")
    small = tmp_path / "small"
    assert (small / QUANTISED).exists()
    assert not (small / "model.safetensors").exists()
    assert figures["compressed"]["disk_bytes"] < figures["original"]["disk_bytes"]
    loaded = firth.load(small)
    # Rounded weights are on the grid: rounding them again changes nothing.
    again = firth.compress(small, by="weights", data=rows, out=tmp_path / "again", changes=[f"bits={bits}"])
    assert again["kept"] == 1
    assert (tmp_path / "again" / QUANTISED).read_bytes() == (small / QUANTISED).read_bytes()
    assert firth.load(tmp_path / "again").predict(TEXTS) == loaded.predict(TEXTS)


def test_the_precision_is_saved_and_not_measured_again(
    compress: Compress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compress("int8")
    saved = json.loads((tmp_path / "small" / "firth.json").read_text())["precision"]
    assert saved["name"] == "int8"
    [choice] = saved["choices"].values()
    assert choice["precision"] == "int8"

    def refuse(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another cache"))
    monkeypatch.setattr(precision_choice, "_choose", refuse)
    model = firth.load(tmp_path / "small")
    assert model.embedder.precision == "int8"
    model.embed(TEXTS)
    predictions = model.predict(TEXTS)
    assert isinstance(model._task_encoder, ServingEncoder)
    # A precision that is asked for takes precedence, and concerns vectors.
    exact = firth.load(tmp_path / "small", precision="fp32")
    assert exact._task_encoder is exact.encoder
    for one, other in zip(exact.predict(TEXTS), predictions, strict=True):
        assert one.probability == pytest.approx(other.probability, abs=0.05)
    # On another machine there is no choice, so one is measured.
    notes = json.loads((tmp_path / "small" / "firth.json").read_text())
    other = checkpoints.load(tmp_path / "small")
    other.info["precision"]["choices"] = {"another machine": choice}  # type: ignore[index]
    with pytest.raises(AssertionError, match="measured again"):
        firth.Model(other).embed(TEXTS)
    assert notes["compressed"][0]["method"] == "int8"


def test_the_faster_copy_has_the_same_parts(compress: Compress, tuned: Path, tmp_path: Path) -> None:
    compress("int8", "precision=bf16")
    model = firth.load(tmp_path / "small")
    items = model.encode_examples(model.examples(TEXTS))
    batch = pack_windows([item.windows[0] for item in items])
    with torch.inference_mode():
        quick = model._task_encoder(batch)
        exact = model.encoder(batch)
        shown = model._task_encoder(batch, layers=True)
    assert torch.allclose(quick.last_ND.float(), exact.last_ND, atol=0.1)
    assert quick.pooled_BD is not None
    assert torch.allclose(quick.pooled_BD.float(), exact.pooled_BD, atol=0.1)
    assert torch.equal(shown.last_ND, exact.last_ND)
    assert len(shown.layers) == 3


def test_a_damaged_precision_is_ignored(tuned: Path) -> None:
    checkpoint = checkpoints.load(tuned)
    for value in ("int8", {"name": "int3"}, {"name": "int8", "choices": []}, None):
        checkpoint.info["precision"] = value  # type: ignore[index]
        model = firth.Model(checkpoint)
        assert model.embedder.precision in ("fp32", "int8")
        assert model.embedder.choices == {}


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="pip install '.[onnx]'")
@pytest.mark.parametrize("source", ["tuned", "pruned", "shared"])
def test_the_exported_model_computes_the_same(
    source: str, compress: Compress, tuned: Path, rows: Path, tmp_path: Path
) -> None:
    model = tuned
    if source != "tuned":
        compress({"pruned": "heads", "shared": "share"}[source])
        model = tmp_path / "small"
    figures = firth.compress(model, by="onnx", data=rows, out=tmp_path / "onnx")
    assert figures["difference"] == 0
    [remark] = [line for line in figures["lines"] if "model.onnx" in line]
    assert remark.startswith("On 200 texts the states of model.onnx differ from firth's by at most ")
    assert remark in (tmp_path / "onnx" / "README.md").read_text()
    assert firth.load(tmp_path / "onnx").predict(TEXTS) == firth.load(model).predict(TEXTS)

    import onnx
    import onnxruntime

    graph = onnx.load(tmp_path / "onnx" / "model.onnx")
    assert graph.opset_import[0].version == onnx_export.OPSET
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx")
    # Lengths and numbers of sequences that the export has never seen.
    opened = firth.load(model)
    items = opened.encode_examples(opened.examples([*TEXTS, "one more"]))
    [head] = opened.checkpoint.tasks.values()
    expected = [outputs[0] for outputs in outputs_of(opened.encoder, head, items)]
    longest = max(len(item.windows[0].ids) for item in items)
    ids = np.zeros((3, longest), np.int64)
    mask = np.zeros_like(ids)
    for row, item in enumerate(items):
        length = len(item.windows[0].ids)
        ids[row, :length] = item.windows[0].ids
        mask[row, :length] = 1
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    [logits] = session.run(["logits"], given)
    assert np.allclose(logits, np.stack(expected), atol=1e-4)


def test_without_onnx_one_sentence_says_what_to_install(compress: Compress, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_export, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"^onnx needs the package onnx; run `pip install '\.\[onnx\]'` in"):
        compress("onnx")


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="pip install '.[onnx]'")
def test_a_wrong_export_is_refused(compress: Compress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_export, "TOLERANCE", 0.0)
    monkeypatch.setattr(onnx_export, "largest_difference", lambda *_: 0.25)
    with pytest.raises(Unsupported, match=r"differ from firth's by 2\.5e-01"):
        compress("onnx")
    assert not (tmp_path / "small").exists()
