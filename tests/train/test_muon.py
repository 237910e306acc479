"""Muon: orthogonal updates for block matrices, AdamW for the rest, exact resume."""

from collections.abc import Callable
from pathlib import Path

import torch

import firth
from firth.encoders.bert import Bert
from firth.train.muon import orthogonal
from firth.train.optim import make_optimizer
from firth.train.settings import OptimConfig


def test_updates_are_nearly_orthogonal() -> None:
    torch.manual_seed(1)
    for shape in ((3, 32, 32), (2, 64, 16), (2, 16, 64)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert values.min() > 0.5
        assert values.max() < 1.3


def test_the_direction_is_that_of_the_polar_factor() -> None:
    torch.manual_seed(2)
    matrix = torch.randn(1, 24, 24)
    left, _, right = torch.linalg.svd(matrix)
    exact = left @ right
    cosine = (orthogonal(matrix) * exact).sum() / orthogonal(matrix).norm() / exact.norm()
    assert cosine > 0.97


def test_block_matrices_take_muon_and_everything_else_adamw(small_bert: Callable[..., Bert]) -> None:
    model = small_bert()
    optimizer = make_optimizer(model, OptimConfig(optimizer="muon", rate=1e-3))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer.step()
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim == 2 and name.startswith("blocks.")
        assert set(optimizer.state[parameter]) == ({"momentum"} if is_matrix else {"step", "exp_avg", "exp_avg_sq"})
        change = (parameter - before[name]).detach()
        size = change.square().mean().sqrt()
        assert 0.5e-4 < size < 1.2e-3, name  # both optimizers' steps are of the size of the rate


def test_the_three_parts_of_a_fused_projection_are_orthogonal_each(small_bert: Callable[..., Bert]) -> None:
    model = small_bert()
    optimizer = make_optimizer(model, OptimConfig(optimizer="muon", rate=1.0, weight_decay=0.0))
    weight = model.blocks[0].attention.qkv.weight
    before = weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    weight.grad = torch.randn_like(weight)
    weight.grad[: len(weight) // 3] *= 1000  # a large gradient of the queries must not drown the others
    optimizer.step()
    for part in (before - weight.detach()).chunk(3):
        assert torch.linalg.svdvals(part).min() > 0.3 * torch.linalg.svdvals(part).max()


def test_a_resumed_run_is_the_same(data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    changes = [*tiny, "train.optim.optimizer=muon"]
    firth.pretrain(data, out=tmp_path / "whole", steps=20, changes=changes)
    firth.pretrain(data, out=tmp_path / "cut", steps=20, changes=changes)
    for name in ("manifest.json", "model.safetensors"):
        (tmp_path / "cut" / name).unlink()
    for path in (tmp_path / "cut" / "checkpoints" / "step-20").iterdir():
        path.unlink()
    (tmp_path / "cut" / "checkpoints" / "step-20").rmdir()
    firth.pretrain(data, out=tmp_path / "cut", resume=True)
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
