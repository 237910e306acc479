"""ELMo and ULMFiT from text to tasks: both learn, resume to the byte, and a frozen ELMo's layers are mixed."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth import rng, samples
from firth.errors import BadConfig, BadInput
from firth.run_folder import LOCK
from firth.train.journal import read_rows
from firth.train.layer_rates import rate_share
from firth.train.optim import make_optimizer, scheduled_rate
from firth.train.settings import OptimConfig

OFTEN = ("train.checkpoint_every=4", "train.log_every=4", "train.evaluate_every=40", "batches.tokens=512")
SHAPES = {
    "elmo": ("elmo.width=16", "elmo.cell_width=32", "elmo.filters=[[1,4],[2,8],[3,8]]", "elmo.character_width=8"),
    "ulmfit": ("awd_lstm.width=24", "awd_lstm.cell_width=32", "awd_lstm.num_layers=2"),
}
# Two of eight seeds of these 40 steps, the first among them, give a start from which fine-tuning often ends with the
# same label for every row (one of eight with torch's dropout).
SEED = "train.seed=3"
CHANGES = {name: (*OFTEN, SEED, *(f"encoder.{change}" for change in shape)) for name, shape in SHAPES.items()}


@pytest.fixture(scope="module")
def letters(texts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small corpus as words that are read letter by letter."""
    out = tmp_path_factory.mktemp("letters") / "data"
    firth.prepare(texts, out=out, tokenizer="characters", cased=True, vocab_size=900, processes=0)
    return out


@pytest.fixture(scope="module")
def runs(letters: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each recipe."""
    made = {}
    for name, source in (("elmo", letters), ("ulmfit", data)):
        made[name] = tmp_path_factory.mktemp("recurrent") / name
        firth.pretrain(source, out=made[name], recipe=name, steps=40, changes=CHANGES[name], device="cpu")
    return made


@pytest.mark.parametrize("name", SHAPES)
def test_the_loss_falls_in_every_direction(name: str, runs: dict[str, Path]) -> None:
    rows = [row["causal_lm"] for row in read_rows(runs[name] / "metrics.jsonl") if row["split"] == "train"]
    assert rows[-1] < rows[0] - 0.7
    if name == "elmo":
        backward = [row["causal_lm_backward"] for row in read_rows(runs[name] / "metrics.jsonl")]
        assert backward[-1] < backward[0] - 0.5
        assert abs(backward[-1] - rows[-1]) < 0.5  # neither direction is left behind


@pytest.mark.parametrize("name", SHAPES)
def test_a_run_resumed_from_a_saved_state_ends_with_the_same_bytes(
    name: str, runs: dict[str, Path], letters: Path, data: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    shutil.copytree(runs[name], again)
    for path in again.iterdir():
        kept = ("run.toml", "source.json", "metrics.jsonl", "timing.jsonl", "report.html")
        if path.is_file() and path.name not in kept:
            path.unlink()
    shutil.rmtree(again / "checkpoints" / "step-40")
    assert (again / "checkpoints" / "step-36").is_dir()
    firth.pretrain(letters if name == "elmo" else data, out=again, resume=True)
    for file in ("model.safetensors", "metrics.jsonl", "firth.json"):
        assert (again / file).read_bytes() == (runs[name] / file).read_bytes()


def test_elmo_tells_unknown_words_apart(runs: dict[str, Path]) -> None:
    model = firth.load(runs["elmo"])
    unknown = ["zyxomat", "Zyxomats", "qqqq", "龘龘"]
    assert not set(unknown) & set(model.tokenizer.vocab.tokens)
    vectors = model.embed(unknown)
    assert len(np.unique(vectors.round(4), axis=0)) == 4


@pytest.mark.parametrize(("task", "sample", "language"), [("classify", "classify", "zh"), ("tag", "entities", "en")])
def test_a_frozen_elmo_is_mixed_by_a_task(
    task: str, sample: str, language: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    changes = ["transfer.mode=features", "transfer.features.layers=[0,1,2]", "epochs=2", "train.optim.rate=0.05"]
    out = tmp_path / "run"
    summary = firth.finetune(
        runs["elmo"], task=task, train=samples.labelled(sample, language), out=out, changes=changes
    )
    assert 0 <= summary["tasks"][task]["figures"]["dev"]["accuracy"]["mean"] <= 1
    model = firth.load(out)
    reader: Any = model.checkpoint.feature_encoder
    assert reader.gamma != 1
    assert len(reader.weights_K) == 3
    assert reader.weights_K.abs().max() > 0
    before = firth.load(runs["elmo"]).encoder.state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.encoder.state_dict().items())
    assert len(model.predict(["The zyxomat 很好吃 in Paris ."])) == 1


@pytest.fixture(scope="module")
def tuned(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both stages on the embedded labelled set."""
    out = tmp_path_factory.mktemp("ulmfit") / "run"
    changes = ["epochs=4", "lm.epochs=2", "lm.train.log_every=1"]
    rows = samples.labelled("classify", "en")
    firth.finetune(runs["ulmfit"], recipe="ulmfit", task="classify", train=rows, out=out, changes=changes)
    return out


def test_the_language_model_goes_on_with_the_rows_text_and_the_task_from_there(
    tuned: Path, runs: dict[str, Path]
) -> None:
    lm = firth.load(tuned / "lm")
    start = firth.load(runs["ulmfit"])
    assert list(lm.checkpoint.goals) == ["causal_lm"]
    before, after = start.encoder.state_dict(), lm.encoder.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before)
    rows = [row for row in read_rows(tuned / "lm" / "metrics.jsonl") if row["split"] == "train"]
    losses = [
        firth.evaluate(model, data=tuned / "lm" / "data")["causal_lm"] for model in (runs["ulmfit"], tuned / "lm")
    ]
    assert losses[1] < losses[0] - 0.1  # the training loss of a step is a handful of sentences, with dropout
    highest = max(range(len(rows)), key=lambda i: rows[i]["rate"])
    assert rows[highest]["rate"] == pytest.approx(4e-3, rel=0.2)
    assert 0 < highest < len(rows) // 4
    source = json.loads((tuned / "source.json").read_text())
    assert source["model"] == str((tuned / "lm").resolve())
    task: Any = firth.load(tuned).checkpoint.tasks["classify"]
    assert (task.config.pooling, task.config.head) == ("concat", "linear")
    assert task.head.weight.shape[1] == 3 * 24
    numbers = (tuned / "run.toml").read_text()
    assert "unfreeze_every = 0.25" in numbers
    assert "layer_decay = 0.3846" in numbers


def test_the_stages_change_every_layer_while_the_rate_is_high(tuned: Path) -> None:
    before, after = firth.load(tuned / "lm").encoder.state_dict(), firth.load(tuned).encoder.state_dict()
    moved = {name: float((after[name] - before[name]).abs().mean()) for name in before}
    assert min(moved.values()) > 1e-5
    assert min(moved[f"blocks.{block}.recurrent_weight"] for block in (0, 1)) > 1e-3
    optim = OptimConfig(rate=1.0, schedule="slanted", warmup_rate=0.1)
    opened = 4 * 0.25 / 6  # of the run, in three layers with the embedding below them
    assert scheduled_rate(round(opened * 600), 600, optim) > 0.9


def test_one_common_label_is_not_the_answer_to_everything(runs: dict[str, Path], tmp_path: Path) -> None:
    """Seven rows in ten say yes; of the words of a no, nine in ten are from the first half of the list, else five."""
    words = np.array(["the", "cat", "runs", "in", "house", "old", "new", "river", "tree", "by", "day", "water"])
    key, rows = rng.key("mostly yes"), np.arange(1000)
    no = rng.uniform(key, rows, 0) < 0.3
    first = rng.uniform(key, rows[:, None], 1 + np.arange(8)) < np.where(no, 0.9, 0.5)[:, None]
    texts = words[rng.below(key, 6, rows[:, None], 9 + np.arange(8)) + np.where(first, 0, 6)]
    lines = [f"{' '.join(text)}\t{'no' if label else 'yes'}" for text, label in zip(texts, no, strict=True)]
    table = tmp_path / "rows.tsv"
    table.write_text("\n".join(["text\tlabel", *lines]) + "\n")
    changes = ["epochs=8", "lm.epochs=0.2", "held_out_rate=0.2"]
    out = tmp_path / "run"
    found = firth.finetune(runs["ulmfit"], recipe="ulmfit", task="classify", train=table, out=out, changes=changes)
    assert found["tasks"]["classify"]["figures"]["dev"]["matthews"]["mean"] > 0.5  # 0 if all get the same label


def test_a_run_stopped_between_the_stages_ends_the_same(tuned: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / LOCK).touch()  # as a killed process leaves it
    shutil.copytree(tuned / "lm", out / "lm")
    changes = ["epochs=4", "lm.epochs=2", "lm.train.log_every=1"]
    rows = samples.labelled("classify", "en")
    with pytest.raises(BadInput, match="holds no run to resume; give all options"):
        firth.finetune(recipe="ulmfit", out=out, resume=True)
    firth.finetune(runs["ulmfit"], recipe="ulmfit", task="classify", train=rows, out=out, changes=changes)
    assert (out / "model.safetensors").read_bytes() == (tuned / "model.safetensors").read_bytes()
    assert (out / "head.safetensors").read_bytes() == (tuned / "head.safetensors").read_bytes()
    assert firth.finetune(recipe="ulmfit", out=out, resume=True) == json.loads((out / "results.json").read_text())


def test_the_language_model_may_learn_along_with_the_task(tuned: Path, tmp_path: Path) -> None:
    changes = ["transfer.auxiliary_lm=0.2", "epochs=1", "train.log_every=1"]
    rows = samples.labelled("classify", "en")
    firth.finetune(tuned / "lm", task="classify", train=rows, out=tmp_path / "run", changes=changes)
    logged = read_rows(tmp_path / "run" / "seed-1" / "metrics.jsonl")
    assert any("auxiliary_lm" in name for name in logged[0])


def test_what_ulmfit_cannot_start_from(run: Path, tmp_path: Path) -> None:
    rows = samples.labelled("classify", "en")
    with pytest.raises(BadConfig, match="does not predict the next token"):
        firth.finetune(run, recipe="ulmfit", task="classify", train=rows, out=tmp_path / "run")
    with pytest.raises(BadConfig, match="starts from a language model"):
        firth.finetune(recipe="ulmfit", task="classify", train=rows, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", ["many", "null", "0", "NaN"])
def test_passes_that_are_no_number_are_refused_before_anything_is_written(
    value: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    rows = samples.labelled("classify", "en")
    out = tmp_path / "run"
    with pytest.raises(BadConfig, match=r"epochs.* must be"):
        firth.finetune(
            runs["ulmfit"], recipe="ulmfit", task="classify", train=rows, out=out, changes=[f"lm.epochs={value}"]
        )
    assert not out.exists()


def test_a_slanted_schedule_is_the_papers() -> None:
    config = OptimConfig(rate=0.01, schedule="slanted", warmup_rate=0.1)
    rates = [scheduled_rate(step, 200, config) for step in range(200)]
    assert rates[0] == pytest.approx(0.01 / 32)
    assert max(rates) == rates[20] == pytest.approx(0.01)
    for step in (5, 60, 150):  # equation 3 of Howard & Ruder 2018
        share = step / 20 if step < 20 else 1 - (step - 20) / (20 * (1 / 0.1 - 1))
        assert rates[step] == pytest.approx(0.01 * (1 + share * 31) / 32)


def test_lower_layers_learn_more_slowly(runs: dict[str, Path]) -> None:
    encoder = firth.load(runs["ulmfit"]).encoder
    named = torch.nn.ModuleDict({"encoder": encoder})
    optimizer = make_optimizer(named, OptimConfig(), scale=lambda name: rate_share(name, num_layers=2, decay=0.5))
    shares = {id(p): group["scale"] for group in optimizer.param_groups for p in group["params"]}
    found = [shares[id(p)] for p in (encoder.blocks[1].input_weight, encoder.blocks[0].input_weight)]  # type: ignore[index,union-attr]
    assert [*found, shares[id(encoder.tokens.weight)]] == [0.5, 0.25, 0.125]  # type: ignore[union-attr]
