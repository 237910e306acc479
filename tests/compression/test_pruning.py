"""Structural pruning: what is removed is exactly what a mask would silence, and the folder opens like any other."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import firth
from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.compression.ffn import PruneFeedForward, without_rows
from firth.compression.heads import PruneHeads, kept_heads, without_heads
from firth.compression.importance import feed_forward_importance, head_importance
from firth.compression.input_moments import calibration_batches, refitted
from firth.compression.layers import DropLayers, kept_layers
from firth.compression.low_rank import LowRank, factors
from firth.compression.method import CompressionJob
from firth.compression.sharing import ShareLayers, shared
from firth.compression.structure import blocks_of, with_layers
from firth.data.packing import pack_tokens
from firth.encoders.albert import Albert
from firth.encoders.gpt import GPT
from firth.errors import BadConfig, Unsupported
from firth.nn.low_rank import LowRankLinear
from firth.tensors import Encoder, parameter_count

Compress = Callable[..., Any]


def states(encoder: Encoder) -> torch.Tensor:
    """The states of three sequences of different lengths."""
    sequences = [np.arange(5, 5 + length) for length in (7, 3, 19)]
    with torch.inference_mode():
        found: torch.Tensor = encoder.eval()(pack_tokens(sequences)).last_ND
    return found


def copied(checkpoint: Checkpoint) -> Encoder:
    encoder = checkpoint.encoder
    copy: Encoder = type(encoder)(encoder.config)  # type: ignore[call-arg]
    copy.load_state_dict(encoder.state_dict())
    return copy.eval()


def checkpoint_of(encoder: Encoder, job: CompressionJob) -> Checkpoint:
    return replace(job.original, encoder=encoder.eval(), goals={}, tasks={}, layout="")


def test_removed_heads_equal_masked_heads(job: CompressionJob) -> None:
    pruned = without_heads(job.original, [[1], [0, 1]]).encoder
    masked = copied(job.original)
    width = masked.width // masked.config.num_heads
    with torch.no_grad():
        blocks_of(masked)[0].attention.out.weight[:, :width] = 0
    assert torch.allclose(states(pruned), states(masked), atol=1e-6)
    assert not torch.allclose(states(pruned), states(job.original.encoder), atol=1e-3)
    assert blocks_of(pruned)[0].attention.qkv.out_features == 3 * width
    assert [size.num_heads for size in pruned.config.block_sizes] == [1, 2]


def test_removed_rows_equal_masked_rows(job: CompressionJob) -> None:
    kept = [torch.arange(0, 64, 2), torch.arange(3, 60)]
    pruned = without_rows(job.original, kept).encoder
    masked = copied(job.original)
    for block, rows in zip(blocks_of(masked), kept, strict=True):
        silent = torch.ones(64, dtype=torch.bool)
        silent[rows] = False
        with torch.no_grad():
            block.ffn.down.weight[:, silent] = 0  # type: ignore[union-attr,index]
    assert torch.allclose(states(pruned), states(masked), atol=1e-6)
    assert [size.ffn_width for size in pruned.config.block_sizes] == [32, 57]


@pytest.mark.parametrize("kind", [Albert, GPT])
def test_other_encoders_are_pruned_too(
    kind: type[Encoder], job: CompressionJob, shrink: Callable[[Any], Any], tmp_path: Path
) -> None:
    torch.manual_seed(1)
    whole = checkpoint_of(kind(shrink(kind.Config())), job)
    num_blocks = len(blocks_of(whole.encoder))
    heads_gone = without_heads(whole, [[1]] * num_blocks)
    both_gone = without_rows(heads_gone, [torch.arange(5, 29)] * num_blocks)
    masked = copied(whole)
    for block in blocks_of(masked):
        with torch.no_grad():
            block.attention.out.weight[:, :16] = 0
            block.ffn.down.weight[:, :5] = 0  # type: ignore[union-attr,index]
            block.ffn.down.weight[:, 29:] = 0  # type: ignore[union-attr,index]
    assert torch.allclose(states(both_gone.encoder), states(masked), atol=1e-6)
    checkpoints.save(tmp_path / "pruned", both_gone)
    again = checkpoints.load(tmp_path / "pruned")
    assert torch.equal(states(again.encoder), states(both_gone.encoder))


def test_importance_is_the_change_of_the_loss_to_first_order(job: CompressionJob) -> None:
    """Of one sequence: the slope of the loss as a head's outputs are scaled is the head's importance."""
    one = replace(job, examples={**job.examples, "train": job.examples["train"][:1]})
    importance = head_importance(one, job.original.encoder, max_rows=1)
    items = job.head.encode(one.examples["train"], job.original.tokenizer, max_length=64, training=True)
    batch = job.head.batch(items)

    def scaled_loss(block: int, head: int, scale: float) -> float:
        encoder = copied(job.original)
        with torch.no_grad():
            blocks_of(encoder)[block].attention.out.weight[:, head * 16 : head * 16 + 16] *= scale
            return float(job.head.loss(encoder(batch), batch).sums[job.task])

    for block in range(2):
        for head in range(2):
            slope = (scaled_loss(block, head, 1.05) - scaled_loss(block, head, 0.95)) / 0.1
            assert abs(slope) == pytest.approx(float(importance[block][head]), rel=0.02, abs=1e-5)


def test_the_least_important_go_first_and_every_block_keeps_one() -> None:
    importance = [torch.tensor([0.9, 0.1, 0.2]), torch.tensor([0.01, 0.02, 0.03])]
    assert kept_heads(importance, remove=0.34) == [[0], [0, 1, 2]]
    assert kept_heads(importance, remove=0.99) == [[0], [2]]
    method = PruneFeedForward(PruneFeedForward.Config(remove=0.5, multiple=1))
    assert [rows.tolist() for rows in method.kept_rows([torch.tensor([4.0, 1, 3, 2])] * 2)] == [[0, 2], [0, 2]]
    over_all = PruneFeedForward(PruneFeedForward.Config(remove=0.5, multiple=1, spread="model"))
    rows = over_all.kept_rows([torch.tensor([4.0, 6, 5, 2]), torch.tensor([1.0, 0, 3, 0])])
    assert [found.tolist() for found in rows] == [[0, 1, 2], [2]]


def test_importance_leaves_the_model_as_it_is(job: CompressionJob) -> None:
    before = states(job.original.encoder)
    values = feed_forward_importance(job, job.original.encoder, max_rows=20)
    assert [len(values_F) for values_F in values] == [64, 64]
    assert all(bool((values_F > 0).any()) for values_F in values)
    assert torch.equal(states(job.original.encoder), before)


def test_refitted_weights_are_nearer_on_real_inputs(job: CompressionJob) -> None:
    """Where kept inputs say something about removed ones, the others stand in for them; otherwise nothing changes."""
    torch.manual_seed(1)
    inputs_ND = torch.randn(300, 6, dtype=torch.float64)
    inputs_ND[:, 4:] = inputs_ND[:, :2] + 0.1 * inputs_ND[:, 4:]
    weight_ED = torch.randn(5, 6)
    kept = torch.tensor([0, 1, 2, 3])
    moments_DD = inputs_ND.T @ inputs_ND
    new_EK = refitted(weight_ED, moments_DD, kept)
    exact_NE = inputs_ND @ weight_ED.double().T

    def error(found_EK: torch.Tensor) -> float:
        return float((inputs_ND[:, kept] @ found_EK.double().T - exact_NE).square().mean())

    assert error(new_EK) < 0.1 * error(weight_ED[:, kept])
    assert torch.equal(refitted(weight_ED, torch.eye(6, dtype=torch.float64), kept), weight_ED[:, kept])
    # The whole method: nearer to the original than the same rows without refitting.
    batch = next(calibration_batches(job, max_rows=50))
    apart = {}
    for refit in (True, False):
        pruned = PruneFeedForward(PruneFeedForward.Config(remove=0.5, refit=refit)).compress(job).encoder
        with torch.inference_mode():
            apart[refit] = float((pruned(batch).last_ND - job.original.encoder(batch).last_ND).norm())
    assert apart[True] < apart[False]


def test_layers(job: CompressionJob) -> None:
    assert kept_layers(12, 6, which="bottom") == [0, 1, 2, 3, 4, 5]
    assert kept_layers(12, 6, which="spread") == [1, 3, 5, 7, 9, 11]
    assert kept_layers(12, 5, which="spread") == [1, 3, 6, 8, 11]
    assert kept_layers(3, 3, which="spread") == [0, 1, 2]
    top = with_layers(job.original, [1]).encoder
    sequences = [np.arange(5, 25)]
    batch = pack_tokens(sequences)
    with torch.inference_mode():
        all_layers = job.original.encoder(batch, layers=True).layers
        one = with_layers(job.original, [0]).encoder(batch).last_ND
    assert torch.equal(one, all_layers[1])
    assert torch.equal(blocks_of(top)[0].attention.qkv.weight, blocks_of(job.original.encoder)[1].attention.qkv.weight)
    with pytest.raises(BadConfig, match="has 2 layers; num_layers=3 is more"):
        DropLayers(DropLayers.Config(num_layers=3)).compress(job)


def test_full_rank_is_the_same_matrix_and_low_rank_the_nearest() -> None:
    torch.manual_seed(1)
    inputs_ND = torch.randn(200, 12, dtype=torch.float64) * torch.linspace(0.1, 5, 12)
    weight_ED = torch.randn(8, 12)
    moments_DD = inputs_ND.T @ inputs_ND
    first_RD, second_ER = factors(weight_ED, moments_DD, energy=1.0, multiple=8)
    assert torch.allclose(second_ER @ first_RD, weight_ED, atol=1e-4)
    first_RD, second_ER = factors(weight_ED, moments_DD, energy=0.6, multiple=1)
    rank = len(first_RD)
    assert 1 <= rank < 8
    plain_ER, values_R, plain_RD = torch.linalg.svd(weight_ED.double(), full_matrices=False)
    plain_ED = plain_ER[:, :rank] * values_R[:rank] @ plain_RD[:rank]

    def error(found_ED: torch.Tensor) -> float:
        return float((inputs_ND @ (found_ED.double() - weight_ED.double()).T).square().sum())

    assert error(second_ER @ first_RD) < error(plain_ED)


def test_low_rank_layers_save_and_load(job: CompressionJob, tmp_path: Path) -> None:
    reduced = LowRank(LowRank.Config(energy=0.5, multiple=1)).compress(job)
    assert any(isinstance(module, LowRankLinear) for module in reduced.encoder.modules())
    assert parameter_count([reduced.encoder]) < parameter_count([job.original.encoder])
    checkpoints.save(tmp_path / "low", reduced)
    again = checkpoints.load(tmp_path / "low")
    assert torch.equal(states(again.encoder), states(reduced.encoder))
    # Pruning goes on from there.
    pruned = without_heads(again, [[0], [1]])
    assert states(pruned.encoder).shape == states(reduced.encoder).shape
    mild = LowRank(LowRank.Config(energy=1.0)).compress(job)
    assert torch.equal(states(mild.encoder), states(job.original.encoder))  # no product would be smaller


@pytest.mark.parametrize("embedding_width", [0, 16])
def test_equal_layers_shared_are_the_same_model(
    embedding_width: int, job: CompressionJob, small_bert: Callable[..., Any], tmp_path: Path
) -> None:
    bert = small_bert(embedding_width=embedding_width, num_layers=3)
    for block in bert.blocks[1:]:
        block.load_state_dict(bert.blocks[0].state_dict())
    albert = shared(checkpoint_of(bert, job))
    assert isinstance(albert.encoder, Albert)
    assert torch.allclose(states(albert.encoder), states(bert), atol=1e-6)
    checkpoints.save(tmp_path / "shared", albert)
    assert torch.equal(states(checkpoints.load(tmp_path / "shared").encoder), states(albert.encoder))


def test_shared_layers_are_means(job: CompressionJob) -> None:
    albert = ShareLayers(ShareLayers.Config(num_layers=5)).compress(job).encoder
    first, second = (block.ffn.up.weight for block in blocks_of(job.original.encoder))
    assert torch.allclose(blocks_of(albert)[0].ffn.up.weight, (first + second) / 2)  # type: ignore[union-attr]
    assert albert.num_layers == 5
    with pytest.raises(Unsupported, match="this model is of the kind Albert"):
        shared(checkpoint_of(albert, job))


@pytest.mark.parametrize(
    ("by", "change", "model_type"),
    [
        ("heads", "remove=0.5", "firth-bert"),
        ("ffn", "remove=0.5", "bert"),
        ("layers", "num_layers=1", "bert"),
        ("low-rank", "energy=0.4", "firth-bert"),
        ("share", "num_layers=2", "albert"),
    ],
)
def test_a_compressed_folder_opens_like_any_other(
    by: str, change: str, model_type: str, compress: Compress, tuned: Path, rows: Path, tmp_path: Path
) -> None:
    figures = compress(by, change)
    small = tmp_path / "small"
    assert figures["reached"]
    assert figures["compressed"]["parameters"] < figures["original"]["parameters"]
    settings = firth.load(small).info()
    assert settings.training["compressed"][0]["method"] == by
    assert checkpoints.read_json(small / "config.json")["model_type"] == model_type
    assert firth.evaluate(small, data=rows)["rows"] > 0
    assert firth.load(small).predict(["a good day"])[0].label
    card = (small / "README.md").read_text("utf-8")
    assert f"## Compressed by {by}: " in card
    assert figures["card"] in card
    assert "## The original\n" in card
    assert "## The compressed model\n" not in card
    if model_type == "bert":
        theirs = transformers.AutoModelForSequenceClassification.from_pretrained(small)
        assert type(theirs).__name__ == "BertForSequenceClassification"
    # It can be compressed again, and fine-tuned.
    again = firth.compress(small, by="weights", data=rows, out=tmp_path / "again", changes=["bits=8"])
    assert again["compressed"]["disk_bytes"] < again["original"]["disk_bytes"]
    assert [note["method"] for note in firth.load(tmp_path / "again").info().training["compressed"]] == [by, "weights"]
    firth.finetune(small, task="classify", train=rows, out=tmp_path / "more", changes=["epochs=1"], device="cpu")
    assert checkpoints.read_json(tmp_path / "more" / "config.json")["model_type"] == model_type


def test_strengths_rise(job: CompressionJob) -> None:
    for method_class in (PruneHeads, PruneFeedForward, DropLayers, LowRank):
        strengths = method_class.strengths(job.original, method_class.Config())
        sizes = []
        for config in (strengths[0], strengths[-1]):
            sizes.append(parameter_count([method_class(config).compress(job).encoder]))
        assert sizes[0] >= sizes[-1], method_class.name


def test_a_single_layer_is_named_in_the_singular() -> None:
    assert DropLayers(DropLayers.Config(num_layers=1)).described == "1 layer, bottom"
    assert DropLayers(DropLayers.Config(num_layers=2)).described == "2 layers, bottom"
