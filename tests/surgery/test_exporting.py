"""Exporting: a plain folder that transformers opens, and a folder of few bits that firth opens, of the same model."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import firth
from firth import samples
from firth.convert.row_quantised import QUANTISED
from firth.data.packing import pack_tokens
from firth.errors import BadConfig, BadInput, Unsupported

TEXT = "The [MASK] is open."
PLAIN = "The door is open."
DETECTION = "objectives.replaced_token."
GENERATOR = '{"width": 32, "num_layers": 1, "num_heads": 2, "ffn_width": 64}'


@pytest.fixture(scope="module")
def small(data: Path, tiny: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the recipe of the default models."""
    out = tmp_path_factory.mktemp("runs") / "small"
    changes = [*tiny, f"{DETECTION}generator={GENERATOR}", "encoder.bert.embedding_width=16"]
    firth.pretrain(data, out=out, recipe="small", steps=20, changes=changes, device="cpu")
    return out


def test_a_plain_folder_is_the_same_model_to_transformers(small: Path, tmp_path: Path) -> None:
    exported = firth.export(small, out=tmp_path / "plain", kind="huggingface")
    assert not (tmp_path / "plain" / "generator").exists()
    theirs = transformers.ElectraForMaskedLM.from_pretrained(tmp_path / "plain").eval()
    ours = firth.load(tmp_path / "plain")
    vocab = ours.tokenizer.vocab

    def framed(text: str) -> torch.Tensor:
        return torch.from_numpy(vocab.frame.join(ours.tokenizer.encode(text, masks=True).ids))[None]

    masked = framed(TEXT)
    with torch.no_grad():
        scores_V = theirs(masked).logits[0][masked[0] == vocab.mask][0, : len(vocab)]
        hidden_ND = theirs.electra(framed(PLAIN)).last_hidden_state[0]
    # Special tokens are never offered.
    scores_V[sorted(vocab.specials)] = -torch.inf
    probabilities = scores_V.softmax(0)
    for candidate in ours.fill(TEXT):
        assert candidate.probability == pytest.approx(float(probabilities[vocab.ids[candidate.token]]), rel=1e-4)
    assert np.allclose(ours.embed([PLAIN])[0], hidden_ND.mean(0).numpy(), atol=1e-5)
    # The generator is not counted any more.
    assert exported["parameters"] < firth.load(small).info().parameters


@pytest.mark.parametrize("bits", [8, 4])
def test_a_folder_of_few_bits_is_smaller_and_answers_alike(small: Path, tmp_path: Path, bits: int) -> None:
    exported = firth.export(small, out=tmp_path / "few", kind="quantised", bits=bits)
    plain = firth.export(small, out=tmp_path / "plain", kind="huggingface")
    assert (tmp_path / "few" / QUANTISED).exists()
    assert not (tmp_path / "few" / "model.safetensors").exists()
    weights = (tmp_path / "few" / QUANTISED).stat().st_size
    assert weights < (bits / 32 + 0.1) * (tmp_path / "plain" / "model.safetensors").stat().st_size
    assert exported["parameters"] == plain["parameters"]
    # The card does not claim figures that were measured before.
    training = firth.load(tmp_path / "few").info().training
    assert training["bits_of_a_weight"] == bits
    assert "held_out" not in training
    assert "held_out_before_rounding" in training
    assert "Held-out documents" not in (tmp_path / "few" / "README.md").read_text()

    exact = firth.load(tmp_path / "plain").embed([TEXT, "A second text, longer than the first one."])
    rounded = firth.load(tmp_path / "few").embed([TEXT, "A second text, longer than the first one."])
    cosine = (exact * rounded).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(rounded, axis=1)
    assert cosine.min() > {8: 0.9999, 4: 0.98}[bits]
    assert not np.array_equal(exact, rounded)


def test_a_folder_of_few_bits_is_a_model_like_any_other(small: Path, tmp_path: Path) -> None:
    few = tmp_path / "few"
    firth.export(small, out=few, kind="quantised")
    # Plain weights from few bits: the very numbers that were opened.
    firth.export(few, out=tmp_path / "plain", kind="huggingface")
    assert np.array_equal(firth.load(few).embed([TEXT]), firth.load(tmp_path / "plain").embed([TEXT]))
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\n" + "a good day\tyes\na bad day\tno\n" * 8)
    firth.finetune(few, task="classify", train=rows, out=tmp_path / "tuned", changes=["epochs=1"])
    assert firth.load(tmp_path / "tuned").predict(["a good day"])[0].label in ("yes", "no")
    assert asdict(firth.load(few).info())["heads"] == ["replaced_token"]


def test_a_model_without_its_generator_is_measured_and_trained_further_by_masked_lm(
    small: Path, data: Path, tmp_path: Path, messages: Callable[[], str]
) -> None:
    few = tmp_path / "few"
    firth.export(small, out=few, kind="quantised")
    figures = firth.evaluate(few, data=data)
    assert 0 < figures["masked_lm"] < 10
    assert "replaced_token" not in figures
    messages()
    changes = ["batches.tokens=512", "batches.max_length=64", "batches.held_out_rate=0.1", "train.optim.rate=1e-9"]
    firth.pretrain(data, start_from=few, out=tmp_path / "more", steps=1, changes=changes, device="cpu")
    assert "came without the generator of its recipe small" in messages()
    more = firth.load(tmp_path / "more")
    assert more.info().heads == ["masked_lm"]
    # A step at such a rate changes nothing, so the head for masks is the one that it had.
    expected = [(fill.token, round(fill.probability, 4)) for fill in firth.load(few).fill(TEXT)]
    assert [(fill.token, round(fill.probability, 4)) for fill in more.fill(TEXT)] == expected
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "more")
    assert type(theirs).__name__ == "ElectraForMaskedLM"


@pytest.mark.parametrize(
    ("task", "changes", "kind"),
    [
        ("classify", (), "BertForSequenceClassification"),
        ("entities", (), "BertForTokenClassification"),
        ("classify", ("tasks.classify.pooling=mean",), None),
        ("entities", ("tasks.tag.tagger=crf",), None),
        ("classify", ("transfer.mode=adapters",), None),
    ],
)
def test_transformers_has_the_head_of_a_fine_tuned_model_or_a_warning_says_not(
    task: str, changes: tuple[str, ...], kind: str | None, run: Path, tmp_path: Path, messages: Callable[[], str]
) -> None:
    name = "tag" if task == "entities" else task
    settings = ["epochs=1", *changes]
    train = samples.labelled(task, "en")
    firth.finetune(run, task=name, train=train, out=tmp_path / "tuned", changes=settings, device="cpu")
    messages()
    firth.export(tmp_path / "tuned", out=tmp_path / "plain", kind="huggingface")
    warning = f"Warning: transformers opens {tmp_path / 'plain'} without the head of {name}, for which it has no class"
    said = messages()
    ours = firth.load(tmp_path / "plain")
    if kind is None:
        assert said == f"{warning}; firth has it.\n"
        assert ours.predict([PLAIN]) == firth.load(tmp_path / "tuned").predict([PLAIN])
        return
    assert said == ""
    theirs = getattr(transformers, kind).from_pretrained(tmp_path / "plain").eval()
    [head] = ours.checkpoint.tasks.values()
    items = ours.encode_examples(ours.examples([PLAIN]))
    [window] = items[0].windows
    batch = pack_tokens([window.ids])
    with torch.no_grad():
        their_scores = theirs(torch.from_numpy(np.asarray(window.ids))[None]).logits[0]
        [our_scores] = head.outputs(ours.encoder(batch), batch)
    if name == "tag":
        their_scores = their_scores.log_softmax(-1)
    assert np.allclose(our_scores, their_scores.numpy(), atol=1e-5)
    (labels,) = head.labels.values()
    assert [theirs.config.id2label[number] for number in range(len(labels))] == list(labels)


def test_a_foreign_head_that_config_json_does_not_name_is_an_error(run: Path, tmp_path: Path) -> None:
    theirs = transformers.BertForSequenceClassification.from_pretrained(run)
    theirs.save_pretrained(tmp_path / "foreign")
    for file in run.glob("*token*"):
        (tmp_path / "foreign" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "foreign/vocab.txt").write_bytes((run / "vocab.txt").read_bytes())
    assert list(firth.load(tmp_path / "foreign").checkpoint.tasks) == ["classify"]
    settings = json.loads((tmp_path / "foreign/config.json").read_text())
    (tmp_path / "foreign/config.json").write_text(json.dumps(settings | {"architectures": ["BertModel"]}))
    with pytest.raises(Unsupported, match=r"has the tensor classifier\.(weight|bias), which firth would not use"):
        firth.load(tmp_path / "foreign")


@pytest.mark.parametrize("corrective_weight", [0.0, 1.0])
def test_a_model_keeps_its_generator_where_it_fills_masks_by_it(
    data: Path, tiny: tuple[str, ...], tmp_path: Path, corrective_weight: float
) -> None:
    """An encoder that has never read masks does not fill them, even if it has a head for original tokens."""
    changes = [*tiny, f"{DETECTION}generator={GENERATOR}", f"{DETECTION}corrective_weight={corrective_weight}"]
    firth.pretrain(data, out=tmp_path / "electra", recipe="electra", steps=2, changes=changes, device="cpu")
    firth.export(tmp_path / "electra", out=tmp_path / "plain", kind="huggingface")
    assert (tmp_path / "plain" / "generator").is_dir()
    before = firth.load(tmp_path / "electra").fill(TEXT)
    assert firth.load(tmp_path / "plain").fill(TEXT) == before


def test_what_cannot_be_exported(small: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    with pytest.raises(BadConfig, match=r"no format 'tflite' to export to; known are word2vec, .*quantised"):
        firth.export(small, out=tmp_path / "out", kind="tflite")
    with pytest.raises(BadConfig, match=r"'quantized' .* did you mean 'quantised'"):
        firth.export(small, out=tmp_path / "out", kind="quantized")
    with pytest.raises(BadConfig, match=r"`bits=` is for `kind='quantised'`"):
        firth.export(small, out=tmp_path / "out", kind="huggingface", bits=4)
    with pytest.raises(BadConfig, match=r"2 to 8 bits"):
        firth.export(small, out=tmp_path / "out", kind="quantised", bits=9)
    assert not (tmp_path / "out").exists()
    (tmp_path / "there").mkdir()
    with pytest.raises(BadInput, match="exist"):
        firth.export(small, out=tmp_path / "there", kind="quantised")
    said = command("export", small, "--to", "quantised", "--bits", "6", "--out", tmp_path / "six")
    assert said.code == 0
    assert "megabytes" in said.out
