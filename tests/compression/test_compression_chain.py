"""Methods that follow each other in one command: the result of both, one table, one folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth.compression.method_chain import read_follow_ups
from firth.errors import BadConfig
from firth.files import check_manifest
from firth.inference.saved_precision import KEY


def test_two_methods_make_what_two_commands_make(
    compress: Callable[..., Any], tuned: Path, rows: Path, tmp_path: Path
) -> None:
    figures = compress("layers", "num_layers=1", "weights.bits=4", then=["weights"])
    firth.compress(tuned, by="layers", data=rows, changes=["num_layers=1"], out=tmp_path / "first")
    firth.compress(tmp_path / "first", by="weights", data=rows, changes=["bits=4"], out=tmp_path / "second")
    check_manifest(tmp_path / "small")
    texts = ["What a day.", "The soup was cold."]
    together = firth.load(tmp_path / "small").embed(texts)
    assert np.array_equal(together, firth.load(tmp_path / "second").embed(texts))
    assert figures["method"] == "layers, weights"
    assert "weights of 4 bits" in figures["strength"]
    weights = "model.quantised.safetensors"
    assert (tmp_path / "small" / weights).stat().st_size == (tmp_path / "second" / weights).stat().st_size


def test_each_method_leaves_a_note(compress: Callable[..., Any], tmp_path: Path) -> None:
    compress("layers", "num_layers=1", then=["weights", "int8"])
    info = firth.load(tmp_path / "small").checkpoint.info
    assert [note["method"] for note in info["compressed"]] == ["layers", "weights", "int8"]
    # The precision is saved, and so are the few bits of the method before it.
    assert info[KEY]["name"] == "int8"
    assert (tmp_path / "small" / "model.quantised.safetensors").exists()


def test_the_first_strength_is_searched(compress: Callable[..., Any]) -> None:
    figures = compress("weights", "layers.num_layers=1", then=["layers"], keep=0.01)
    assert figures["settings"]["bits"] == 2
    assert figures["reached"]


def test_what_cannot_follow_is_refused(compress: Callable[..., Any]) -> None:
    with pytest.raises(BadConfig, match="distil trains, so it cannot follow another method"):
        compress("layers", then=["distil"])
    with pytest.raises(BadConfig, match="names a method twice"):
        compress("layers", then=["weights", "weights"])
    with pytest.raises(BadConfig, match="There is no method"):
        compress("layers", then=["nothing"])
    with pytest.raises(BadConfig, match="bits must be 2 to 8"):
        compress("layers", "weights.bits=9", then=["weights"])


def test_settings_go_to_the_method_they_name() -> None:
    follow_ups, first = read_follow_ups(["weights", "int8"], ["num_layers=2", "weights.bits=3"])
    assert first == ["num_layers=2"]
    assert [follow_up.note for follow_up in follow_ups] == [
        {"method": "weights", "settings": {"bits": 3}},
        {"method": "int8", "settings": {"precision": "int8"}},
    ]
