"""Weights in few bits: what is written comes back, within the step of each row."""

from pathlib import Path

import pytest
import torch

from firth.convert.row_quantised import load_quantised, quantise_rows, save_quantised
from firth.errors import BadConfig, Damaged
from firth.files import QUANTISED


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
    assert sizes[0] == pytest.approx(256 * 512, rel=0.02)
    assert sizes[1] / sizes[0] == pytest.approx(6 / 8, rel=0.02)
    assert sizes[2] / sizes[0] == pytest.approx(4 / 8, rel=0.02)


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
