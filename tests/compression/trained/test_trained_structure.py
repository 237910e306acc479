"""Theseus, LayerDrop, pruning and rounding while a model is fine-tuned: their laws, and short runs."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from firth import checkpoint as checkpoints
from firth import compression
from firth.checkpoint import Checkpoint
from firth.compression.block_forward import restore_forward
from firth.compression.changed_weights import MaskedWeight, ScoredWeight, linear_layers
from firth.compression.method import CompressionJob
from firth.compression.pruning import PruningConfig, scheduled_sparsity
from firth.compression.quantise_aware import rounded
from firth.compression.structure import blocks_of, with_layers
from firth.compression.theseus import TheseusConfig, TheseusExtension
from firth.data.packing import pack_tokens
from firth.errors import BadConfig
from firth.tensors import Encoder

Compress = Callable[..., Checkpoint]


def weights(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return {**checkpoint.encoder.state_dict(), **checkpoint.tasks["classify"].state_dict()}


def assert_same(first: Checkpoint, second: Checkpoint) -> None:
    other = weights(second)
    assert weights(first).keys() == other.keys()
    for name, tensor in weights(first).items():
        assert torch.equal(tensor, other[name]), name


def output(encoder: Encoder) -> torch.Tensor:
    batch = pack_tokens([torch.arange(5, 20).numpy(), torch.arange(9, 13).numpy()])
    torch.manual_seed(3)
    states: torch.Tensor = encoder(batch).last_ND
    return states.detach()


@pytest.fixture
def theseus(job: CompressionJob) -> tuple[TheseusExtension, Checkpoint]:
    method = compression.resolve("theseus")(TheseusConfig())
    extension = TheseusExtension(method, job, "theseus")  # type: ignore[arg-type]
    return extension, with_layers(job.original, [1, 3])


def test_theseus_at_probability_one_is_the_student(theseus: tuple[TheseusExtension, Checkpoint]) -> None:
    extension, student = theseus
    student.encoder.train()
    alone = output(student.encoder)
    extension.prepare_encoder(student.encoder)
    for module in extension.modules:
        module.probability = 1.0
    assert torch.equal(output(student.encoder), alone)
    for module in extension.modules:
        module.probability = 0.0
    assert not torch.equal(output(student.encoder), alone)
    extension.finish_encoder(student.encoder)
    assert torch.equal(output(student.encoder), alone)


def test_theseus_at_probability_zero_is_the_original(
    theseus: tuple[TheseusExtension, Checkpoint], job: CompressionJob
) -> None:
    extension, student = theseus
    extension.prepare_encoder(student.encoder)
    assert [len(module.old) for module in extension.modules] == [2, 2]
    for module in extension.modules:
        module.probability = 0.0
        module.new.training = True
    torch.testing.assert_close(output(student.encoder), output(job.original.encoder), atol=0, rtol=0)


def test_theseus_freezes_embeddings_until_new_layers_are_alone(
    theseus: tuple[TheseusExtension, Checkpoint],
) -> None:
    extension, student = theseus
    encoder = student.encoder
    extension.prepare_encoder(encoder)
    extension.before_step(encoder, step=30, steps=100)
    assert extension.modules[0].probability == pytest.approx(0.65)
    for name, parameter in encoder.named_parameters():
        assert parameter.requires_grad != name.startswith("embeddings.")
    extension.before_step(encoder, step=60, steps=100)
    assert extension.modules[0].probability == 1.0
    assert all(parameter.requires_grad for parameter in encoder.parameters())


def test_theseus_without_replacing_is_fine_tuning_of_the_student(compress: Compress) -> None:
    plain = compress("distil", folder="plain", num_layers=2, soft_weight=0.0, label_weight=1.0)
    alone = compress("theseus", folder="alone", num_layers=2, first_probability=1.0)
    assert_same(plain, alone)
    mixed = compress("theseus", folder="mixed", num_layers=2)
    assert not torch.equal(
        mixed.encoder.state_dict()["blocks.0.ffn.up.weight"], weights(alone)["blocks.0.ffn.up.weight"]
    )
    assert mixed.encoder.num_layers == 2


def test_layerdrop_at_zero_is_fine_tuning_and_any_depth_can_be_cut(compress: Compress, tmp_path: Path) -> None:
    plain = compress("distil", folder="plain/work", num_layers=4, soft_weight=0.0, label_weight=1.0)
    dropless = compress("layerdrop", folder="zero/work", drop=0.0, num_layers=4)
    assert_same(plain, dropless)
    whole = compress("layerdrop", folder="dropped/one", drop=0.5, num_layers=4)
    state = (tmp_path / "dropped" / "run" / "manifest.json").stat().st_mtime_ns
    cut = compress("layerdrop", folder="dropped/two", drop=0.5, num_layers=2)
    assert (tmp_path / "dropped" / "run" / "manifest.json").stat().st_mtime_ns == state
    assert_same(with_layers(whole, [1, 3]), cut)
    assert not torch.equal(weights(whole)["blocks.0.ffn.up.weight"], weights(plain)["blocks.0.ffn.up.weight"])


def test_magnitude_masks_the_smallest(compress: Compress) -> None:
    weight = torch.randn(6, 5)
    mask = MaskedWeight(weight)
    mask.prune(weight, 0.4)
    kept = mask(weight).abs()
    assert int((kept == 0).sum()) == 12
    assert weight[kept == 0].abs().max() < kept[kept > 0].min()
    small = compress("magnitude", sparsity=0.7)
    for linear in linear_layers(small.encoder):
        assert type(linear) is nn.Linear
        assert int((linear.weight == 0).sum()) == int(0.7 * linear.weight.numel())


def test_sparsity_rises_with_the_cube() -> None:
    config = PruningConfig(sparsity=0.8, begin=0.1, end=0.6)
    assert scheduled_sparsity(0.05, config) == 0.0
    assert scheduled_sparsity(0.35, config) == pytest.approx(0.8 * (1 - 0.5**3))
    assert scheduled_sparsity(0.6, config) == scheduled_sparsity(1.0, config) == 0.8


def test_scores_of_movement_have_the_gradient_of_the_mask(compress: Compress, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(1)
    weight = torch.randn(4, 3, requires_grad=True)
    scored = ScoredWeight(weight.detach())
    with torch.no_grad():
        scored.scores_RC.copy_(torch.randn(4, 3))
    scored.prune(weight, 0.5)
    x, wanted = torch.randn(7, 3), torch.randn(7, 4)
    loss = ((x @ scored(weight).T) - wanted).square().sum()
    loss.backward()
    used = (weight * scored.mask_RC).detach()
    gradient = 2 * (x @ used.T - wanted).T @ x
    torch.testing.assert_close(scored.scores_RC.grad, gradient * weight.detach())
    torch.testing.assert_close(weight.grad, gradient * scored.mask_RC)
    kept = scored.mask_RC.bool()
    assert scored.scores_RC[~kept].max() < scored.scores_RC[kept].min()
    with caplog.at_level(logging.WARNING):
        small = compress("movement", sparsity=0.5)
    assert "so few tell little about where weights move" in caplog.text
    for linear in linear_layers(small.encoder):
        assert int((linear.weight == 0).sum()) == linear.weight.numel() // 2


def test_rounded_weights_are_those_that_the_folder_gives_back(
    compress: Compress, job: CompressionJob, tmp_path: Path
) -> None:
    method = compression.resolve("quantise-aware")
    small = compress("quantise-aware", bits=3)
    before = {name: tensor.clone() for name, tensor in small.encoder.state_dict().items()}
    method(method.Config(bits=3)).write(tmp_path / "saved", small)  # type: ignore[call-arg]
    after = checkpoints.load(tmp_path / "saved").encoder.state_dict()
    changed = 0
    for number, linear in enumerate(linear_layers(job.original.encoder)):
        changed += int(not torch.equal(rounded(linear.weight, 3), linear.weight.detach()))
        assert number >= 0
    assert changed > 0
    for name in before:
        if name.startswith("blocks.") and before[name].ndim == 2:
            torch.testing.assert_close(after[name], before[name], atol=1e-6, rtol=0)
            assert len(before[name][0].unique()) <= 7


def test_mistakes(compress: Compress) -> None:
    for method, settings, words in (
        ("theseus", {"num_layers": 9}, "4 layers; num_layers=9"),
        ("theseus", {"first_probability": 2.0}, "between 0 and 1"),
        ("layerdrop", {"drop": 1.0}, "below 1"),
        ("layerdrop", {"num_layers": 9}, "4 layers; num_layers=9"),
        ("magnitude", {"sparsity": 1.0}, "0 <= sparsity < 1"),
        ("movement", {"score_rate": 0.0}, "above 0"),
        ("quantise-aware", {"bits": 9}, "2 to 8 bits"),
    ):
        with pytest.raises(BadConfig, match=words):
            compress(method, **settings)


def test_a_restored_block_runs_as_its_class_says(job: CompressionJob) -> None:
    blocks = blocks_of(job.original.encoder)
    before = output(job.original.encoder)
    restore_forward(blocks)
    assert torch.equal(output(job.original.encoder), before)
