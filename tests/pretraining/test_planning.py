"""What a person asks of pre-training becomes a run's numbers: a model that is trained on keeps its own shape."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import firth
from firth import checkpoint as checkpoints
from firth import lineage, samples
from firth.config import load_toml
from firth.encoders.bert import Bert
from firth.errors import BadConfig
from firth.pretraining.planning import CONTINUED_MUON_RATE, CONTINUED_RATE, PretrainRequest, resolve_config
from firth.train.settings import OptimConfig


@pytest.mark.parametrize("size", ["mini", "base"])
def test_another_size_than_the_models_is_refused(
    size: str, run: Path, data: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    answer = command("pretrain", data, "--from", run, "--size", size, "--out", tmp_path / "more")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"firth: The model of --from is of size tiny and keeps it; leave out --size {size}.\n"
    assert not (tmp_path / "more").exists()


def test_what_is_trained_on_keeps_size_and_recipe(data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    firth.pretrain(data, out=tmp_path / "first", recipe="roberta", steps=1, changes=tiny)
    batches = [change for change in tiny if not change.startswith("encoder.")]
    firth.pretrain(data, out=tmp_path / "more", start_from=tmp_path / "first", size="tiny", steps=1, changes=batches)
    written = load_toml(tmp_path / "more/run.toml")
    assert (written["recipe"], written["size"], written["encoder"]["bert"]["width"]) == ("roberta", "tiny", 32)
    assert list(written["objectives"]) == ["masked_lm"]


def test_a_second_training_keeps_what_the_first_one_made_of_the_model(
    data: Path, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    firth.pretrain(data, out=tmp_path / "first", recipe="roberta", steps=1, changes=(*tiny, "batches.max_length=48"))
    batches = [change for change in tiny if not change.startswith("encoder.")]
    shorter = (*batches, "batches.max_length=16")
    firth.pretrain(data, out=tmp_path / "second", start_from=tmp_path / "first", steps=2, changes=shorter)
    firth.pretrain(data, out=tmp_path / "third", start_from=tmp_path / "second", steps=1, changes=shorter)
    first, second, third = (checkpoints.load(tmp_path / name).info for name in ("first", "second", "third"))
    assert (second["max_length"], third["max_length"]) == (48, 48)
    tokens = first["tokens"]
    assert second["trained_before"] == f"roberta, 1 step of {tokens:,} tokens in all"
    assert third["trained_before"] == f"{second['trained_before']}; roberta, 2 steps of {2 * tokens:,} tokens in all"
    assert "| Trained before | roberta, 1 step of" in (tmp_path / "second/README.md").read_text("utf-8")


def test_a_shape_without_a_name_is_told_by_its_numbers(run: Path) -> None:
    loaded = checkpoints.load(run)
    unnamed = checkpoints.Checkpoint(loaded.encoder, loaded.goals, loaded.tokenizer)
    plan = resolve_config(PretrainRequest(), None, start=unnamed, vocab_size=0)
    assert plan.size == f"{loaded.encoder.num_layers} x 32"
    # A share of that of the nearest width.
    assert plan.train.optim.rate == CONTINUED_RATE * lineage.make("bert", "tiny").train.optim.rate
    with pytest.raises(BadConfig, match="leave out `size='tiny'`"):
        resolve_config(PretrainRequest(size="tiny"), None, start=unnamed, vocab_size=0)


def test_a_trained_model_continues_with_its_optimizer_at_a_rate_that_it_survives(run: Path) -> None:
    loaded = checkpoints.load(run)

    def plan(optimizer: str, *changes: str) -> OptimConfig:
        start = replace(loaded, info={**loaded.info, "optimizer": optimizer})
        return resolve_config(PretrainRequest(changes=changes), None, start=start, vocab_size=0).train.optim

    whole_rate = lineage.make("bert", "tiny").train.optim.rate
    assert (plan("adamw").optimizer, plan("adamw").rate) == ("adamw", CONTINUED_RATE * whole_rate)
    assert (plan("muon").optimizer, plan("muon").rate) == ("muon", CONTINUED_MUON_RATE)
    assert plan("muon", "train.optim.optimizer=adamw", "train.optim.rate=1e-5").rate == 1e-5


@pytest.mark.parametrize("name", ["en-small", "zh-small"])
def test_a_default_model_that_continues_keeps_what_it_knows(name: str, tmp_path: Path) -> None:
    """Eight steps at the recipe's own rate bring AdamW's loss from 3.5 to above 6."""
    language = name.partition("-")[0]
    firth.prepare(samples.prose(language), tokenizer=name, out=tmp_path / "data", processes=0)
    batches = ("batches.tokens=512", "batches.max_length=64", "batches.held_out_rate=0.2")

    def loss_after(steps: int, *changes: str) -> float:
        result = firth.pretrain(
            tmp_path / "data",
            start_from=name,
            steps=steps,
            changes=(*batches, *changes),
            out=tmp_path / f"{steps}",
            device="cpu",
        )
        return float(result["masked_lm"])

    assert loss_after(8) < loss_after(1, "train.optim.rate=1e-9") + 0.3


def test_a_generator_of_another_shape_than_the_recipes_is_trained_further(
    data: Path, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    shape = "objectives.replaced_token.generator"
    generator = (f"{shape}.width=32", f"{shape}.num_layers=2", f"{shape}.num_heads=2", f"{shape}.ffn_width=48")
    firth.pretrain(data, out=tmp_path / "first", recipe="electra", steps=1, changes=(*tiny, *generator))
    batches = [change for change in tiny if not change.startswith("encoder.")]
    firth.pretrain(data, out=tmp_path / "more", start_from=tmp_path / "first", steps=1, changes=batches)
    written = load_toml(tmp_path / "more/run.toml")
    assert written["objectives"]["replaced_token"]["generator"]["ffn_width"] == 48
    changed = [*batches, f"{shape}.num_layers=1"]
    with pytest.raises(BadConfig, match="has other weights than objectives"):
        firth.pretrain(data, out=tmp_path / "other", start_from=tmp_path / "first", steps=1, changes=changed)


def test_the_numbers_are_those_of_the_nearest_width_and_depth(run: Path) -> None:
    loaded = checkpoints.load(run)
    deep = Bert(Bert.Config(vocab_size=64, width=256, num_layers=12, num_heads=4))
    plan = resolve_config(
        PretrainRequest(recipe="electra"), None, start=checkpoints.Checkpoint(deep, {}, loaded.tokenizer), vocab_size=64
    )
    assert plan.objectives == lineage.make("electra", "12x256").objectives
    assert plan.objectives != lineage.make("electra", "mini").objectives
