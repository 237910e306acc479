"""What a person asks of pre-training becomes a run's numbers: a model that is trained on keeps its own shape."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import firth
from firth import checkpoint as checkpoints
from firth import lineage
from firth.config import load_toml
from firth.encoders.bert import Bert
from firth.errors import BadConfig
from firth.pretraining.planning import PretrainRequest, resolve_config


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


def test_a_shape_without_a_name_is_told_by_its_numbers(run: Path) -> None:
    loaded = checkpoints.load(run)
    unnamed = checkpoints.Checkpoint(loaded.encoder, loaded.goals, loaded.tokenizer)
    plan = resolve_config(PretrainRequest(), None, start=unnamed, vocab_size=0)
    assert plan.size == f"{loaded.encoder.num_layers} x 32"
    assert plan.train.optim.rate == lineage.make("bert", "tiny").train.optim.rate  # that of the nearest width
    with pytest.raises(BadConfig, match="leave out `size='tiny'`"):
        resolve_config(PretrainRequest(size="tiny"), None, start=unnamed, vocab_size=0)


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
