"""Weights in few bits: what is written comes back, within the step of each row."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from firth.convert.row_quantised import (
    FIRST_METADATA,
    METADATA,
    QUANTISED,
    load_matrix,
    load_quantised,
    quantise_rows,
    save_quantised,
)
from firth.errors import BadConfig, BadInput, Damaged


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    rows = torch.randn(37, 23) * torch.logspace(-3, 1, 37)[:, None]  # rows of very different sizes
    rows[5] = 0
    return {"matrix": rows, "bias": torch.randn(37), "steps": torch.arange(4)}


@pytest.mark.parametrize("bits", range(2, 9))
def test_every_width_comes_back_within_its_step(bits: int, tmp_path: Path) -> None:
    tensors = weights()
    save_quantised(tmp_path / QUANTISED, tensors, bits=bits)
    found = load_quantised(tmp_path / QUANTISED)
    assert found.keys() == tensors.keys()
    codes, scales = quantise_rows(tensors["matrix"], bits)
    assert torch.equal(found["matrix"], codes.float() * scales.float()[:, None])
    assert codes.abs().max() <= 2 ** (bits - 1) - 1
    relative = (found["matrix"] - tensors["matrix"]).norm() / tensors["matrix"].norm()
    assert relative < 1.3 / 2 ** (bits - 1)
    assert torch.equal(found["steps"], tensors["steps"])
    assert torch.allclose(found["bias"], tensors["bias"], rtol=1e-3)


def test_fewer_bits_take_fewer_bytes(tmp_path: Path) -> None:
    tensors = {"matrix": torch.randn(256, 512)}
    sizes = []
    for bits in (8, 6, 4):
        save_quantised(tmp_path / QUANTISED, tensors, bits=bits)
        sizes.append((tmp_path / QUANTISED).stat().st_size)
    # Weights of a normal distribution: frequent codes take fewer bits than rare ones.
    for bits, size in zip((8, 6, 4), sizes, strict=True):
        share = size / (256 * 512 * bits / 8)
        assert 0.8 < share < 0.95


def test_files_of_the_first_versions_are_read(tmp_path: Path) -> None:
    # Four codes of 4 bits, -7 to 7, stored as 1 to 15, two in a byte.
    codes = torch.tensor([0x1F, 0x8A], dtype=torch.uint8)
    tensors = {"matrix.codes": codes, "matrix.scales": torch.tensor([1.0, 0.5]).half()}
    facts = {"matrix": {"bits": 4, "shape": [2, 2]}}
    save_file(tensors, tmp_path / QUANTISED, metadata={FIRST_METADATA: json.dumps(facts)})
    assert load_quantised(tmp_path / QUANTISED)["matrix"].tolist() == [[-7.0, 7.0], [0.0, 1.0]]


@pytest.mark.parametrize("count", [1, 3])
def test_codes_of_the_first_versions_in_another_number_are_damage(count: int, tmp_path: Path) -> None:
    tensors = {"matrix.codes": torch.zeros(count, dtype=torch.uint8), "matrix.scales": torch.ones(2).half()}
    facts = {"matrix": {"bits": 4, "shape": [2, 2]}}
    save_file(tensors, tmp_path / QUANTISED, metadata={FIRST_METADATA: json.dumps(facts)})
    with pytest.raises(Damaged, match="is damaged"):
        load_quantised(tmp_path / QUANTISED)


@pytest.mark.parametrize("shape", [[36, 23], [38, 23]])
def test_codes_that_are_too_many_or_too_few_are_damage(shape: list[int], tmp_path: Path) -> None:
    path = tmp_path / QUANTISED
    save_quantised(path, weights(), bits=6)
    with safe_open(path, framework="pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        facts = json.loads(file.metadata()[METADATA])
    facts["matrix"]["shape"] = shape
    save_file(stored, path, metadata={METADATA: json.dumps(facts)})
    with pytest.raises(Damaged, match="is damaged"):
        load_quantised(path)


def test_bytes_behind_the_codes_are_damage(tmp_path: Path) -> None:
    path = tmp_path / QUANTISED
    save_quantised(path, weights(), bits=6)
    with safe_open(path, framework="pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        metadata = file.metadata()
    codes = stored["matrix.codes"]
    for changed in (torch.cat([codes, codes[:1]]), codes[:-1]):
        save_file({**stored, "matrix.codes": changed.clone()}, path, metadata=metadata)
        with pytest.raises(Damaged, match="is damaged"):
            load_quantised(path)


def test_a_chosen_scale_is_no_worse_than_the_rows_largest_weight() -> None:
    torch.manual_seed(2)
    matrix = torch.randn(64, 128)
    codes, scales = quantise_rows(matrix, 4)
    error = (codes * scales.float()[:, None] - matrix).square().sum()
    plain_scale = (matrix.abs().amax(1) / 7)[:, None]
    plain = ((matrix / plain_scale).round() * plain_scale - matrix).square().sum()
    assert error < plain


def test_bad_widths_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="2 to 8 bits"):
        quantise_rows(torch.ones(2, 2), 9)
    (tmp_path / QUANTISED).write_bytes(b"nothing")
    with pytest.raises(Damaged, match="is not a file of quantised weights"):
        load_quantised(tmp_path / QUANTISED)


def test_vectors_too_large_for_half_precision_are_kept(tmp_path: Path) -> None:
    bias = torch.tensor([1.0, 70_000.0, -1e6])
    save_quantised(tmp_path / QUANTISED, {"bias": bias}, bits=8)
    assert torch.equal(load_quantised(tmp_path / QUANTISED)["bias"], bias)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_weights_that_cannot_be_quantised_are_refused(value: float, tmp_path: Path) -> None:
    matrix = torch.ones(3, 3)
    matrix[1, 1] = value
    with pytest.raises(BadInput, match=r"not a number|not finite or too large"):
        save_quantised(tmp_path / QUANTISED, {"matrix": matrix}, bits=8)
    assert not (tmp_path / QUANTISED).exists()


def test_a_vector_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="bias has weights that are not a number"):
        save_quantised(tmp_path / QUANTISED, {"bias": torch.tensor([1.0, torch.nan])}, bits=8)


@pytest.mark.parametrize(
    "facts",
    [
        {"absent": {"bits": 8, "shape": [2, 2]}},
        {"matrix": {"bits": 8, "shape": [3, 2]}},
        {"matrix": {"bits": 8}},
        ["matrix"],
    ],
)
def test_metadata_that_do_not_fit_the_tensors_are_damage(facts: Any, tmp_path: Path) -> None:
    tensors = {"matrix.codes": torch.zeros(4, dtype=torch.uint8), "matrix.scales": torch.ones(2).half()}
    save_file(tensors, tmp_path / QUANTISED, metadata={METADATA: json.dumps(facts)})
    with pytest.raises(Damaged, match="is damaged"):
        load_quantised(tmp_path / QUANTISED)


def test_one_matrix_is_read_alone(tmp_path: Path) -> None:
    save_quantised(tmp_path / QUANTISED, weights(), bits=4)
    whole = load_quantised(tmp_path / QUANTISED)
    assert np.array_equal(load_matrix(tmp_path / QUANTISED, "matrix"), whole["matrix"].numpy())
    with pytest.raises(Damaged):
        load_matrix(tmp_path / QUANTISED, "absent")
