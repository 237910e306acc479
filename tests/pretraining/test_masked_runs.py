"""The masked family as runs: what each keeps, that it fills, embeds and is fine-tuned, and exact resume for ELECTRA."""

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
from firth import lineage
from firth.encoders import resolve
from firth.errors import BadConfig, BadInput
from firth.files import read_json
from firth.tensors import parameter_count
from firth.train.journal import read_rows

HEIRS = {
    "ernie": ("bert", "BertForPreTraining"),
    "bert-wwm": ("bert", "BertForPreTraining"),
    "spanbert": ("bert", "BertForMaskedLM"),
    "roberta": ("roberta", "RobertaForMaskedLM"),
    "albert": ("albert", "AlbertForPreTraining"),
    "distilbert": ("distilbert", "DistilBertForMaskedLM"),
    "electra": ("electra", "ElectraForPreTraining"),
}
"""The layout of each recipe's folder and the class of transformers that it is."""
ROWS = "text\tlabel\n" + "".join(f"a {word} day\t{label}\n" for word, label in [("good", "yes"), ("bad", "no")] * 8)


@pytest.fixture(scope="module")
def trained(make_runs: Callable[..., Callable[[str], Path]], data: Path) -> Callable[[str], Path]:
    return make_runs(data)


@pytest.mark.parametrize("name", HEIRS)
def test_a_run_is_a_folder_of_its_own_kind_that_transformers_opens(name: str, trained: Callable[[str], Path]) -> None:
    run = trained(name)
    kind, architecture = HEIRS[name]
    config = read_json(run / "config.json")
    assert (config["model_type"], config["architectures"]) == (kind, [architecture])
    loaded = firth.load(run)
    model, report = getattr(transformers, architecture).from_pretrained(run, output_loading_info=True)
    assert not report["missing_keys"], report
    assert all(key.startswith("goals.") for key in report["unexpected_keys"]), report
    encoded = transformers.AutoTokenizer.from_pretrained(run)("the source of a module", return_tensors="pt")
    with torch.inference_mode():
        states = model.eval().base_model(encoded["input_ids"]).last_hidden_state[0]
    assert np.abs(states.mean(0).numpy() - loaded.embed(["the source of a module"])[0]).max() < 1e-5


@pytest.mark.parametrize("name", HEIRS)
def test_it_fills_and_evaluates(name: str, trained: Callable[[str], Path], data: Path) -> None:
    run = trained(name)
    model = firth.load(run)
    assert len(model.fill("the [MASK] of a [MASK]", top=3)) == 6
    figures = firth.evaluate(run, data=data)
    assert set(lineage.make(name, "tiny").objectives) <= set(figures)
    assert firth.evaluate(run, data=data) == figures


@pytest.mark.parametrize("name", ["roberta", "albert", "distilbert", "electra"])
def test_it_is_fine_tuned_and_keeps_its_layout(name: str, trained: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(ROWS)
    out = tmp_path / "tuned"
    firth.finetune(trained(name), task="classify", train=tmp_path / "train.tsv", dev=tmp_path / "train.tsv", out=out)
    assert read_json(out / "config.json")["model_type"] == HEIRS[name][0]
    assert {row.label for row in firth.load(out).predict(["a good day", "a bad day"])} <= {"yes", "no"}


def test_all_heads_come_back(trained: Callable[[str], Path]) -> None:
    for name in HEIRS:
        loaded = checkpoints.load(trained(name))
        assert set(loaded.goals) == set(lineage.make(name, "tiny").objectives)
        assert loaded.layout == HEIRS[name][0]


def test_electra_keeps_its_generator_in_a_folder_of_its_own(trained: Callable[[str], Path], tmp_path: Path) -> None:
    run, text = trained("electra"), "the [MASK] of a module"
    assert firth.load(run).fill(text) == firth.load(run / "generator").fill(text)
    judge, generator = checkpoints.load(run), checkpoints.load(run / "generator")
    assert generator.encoder.width == lineage.make("electra", "tiny").objectives["replaced_token"].generator.width
    shared = judge.goals["replaced_token"].generator.embeddings.tokens.weight  # type: ignore[union-attr]
    assert shared is judge.encoder.embeddings.tokens.weight
    assert torch.equal(shared, generator.encoder.embeddings.tokens.weight)
    _, report = transformers.ElectraForMaskedLM.from_pretrained(run / "generator", output_loading_info=True)
    assert not any(report.values()), report
    firth.load(run).save(tmp_path / "copy")
    assert (tmp_path / "copy" / "generator" / "model.safetensors").read_bytes() == (
        run / "generator" / "model.safetensors"
    ).read_bytes()


def test_electra_logs_its_health(trained: Callable[[str], Path]) -> None:
    rows = read_rows(trained("electra") / "metrics.jsonl")
    names = {"masked_lm", "masked_lm_accuracy", "replaced_token", "replaced_token_accuracy"}
    names |= {"replaced_token_recall", "replaced_token_precision"}
    assert all(names <= set(row) for row in rows)
    assert all(0 <= row["replaced_token_recall"] <= 1 and 0 < row["replaced_token"] < 2 for row in rows)


@pytest.mark.parametrize("name", ["electra", "albert", "spanbert"])
def test_a_resumed_run_ends_with_the_same_bytes(
    name: str, trained: Callable[[str], Path], data: Path, resumes_exactly: Callable[..., None]
) -> None:
    resumes_exactly(trained(name), data)


@pytest.mark.parametrize(("size", "millions"), [("base", 12), ("large", 18)])
def test_the_parameter_counts_of_albert(size: str, millions: int) -> None:
    """Lan et al. 2019, table 1, with their vocabulary of 30,000."""
    assert round(count("albert", size)) == millions


def test_the_parameter_counts_of_roberta_and_distilbert() -> None:
    """Liu et al. 2019, section 3, and Sanh et al. 2019, section 2: 125M over 50,265 tokens, 66M over BERT's."""
    assert round(count("roberta", "base", vocab_size=50265)) == 124  # their 125M have a pooler and unused positions
    assert round(count("distilbert", "base")) == 66


def count(name: str, size: str, **changes: Any) -> float:
    [(encoder, config)] = lineage.make(name, size).encoder.items()
    with torch.device("meta"):
        return parameter_count([resolve(encoder)(replace(config, **changes))]) / 1e6


def test_ernie_reads_its_list_before_anything_is_written(
    small_plan: Callable[..., str], data: Path, tmp_path: Path, messages: Callable[[], str]
) -> None:
    (tmp_path / "plan.toml").write_text(small_plan("ernie"))
    asked: dict[str, Any] = {"out": tmp_path / "run", "config": tmp_path / "plan.toml", "steps": 2, "device": "cpu"}
    with pytest.raises(BadInput, match=r"none\.txt does not exist"):
        firth.pretrain(data, changes=[f"objectives.masked_lm.entities={tmp_path / 'none.txt'}"], **asked)
    (tmp_path / "bad.jsonl").write_text('{"spans": [{"text": "语言模型"}]}\n{"label": 1}\n')
    with pytest.raises(BadInput, match=r"bad\.jsonl, line 2: .* no spans"):
        firth.pretrain(data, changes=[f"objectives.masked_lm.entities={tmp_path / 'bad.jsonl'}"], **asked)
    with pytest.raises(BadConfig, match="unit=entity"):
        firth.pretrain(data, changes=["objectives.masked_lm.unit=word", "objectives.masked_lm.entities=x"], **asked)
    assert not (tmp_path / "run").exists()
    (tmp_path / "list.txt").write_text("语言模型\nsentence number\n")
    changes = [f"objectives.masked_lm.entities={tmp_path / 'list.txt'}"]
    assert firth.pretrain(data, changes=changes, **asked)["masked_lm"] > 0
    assert "as in bert-wwm" not in messages()
    firth.pretrain(data, **asked | {"out": tmp_path / "without"})
    assert "whole words are masked, as in bert-wwm; give one with objectives.masked_lm.entities=FILE" in (messages())


def test_an_objective_that_needs_another_says_so(small_plan: Callable[..., str], data: Path, tmp_path: Path) -> None:
    text = small_plan("spanbert").split("[objectives.masked_lm]")
    kept = text[0] + "[" + text[1].split("[", 1)[1]
    (tmp_path / "plan.toml").write_text(kept)
    with pytest.raises(BadConfig, match="span_boundary needs masked_lm before it"):
        firth.pretrain(data, out=tmp_path / "run", config=tmp_path / "plan.toml", steps=2, device="cpu")


def test_roberta_over_its_own_tokenizer(small_plan: Callable[..., str], texts: list[Path], tmp_path: Path) -> None:
    """Byte-level BPE pads with 1, so the folder's positions begin at 2; pairs have one kind of segment."""
    firth.prepare(texts, out=tmp_path / "data", tokenizer="bpe", vocab_size=1200, processes=0)
    (tmp_path / "plan.toml").write_text(small_plan("roberta"))
    firth.pretrain(tmp_path / "data", out=tmp_path / "run", config=tmp_path / "plan.toml", steps=2, device="cpu")
    config = read_json(tmp_path / "run" / "config.json")
    assert (config["pad_token_id"], config["max_position_embeddings"], config["type_vocab_size"]) == (1, 66, 1)
    loaded, text = firth.load(tmp_path / "run"), "the source of a 语言 module"
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    model = transformers.RobertaModel.from_pretrained(tmp_path / "run").eval()
    for inputs in ((text,), (text, "another")):
        encoded = reader(*inputs, return_tensors="pt")
        ids = [loaded.tokenizer.encode(part).ids for part in inputs]
        assert loaded.tokenizer.vocab.frame.join(*ids).tolist() == encoded["input_ids"][0].tolist()
    with torch.inference_mode():
        states = model(**reader(text, return_tensors="pt")).last_hidden_state[0]
    assert np.abs(states.mean(0).numpy() - loaded.embed([text])[0]).max() < 1e-5
    for row in loaded.fill("the <mask> of", top=20):
        assert row.text.startswith("the")
        assert row.text.endswith(" of")
        assert row.token in row.text
    (tmp_path / "pairs.tsv").write_text("text\ttext_b\tlabel\n" + "a cat\ta dog\tno\nthe sun\tthe sun\tyes\n" * 8)
    rows = {"train": tmp_path / "pairs.tsv", "dev": tmp_path / "pairs.tsv", "text_column": "text"}
    firth.finetune(
        tmp_path / "run",
        task="classify",
        out=tmp_path / "tuned",
        second_column="text_b",
        label_columns=("label",),
        **rows,
    )
    assert read_json(tmp_path / "tuned" / "config.json")["model_type"] == "roberta"
