"""`firth plan`: close to runs that were measured, right in its arithmetic, and clear about what will not fit."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import firth
from bench import plan_check
from firth import lineage, samples
from firth.errors import BadConfig, Unsupported
from firth.planning import probe
from firth.planning.communication import all_reduce_seconds, exposed_seconds, sent_bytes
from firth.planning.cost import memory_bytes, step_seconds, work_of
from firth.planning.estimate import estimate
from firth.planning.machines import GPUS, Cluster, cpu, find, from_cuda_name
from firth.planning.texts import TextSize, parse_size

ROOT = Path(__file__).parents[2]
TEXT = TextSize(4.5e9, 1e9, "")


@pytest.mark.parametrize("row", list(plan_check.compared()), ids=lambda row: row.what)
def test_predictions_are_close_to_measured_runs(row: plan_check.Compared) -> None:
    assert row.ratio == pytest.approx(1, abs=row.limit)


def test_results_show_the_table() -> None:
    assert "\n".join(plan_check.lines()) in (ROOT / "docs/results.md").read_text("utf-8")


@pytest.mark.parametrize("size", ["tiny", "mini", "base", "large"])
def test_parameters_are_those_of_the_encoder(size: str) -> None:
    import torch

    from firth.encoders.bert import Bert

    recipe = lineage.make("roberta", size)
    config = recipe.encoder["bert"]
    with torch.device("meta"):
        encoder = Bert(replace(config, init="normal"))
    built = sum(parameter.numel() for parameter in encoder.parameters())
    # Positions, norms, biases and the head's transform are left out or estimated.
    assert work_of(recipe).parameters == pytest.approx(built, rel=0.03)


def test_more_of_everything_takes_longer() -> None:
    h200 = GPUS["H200"]
    base = work_of(lineage.make("bert", "base"))
    assert step_seconds(base, GPUS["A100"]) > step_seconds(base, h200)
    assert step_seconds(base, h200, micro_batches=4) > 3 * step_seconds(base, h200)
    longer = work_of(lineage.make("bert", "base"), length=512)
    assert step_seconds(longer, h200) > step_seconds(base, h200)
    assert memory_bytes(base, h200, shares=8) < memory_bytes(base, h200)
    generator = work_of(lineage.make("electra", "12x256"))
    alone = work_of(lineage.make("bert", "12x256"))
    assert generator.flops > alone.flops


def test_ring_moves_nearly_twice_its_bytes() -> None:
    assert all_reduce_seconds(1e9, 1, bandwidth=1e9) == 0
    assert all_reduce_seconds(1e9, 2, bandwidth=1e9, latency=0) == pytest.approx(1.0)
    assert all_reduce_seconds(1e9, 1000, bandwidth=1e9, latency=0) == pytest.approx(2.0, rel=0.01)
    cluster = Cluster(GPUS["H200"], machines=4, devices=8, network=100)
    assert sent_bytes(1e9, cluster, "ddp") == pytest.approx(2 * 31 / 32 * 4e9)
    assert sent_bytes(1e9, cluster, "fsdp") == pytest.approx(31 / 32 * 8e9)
    # Weights are gathered in every micro-batch, gradients of ddp are added once.
    assert sent_bytes(1e9, cluster, "fsdp", micro_batches=4) == pytest.approx(4 * 31 / 32 * 8e9)
    assert sent_bytes(1e9, cluster, "ddp", micro_batches=4) == sent_bytes(1e9, cluster, "ddp")
    # The slowest link counts, and what fsdp sends is hidden behind enough computing.
    in_one_machine = Cluster(GPUS["H200"], devices=8)
    slow = exposed_seconds(1e9, cluster, "ddp", computing=1.0)
    assert slow > 10 * exposed_seconds(1e9, in_one_machine, "ddp", computing=1.0)
    assert exposed_seconds(1e9, in_one_machine, "fsdp", computing=10.0) == 0


def test_what_a_step_sends_is_that_of_all_its_micro_batches() -> None:
    base = lineage.make("bert", "base")
    cluster = Cluster(GPUS["H200"], devices=8)
    sent = []
    for accumulate in (8, 32):
        recipe = replace(base, train=replace(base.train, parallel="fsdp", accumulate=accumulate))
        sent.append(estimate(recipe, TEXT, cluster, steps=1000).sent_per_step)
    assert sent[1] == pytest.approx(4 * sent[0])


def test_what_does_not_fit_is_said() -> None:
    recipe = replace(
        lineage.make("bert", "large"), batches=replace(lineage.make("bert", "large").batches, tokens=65536)
    )
    too_small = estimate(recipe, TEXT, Cluster(GPUS["A10"]), steps=1000)
    assert not too_small.fits
    assert any("does not fit" in warning and "train.recompute=true" in warning for warning in too_small.warnings)
    assert estimate(recipe, TEXT, Cluster(GPUS["H200"]), steps=1000).fits
    # 335M parameters need 6 GB in training: too many for half of a small card, so they are shared.
    tiny_card = replace(GPUS["A10"], memory=8e9)
    assert estimate(recipe, TEXT, Cluster(tiny_card, devices=8), steps=1000).parallel == "fsdp"
    assert estimate(recipe, TEXT, Cluster(GPUS["H200"], devices=8), steps=1000).parallel == "ddp"


def test_a_step_that_devices_cannot_share_is_said() -> None:
    shared = firth.plan(text_size="20GB", gpus=4, changes=["train.accumulate=8"]).estimate
    assert shared.tokens_per_step == 8 * lineage.make("bert", "base").batches.tokens
    assert not any("cannot share" in warning for warning in shared.warnings)
    uneven = firth.plan(text_size="20GB", gpus=8, changes=["train.accumulate=4"]).estimate
    assert any("4 micro-batches (train.accumulate), which 8 devices" in warning for warning in uneven.warnings)


def test_a_slow_machine_is_limited_by_the_same_thing() -> None:
    """A probe scales all terms of the cost alike."""
    recipe = lineage.make("bert", "large")
    for device in (GPUS["H200"], GPUS["L4"]):
        usual = estimate(recipe, TEXT, Cluster(device), steps=1000)
        slow = estimate(recipe, TEXT, Cluster(replace(device, speed=0.3)), steps=1000)
        assert slow.bottleneck == usual.bottleneck


def test_hours_price_and_table() -> None:
    plan = firth.plan(text_size="20GB", epochs=2, gpus=8, price=3.0)
    found = plan.estimate
    assert found.epochs == pytest.approx(2, rel=0.01)
    assert found.steps * found.tokens_per_step == pytest.approx(2 * found.tokens, rel=0.01)
    assert found.price == pytest.approx(found.hours * 8 * 3)
    assert any("projection" in assumption for assumption in found.assumptions)
    rows = plan.table()
    assert {(row.num_bytes, row.devices) for row in rows} >= {(1e12, 1000), (1e9, 1)}
    hours = {row.devices: row.estimate.hours for row in rows if row.num_bytes == 1e12}
    assert hours[1000] < hours[64] < hours[8] < hours[1]
    # Twelve devices are two machines of six, and eleven are eleven machines.
    for row in plan.table(devices=(3, 11, 12)):
        assert row.estimate.device_hours == pytest.approx(row.devices * row.estimate.hours)


def test_what_the_run_would_refuse_is_said() -> None:
    changes = ["train.parallel=fsdp", "train.optim.optimizer=muon"]
    refused = firth.plan(text_size="20GB", gpus=8, changes=changes).estimate
    assert any("refuse train.parallel=fsdp" in warning for warning in refused.warnings)


def test_tokens_of_a_sample_and_of_prepared_text(data: Path, texts: list[Path]) -> None:
    sampled = firth.plan(text=texts[0], text_size="1GB", size="mini", gpu="cpu").text
    assert 2 < sampled.num_bytes / sampled.tokens < 7
    prepared = firth.plan(text=data, size="mini", gpu="cpu").text
    info = json.loads((data / "shards.json").read_text())
    assert prepared.tokens == info["tokens"]
    assert prepared.num_bytes == info["health"]["bytes_read"]
    # A sample may be prepared text, and lie in a store.
    larger = firth.plan(text=f"file://{data}", text_size="1GB", size="mini", gpu="cpu").text
    assert larger.num_bytes == 1e9
    assert larger.tokens == pytest.approx(1e9 * info["tokens"] / info["health"]["bytes_read"])


def test_a_sample_with_half_a_character_is_planned_with(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "\\ud800 Half of a character stands before this."}\n' * 3)
    assert firth.plan(text=tmp_path / "rows.jsonl", size="mini", gpu="cpu").text.tokens > 20


def test_only_the_field_of_a_row_is_text(tmp_path: Path) -> None:
    prose = samples.prose("zh").read_text("utf-8").split("\n\n")
    rows = [json.dumps({"id": "x" * 500, "text": text}) for text in prose]  # escapes, and a field that nobody reads
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "text.txt").write_text("\n\n".join(prose) + "\n")
    plain, table = (
        firth.plan(text=tmp_path / name, size="mini", gpu="cpu").text for name in ("text.txt", "rows.jsonl")
    )
    assert table.num_bytes > 2 * plain.num_bytes
    assert table.tokens == pytest.approx(plain.tokens, rel=0.02)


@pytest.mark.parametrize(("written", "expected"), [("20GB", 2e10), ("1.5 tb", 1.5e12), ("300M", 3e8), ("12", 12.0)])
def test_sizes(written: str, expected: float) -> None:
    assert parse_size(written) == expected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"text_size": "much"}, "'much' is not a size of a text"),
        ({}, "Give a text or a sample of it by `text=`, or `text_size='20GB'`."),
        ({"text_size": "1GB", "gpu": "H20O"}, "did you mean H200?"),
        ({"text_size": "1GB", "steps": 1, "epochs": 1}, "Give one of `steps=` and `epochs=`"),
        ({"text_size": "1GB", "gpus": 0}, "at least one machine"),
        ({"text_size": "1GB", "epochs": math.nan}, "must be above zero"),
        ({"text_size": "1GB", "epochs": math.inf}, "at most a billion"),
        ({"text_size": "1GB", "epochs": 1e300}, "at most a billion"),
        ({"text_size": "1GB", "network": math.nan}, "network above 0"),
        ({"text_size": "1GB", "price": math.inf}, "price at least 0"),
    ],
)
def test_mistakes_get_a_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadConfig, match=re.escape(sentence)):
        firth.plan(**options)  # type: ignore[arg-type]


def test_recipes_that_are_no_transformers_are_refused() -> None:
    with pytest.raises(Unsupported, match="elmo is none of them"):
        firth.plan(text_size="1GB", recipe="elmo", size="mini")


def test_names_of_gpus() -> None:
    assert find("h200") is GPUS["H200"]
    assert from_cuda_name("NVIDIA H200") == "H200"
    assert from_cuda_name("NVIDIA GeForce RTX 4090") == "RTX-4090"
    assert from_cuda_name("NVIDIA A100-SXM4-40GB") == "A100"
    assert from_cuda_name("NVIDIA H100 PCIe") == "H100-PCIe"
    assert from_cuda_name("NVIDIA A10G") == "A10"
    # A longer number is another card.
    assert from_cuda_name("NVIDIA L40") == ""
    assert from_cuda_name("NVIDIA RTX A1000 Laptop GPU") == ""
    assert from_cuda_name("Some Other Card") == ""


def test_a_probe_finds_the_speed_of_this_machine() -> None:
    assert samples.prose("en").exists()
    device = probe.probe(lineage.make("bert", "tiny"), seconds=1.0)
    assert device.source == "probe"
    assert device.speed > 0
    recipe = lineage.make("bert", "tiny")
    usual = replace(device, speed=1.0, source="measured")
    assert step_seconds(work_of(recipe), device) == pytest.approx(step_seconds(work_of(recipe), usual) / device.speed)
    assert cpu(2).flops == 2 * cpu(1).flops


def test_a_text_without_its_option_is_no_setting(tmp_path: Path, command: Callable[..., Any]) -> None:
    answer = command("plan", tmp_path)
    assert (answer.code, answer.err) == (
        2,
        f"firth: '{tmp_path}' is not a setting; if it is a text, write --text {tmp_path}.\n",
    )
