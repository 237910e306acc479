"""GPT from raw text to every task: byte-level BPE, pre-training, generation, the four input forms, the auxiliary LM."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import firth
from firth import checkpoint as checkpoints
from firth import samples
from firth.data.items import text_items
from firth.data.packing import pack_tokens
from firth.errors import BadConfig
from firth.files import read_json
from firth.nn.pooling import pooled_rows
from firth.train.journal import read_rows
from firth.types import Example

TINY = (
    "encoder.gpt.width=32",
    "encoder.gpt.num_layers=2",
    "encoder.gpt.num_heads=2",
    "encoder.gpt.ffn_width=128",
    "encoder.gpt.max_positions=64",
    "batches.max_length=64",
    "batches.tokens=1024",
    "batches.held_out_rate=0.1",
    "train.log_every=5",
    "train.optim.rate=5e-3",
)
CLASSIFY, ENTITIES, PAIRS = (samples.labelled(name, "en") for name in ("classify", "entities", "pairs"))
SMALL = ("batch_size=16", "epochs=1")


@pytest.fixture(scope="module")
def bpe_data(texts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bpe") / "data"
    firth.prepare(texts, out=out, tokenizer="bpe", vocab_size=1000, processes=0)
    return out


@pytest.fixture(scope="module", params=["gpt", "gpt-2"])
def gpt(request: pytest.FixtureRequest, bpe_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp(request.param) / "run"
    firth.pretrain(bpe_data, out=out, recipe=request.param, steps=30, changes=TINY, device="cpu")
    return out


def test_it_learns_and_tells_its_perplexity(gpt: Path, bpe_data: Path) -> None:
    rows = read_rows(gpt / "metrics.jsonl")
    losses = [row["causal_lm"] for row in rows if row["split"] == "train"]
    assert losses[-1] < losses[0] - 0.5
    measured = firth.evaluate(gpt, data=bpe_data)
    assert measured["perplexity"] == pytest.approx(np.exp(measured["causal_lm"]))
    assert firth.load(gpt).info().heads == ["causal_lm"]


def test_its_folder_is_transformers(gpt: Path) -> None:
    theirs, report = AutoModelForCausalLM.from_pretrained(gpt, output_loading_info=True)
    assert not any(report.values()), report
    text = "The model learns to predict 下一个词."
    encoded = AutoTokenizer.from_pretrained(gpt)(text, return_tensors="pt")
    ours = checkpoints.load(gpt)
    ids = ours.tokenizer.vocab.frame.join(ours.tokenizer.encode(text).ids)
    assert encoded["input_ids"][0].tolist() == ids.tolist()
    with torch.inference_mode():
        states = ours.encoder(pack_tokens([ids]))
        scores = ours.goals["causal_lm"].scores(states.last_ND, states.table_VD)  # type: ignore[operator]
        assert torch.allclose(theirs.eval()(encoded["input_ids"]).logits[0], scores, atol=1e-4)


def test_a_stopped_run_goes_on_to_the_same_weights(bpe_data: Path, tmp_path: Path) -> None:
    told: dict[str, Any] = {"recipe": "gpt-2", "changes": (*TINY, "train.checkpoint_every=4"), "device": "cpu"}
    firth.pretrain(bpe_data, out=tmp_path / "whole", steps=8, **told)
    states = sorted((tmp_path / "whole" / "checkpoints").iterdir())
    assert [path.name for path in states] == ["step-4", "step-8"]
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "checkpoints" / "step-8")
    for name in ("manifest.json", "model.safetensors"):
        (tmp_path / "part" / name).unlink()
    firth.pretrain(bpe_data, out=tmp_path / "part", resume=True, device="cpu")
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_the_forms_of_input(gpt: Path) -> None:
    """Classify, entail, similar and choose are frames: start, delimiter and extract are the vocabulary's."""
    tokenizer = checkpoints.load(gpt).tokenizer
    a, b = (tokenizer.ids_batch([text])[0] for text in ("a premise", "its guess"))
    start, end = tokenizer.vocab.cls, tokenizer.vocab.sep
    single, pair = Example(("a premise",)), Example(("a premise", "its guess"))
    told: dict[str, Any] = {"max_length": 64}
    assert text_items([single], tokenizer, **told)[0].windows[0].ids.tolist() == [start, *a, end]
    (one,) = text_items([pair], tokenizer, **told)[0].windows
    assert one.ids.tolist() == [start, *a, end, end, *b, end]
    both = text_items([pair], tokenizer, **told, both_orders=True)[0].windows
    assert [w.ids.tolist() for w in both] == [one.ids.tolist(), [start, *b, end, end, *a, end]]


@pytest.fixture
def choices(tmp_path: Path) -> Path:
    path = tmp_path / "choose.csv"
    rows = [
        ("The kettle boiled, so she", "made some tea.", "locked the piano.", 0),
        ("It rained; he", "sang.", "left.", 1),
    ]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["startphrase", "sent1", "sent2", "ending0", "ending1", "label"])
        writer.writerows(
            [prompt, f"{prompt} {i}", "", one, two, label] for i in range(10) for prompt, one, two, label in rows
        )
    return path


def tune(model: Path, out: Path, *changes: str, **options: Any) -> Path:
    settings: dict[str, Any] = {"task": "classify", "train": CLASSIFY, "device": "cpu", **options}
    firth.finetune(model, out=out, changes=(*SMALL, *changes), **settings)
    return out


def test_every_task_takes_it(gpt: Path, choices: Path, tmp_path: Path) -> None:
    for name, train, changes in (
        ("classify", CLASSIFY, ()),
        ("tag", ENTITIES, ()),
        ("compare", PAIRS, ("tasks.compare.way=cross",)),
        ("choose", choices, ()),
    ):
        folder = tune(gpt, tmp_path / name, *changes, task=name, train=train)
        task = checkpoints.load(folder).tasks[name]
        assert getattr(task.config, "pooling", "") in ("last", "mean", "")
        if name in ("classify", "choose"):
            assert task.config.pooling == "last"
    assert firth.load(tmp_path / "classify").predict(["a fine film"])[0].label


def test_the_last_token_stands_for_a_text(gpt: Path) -> None:
    encoder = checkpoints.load(gpt).encoder
    with torch.inference_mode():
        batch = pack_tokens([np.array([5, 6, 7]), np.array([8, 9])])
        states = encoder(batch)
    assert torch.equal(pooled_rows(states, batch.bounds_B1, "last"), states.last_ND[[2, 4]])


def test_an_auxiliary_language_model_learns_along(gpt: Path, tmp_path: Path) -> None:
    folder = tune(gpt, tmp_path / "tuned", "transfer.auxiliary_lm=0.5", "epochs=3")
    rows = [row for row in read_rows(folder / "seed-1" / "metrics.jsonl") if row["split"] == "train"]
    assert rows[-1]["auxiliary_lm"] < rows[0]["auxiliary_lm"]
    assert {"classify", "auxiliary_lm_accuracy"} <= rows[0].keys()
    loaded = firth.load(folder)
    assert list(loaded.checkpoint.goals) == ["causal_lm"]
    assert loaded.generate("The", max_tokens=5).num_tokens > 0
    assert loaded.predict(["a fine film"])[0].label
    assert read_json(folder / "config.json")["architectures"][0].endswith("LMHeadModel")


def test_the_weight_of_the_auxiliary_loss(gpt: Path, tmp_path: Path) -> None:
    first = [
        read_rows(tune(gpt, tmp_path / str(weight), f"transfer.auxiliary_lm={weight}") / "seed-1" / "metrics.jsonl")[0]
        for weight in (0.5, 0.25)
    ]
    assert first[0]["auxiliary_lm"] == pytest.approx(2 * first[1]["auxiliary_lm"], rel=1e-3)


def test_both_orders_of_a_pair_weigh_the_same(gpt: Path, tmp_path: Path) -> None:
    folder = tune(gpt, tmp_path / "pairs", "tasks.classify.both_orders=true", train=PAIRS, kind="number")
    model = firth.load(folder)
    there, back = model.predict([["a red car", "an old tree"], ["an old tree", "a red car"]])
    assert there.label == pytest.approx(back.label, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "options", "says"),
    [
        (("transfer.auxiliary_lm=0.5",), {"random": True}, "predicts the next token"),
        (("transfer.auxiliary_lm=0.5", "transfer.mode=features"), {}, "0 with transfer.mode=features"),
        (("transfer.auxiliary_lm=-1",), {}, "at least 0"),
    ],
)
def test_what_makes_no_sense(
    changes: tuple[str, ...], options: dict[str, Any], says: str, gpt: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadConfig, match=says):
        tune(gpt, tmp_path / "tuned", *changes, **options)
    assert not (tmp_path / "tuned").exists()


def test_a_bidirectional_model_has_no_next_token(run: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    with pytest.raises(BadConfig, match="predicts the next token"):
        tune(run, tmp_path / "tuned", "transfer.auxiliary_lm=0.5")
    refused = command("generate", run, "The")
    assert refused.code == 2
    assert "cannot generate" in refused.err
