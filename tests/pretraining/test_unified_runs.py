"""XLNet and UniLM as runs: their folders, what transformers makes of them, fine-tuning, and exact resume."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
import transformers

import firth
from firth import checkpoint as checkpoints
from firth import lineage, samples
from firth.config import to_dict
from firth.files import read_json
from firth.objectives.unilm import UniLM
from firth.tasks.squad import Question

KINDS = {"unilm": ("bert", "BertForMaskedLM"), "xlnet": ("xlnet", "XLNetLMHeadModel")}
"""The model type of each recipe's folder, and the class of transformers that it is."""
CLASSIFIED = "text\tlabel\n" + "".join(
    f"a {word} day\t{label}\n" for word, label in [("good", "yes"), ("bad", "no")] * 8
)
TAGGED = "a O\ngood B-X\nday O\n\nno O\nbad B-X\nnight O\n\n" * 6


@pytest.fixture(scope="module")
def trained(make_runs: Callable[..., Callable[[str], Path]], data: Path) -> Callable[[str], Path]:
    return make_runs(data)


@pytest.mark.parametrize("name", KINDS)
def test_a_run_is_a_folder_that_transformers_opens(name: str, trained: Callable[[str], Path]) -> None:
    run = trained(name)
    kind, architecture = KINDS[name]
    config = read_json(run / "config.json")
    assert (config["model_type"], config["architectures"]) == (kind, [architecture])
    model, report = getattr(transformers, architecture).from_pretrained(run, output_loading_info=True)
    assert not report["missing_keys"], report
    assert not report["unexpected_keys"], report
    encoded = transformers.AutoTokenizer.from_pretrained(run)("the source of a module", return_tensors="pt")
    with torch.inference_mode():
        states = model.eval().base_model(encoded["input_ids"]).last_hidden_state[0]
    vector = firth.load(run).embed(["the source of a module"])[0]
    assert np.abs(states.mean(0).numpy() - vector).max() < 1e-5


@pytest.mark.parametrize("name", KINDS)
def test_its_objective_comes_back_and_is_evaluated(name: str, trained: Callable[[str], Path], data: Path) -> None:
    run = trained(name)
    (objective,) = lineage.make(name, "tiny").objectives
    loaded = checkpoints.load(run)
    assert list(loaded.goals) == [objective]
    assert to_dict(loaded.goals[objective].config) == to_dict(lineage.make(name, "tiny").objectives[objective])
    figures = firth.evaluate(run, data=data)
    assert 0 < figures[objective] < 10
    assert firth.evaluate(run, data=data) == figures


def test_unilm_fills_masks_as_transformers_does(trained: Callable[[str], Path]) -> None:
    run = trained("unilm")
    model = transformers.BertForMaskedLM.from_pretrained(run).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(run)
    encoded = tokenizer("the [MASK] of a module", return_tensors="pt")
    with torch.inference_mode():
        scores = model(**encoded).logits[0][encoded["input_ids"][0] == tokenizer.mask_token_id][0]
    found = firth.load(run).fill("the [MASK] of a module", top=5)
    scores = scores.clone()
    scores[sorted(checkpoints.load(run).tokenizer.vocab.specials)] = -torch.inf
    wanted = tokenizer.convert_ids_to_tokens(scores[: len(tokenizer)].topk(5).indices.tolist())
    assert [fill.token for fill in found] == wanted


def test_a_second_run_starts_from_unilms_head(
    trained: Callable[[str], Path], shrink: Callable[[Any], Any], data: Path, tmp_path: Path
) -> None:
    run = trained("unilm")
    firth.pretrain(
        data, out=tmp_path / "on", start_from=run, recipe="unilm", steps=1, device="cpu", changes=SMALL_STEPS
    )
    before, after = (checkpoints.load(folder).goals["unilm"] for folder in (run, tmp_path / "on"))
    assert isinstance(before, UniLM)
    assert isinstance(after, UniLM)
    change = (before.head.dense.weight - after.head.dense.weight).abs().max()
    assert 0 < change < 0.02  # one step away, not other random weights


SMALL_STEPS = ("batches.max_length=64", "batches.tokens=512", "train.optim.rate=1e-4")


@pytest.mark.parametrize("name", KINDS)
def test_a_resumed_run_ends_with_the_same_bytes(
    name: str, trained: Callable[[str], Path], data: Path, resumes_exactly: Callable[..., None]
) -> None:
    resumes_exactly(trained(name), data)


def squad(path: Path) -> Path:
    rows = []
    for i in range(8):
        context = f"The answer is number {i} today."
        answers = [{"text": f"number {i}", "answer_start": 14}]
        rows.append({"context": context, "qas": [{"id": str(i), "question": "What is it?", "answers": answers}]})
    path.write_text(json.dumps({"data": [{"paragraphs": rows}]}))
    return path


@pytest.mark.parametrize("task", ["classify", "tag", "answer"])
@pytest.mark.parametrize("name", KINDS)
def test_it_is_fine_tuned(name: str, task: str, trained: Callable[[str], Path], tmp_path: Path) -> None:
    if task == "classify":
        train, asked = tmp_path / "train.tsv", "a good day"
        train.write_text(CLASSIFIED)
    elif task == "tag":
        train, asked = tmp_path / "train.conll", "a good day"
        train.write_text(TAGGED)
    else:
        train, asked = squad(tmp_path / "train.json"), ("What is it?", "The answer is number 3 today.")  # type: ignore[assignment]
    out = tmp_path / "tuned"
    figures = firth.finetune(trained(name), task=task, train=train, dev=train, out=out, changes=["epochs=1"])
    assert figures
    assert read_json(out / "config.json")["model_type"] == KINDS[name][0]
    assert len(firth.load(out).predict([asked])) == 1


@pytest.fixture(scope="module")
def xlnet_folder(shrink: Callable[[Any], Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as transformers writes it, with XLNet's own tokenizer."""
    folder = tmp_path_factory.mktemp("xlnet")
    (folder / "text").write_text(samples.prose("en").read_text())
    specials = ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"),
        model_prefix=str(folder / "spiece"),
        vocab_size=600,
        control_symbols=specials,
        minloglevel=2,
    )
    config = transformers.XLNetConfig(vocab_size=640, d_model=32, n_layer=2, n_head=2, d_inner=64, pad_token_id=5)
    torch.manual_seed(3)
    transformers.XLNetLMHeadModel(config).save_pretrained(folder)
    return folder


def test_a_public_folder_reads_its_cls_at_the_end(xlnet_folder: Path, tmp_path: Path) -> None:
    model = checkpoints.load(xlnet_folder)
    assert model.encoder.cls_last
    (tmp_path / "train.tsv").write_text(CLASSIFIED)
    out = tmp_path / "tuned"
    firth.finetune(xlnet_folder, task="classify", train=tmp_path / "train.tsv", dev=tmp_path / "train.tsv", out=out)
    loaded = checkpoints.load(out)
    assert loaded.tasks["classify"].config.pooling == "last"  # type: ignore[attr-defined]
    theirs = transformers.AutoTokenizer.from_pretrained(out)("a good day", "a bad day")
    vocab = loaded.tokenizer.vocab
    parts = [loaded.tokenizer.encode(text).ids for text in ("a good day", "a bad day")]
    assert vocab.frame.join(*parts).tolist() == theirs["input_ids"]
    assert theirs["input_ids"][-2:] == [vocab.sep, vocab.cls]
    last = firth.load(xlnet_folder)
    states = last.embed(["a good day"], pooling="cls")
    assert np.array_equal(states, last.embed(["a good day"], pooling="last"))


def test_no_answer_is_at_xlnets_cls(xlnet_folder: Path) -> None:
    loaded = checkpoints.load(xlnet_folder)
    head = checkpoints.make_head("answer", {}, loaded.encoder, labels={})
    asked = Question(("What is it?", "The answer is number 3 today. " * 30), gold=("number 3",), starts=(14,))
    [item] = head.encode([asked], loaded.tokenizer, max_length=64, training=True)
    assert len(item.windows) > 2
    for window in item.windows:
        facts = window.facts
        assert window.ids[facts.cls_row] == loaded.tokenizer.vocab.cls
        assert facts.cls_row == len(window.ids) - 1
    assert item.windows[0].facts.answer_first < item.windows[0].facts.cls_row
    assert item.windows[-1].facts.answer_first == item.windows[-1].facts.cls_row
    legal_N = head.batch([item]).targets["legal_N"]
    assert legal_N[len(item.windows[0]) - 1]
    assert not legal_N[0]


def test_pre_training_over_xlnets_tokenizer_puts_the_cls_last(
    xlnet_folder: Path, texts: list[Path], small_plan: Callable[..., str], tmp_path: Path
) -> None:
    firth.prepare(texts[:1], out=tmp_path / "data", tokenizer=str(xlnet_folder), processes=0)
    (tmp_path / "plan.toml").write_text(small_plan("xlnet"))
    run = tmp_path / "run"
    firth.pretrain(tmp_path / "data", out=run, config=tmp_path / "plan.toml", steps=2, device="cpu")
    assert checkpoints.load(run).encoder.config.cls_last
    assert read_json(run / "config.json")["summary_type"] == "last"
    firth.pretrain(tmp_path / "data", out=run, resume=True, device="cpu")  # finished: nothing differs
