"""Multilingual BERT, XLM and XLM-R as runs: folders, transformers, exact resume, and texts in a chosen language."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import firth
from firth import checkpoint as checkpoints
from firth.data.packing import pack_tokens
from firth.errors import BadConfig, BadInput
from firth.files import read_json
from firth.tokenizers import load as load_tokenizer

KINDS = {
    "mbert": ("bert", "BertForPreTraining"),
    "xlm": ("bert", "BertForMaskedLM"),
    "xlm-roberta": ("xlm-roberta", "XLMRobertaForMaskedLM"),
}
"""The model type of each recipe's folder, and the class of transformers that it is."""
ENGLISH = [("the dog runs", "ja"), ("the cat sleeps", "nein")] * 12
GERMAN = [("der hund rennt", "ja"), ("die katze schläft", "nein")] * 4


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents in two languages, and pairs of both."""
    folder = tmp_path_factory.mktemp("cross-lingual")
    words = {
        "en": ("the dog", "the cat", "runs home", "sleeps here"),
        "de": ("der hund", "die katze", "rennt", "schläft"),
    }
    for language, (one, other, does, rests) in words.items():
        lines = [f"{one} {does} {i}.\n{other} {rests} {i}." for i in range(150)]
        (folder / f"{language}.txt").write_text("\n\n".join(lines))
        pairs = [f"{other} {does} {i}. {one} {rests}." for i in range(100)]
        (folder / f"pairs.{language}").write_text("\n".join(pairs))
    texts = [f"{language}={folder}/{language}.txt" for language in words]
    firth.prepare([*texts, f"en+de={folder}/pairs.en,{folder}/pairs.de"], out=folder / "data", processes=0)
    return folder / "data"


@pytest.fixture(scope="module")
def trained(make_runs: Callable[..., Callable[[str], Path]], prepared: Path) -> Callable[[str], Path]:
    return make_runs(prepared, max_length=32, tokens=256)


@pytest.mark.parametrize("name", KINDS)
def test_transformers_opens_the_folder_and_gives_the_same_numbers(name: str, trained: Callable[[str], Path]) -> None:
    run = trained(name)
    kind, architecture = KINDS[name]
    config = read_json(run / "config.json")
    assert (config["model_type"], config["architectures"]) == (kind, [architecture])
    model, report = getattr(transformers, architecture).from_pretrained(run, output_loading_info=True)
    assert not report["missing_keys"], report
    assert not report["unexpected_keys"], report
    loaded = checkpoints.load(run)
    ids = np.array([2, 10, 11, 12, 13, 3])
    segments = np.zeros(6, np.int64)
    options = {}
    if name == "xlm":
        # Language embeddings are transformers' token types.
        loaded = checkpoints.set_language(loaded, "de")
        options["token_type_ids"] = torch.ones(1, 6, dtype=torch.long)
    with torch.inference_mode():
        theirs = model.eval().base_model(torch.from_numpy(ids)[None], **options).last_hidden_state[0]
        ours = loaded.encoder(pack_tokens([ids], segments=[segments])).last_ND
    assert (theirs - ours).abs().max() < 1e-5


def test_a_folder_comes_back_with_its_objective_and_languages(trained: Callable[[str], Path], tmp_path: Path) -> None:
    loaded = checkpoints.load(trained("xlm"))
    assert list(loaded.goals) == ["translation_lm"]
    assert loaded.info["languages"] == ["en", "de"]
    assert loaded.encoder.config.num_segments == 2
    checkpoints.save(tmp_path / "again", checkpoints.set_language(loaded, "de"))
    again = checkpoints.load(tmp_path / "again")
    assert (again.info["language"], again.encoder.config.language) == ("de", 1)
    for tensor, other in zip(loaded.encoder.parameters(), again.encoder.parameters(), strict=True):
        assert torch.equal(tensor, other)


@pytest.mark.parametrize("name", KINDS)
def test_a_resumed_run_ends_with_the_same_bytes(
    name: str, trained: Callable[[str], Path], prepared: Path, resumes_exactly: Callable[..., None]
) -> None:
    resumes_exactly(trained(name), prepared)


def test_a_language_changes_the_answer(trained: Callable[[str], Path]) -> None:
    run = trained("xlm")
    vectors = {language: firth.load(run, language=language).embed(["hund"]) for language in ("en", "de", "")}
    assert np.abs(vectors["en"] - vectors["de"]).max() > 1e-3
    assert np.array_equal(vectors[""], vectors["en"])
    assert firth.load(run, language="de").fill("der [MASK] rennt")


def test_the_report_shows_the_languages(trained: Callable[[str], Path]) -> None:
    page = (trained("mbert") / "report.html").read_text()
    assert "Tokens of en" in page
    assert "Tokens of de" in page


def test_evaluation_reads_the_languages_of_the_text(trained: Callable[[str], Path], prepared: Path) -> None:
    figures = firth.evaluate(trained("xlm"), data=prepared)
    assert 0 < figures["translation_lm"] < 10


def rows(path: Path, pairs: list[tuple[str, str]]) -> Path:
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in pairs))
    return path


def test_fine_tuned_in_one_language_and_measured_in_another(
    trained: Callable[[str], Path], tmp_path: Path, command: Callable[..., Any]
) -> None:
    run = trained("xlm")
    train = rows(tmp_path / "train.tsv", ENGLISH)
    test = rows(tmp_path / "test.tsv", GERMAN)
    out = tmp_path / "tuned"
    options = {"task": "classify", "train": train, "dev": train, "device": "cpu"}
    firth.finetune(run, out=out, language="de", changes=("epochs=1", "train.optim.rate=1e-3"), **options)
    notes = read_json(out / "firth.json")
    assert (notes["languages"], notes["language"]) == (["en", "de"], "de")
    assert checkpoints.load(out).encoder.config.language == 1
    assert firth.evaluate(out, data=test, language="en")["rows"] == 8
    one = firth.load(out).predict(["der hund rennt"])[0]
    other = firth.load(out, language="en").predict(["der hund rennt"])[0]
    assert one.probability != other.probability
    shown = command("predict", out, "der hund rennt", "--language", "fr")
    assert shown.code != 0
    assert "does not know the language 'fr' (known: en, de)" in " ".join(shown.err.split())


def test_unknown_languages_are_one_sentence(
    trained: Callable[[str], Path], prepared: Path, tmp_path: Path, data: Path
) -> None:
    train = rows(tmp_path / "train.tsv", ENGLISH)
    with pytest.raises(BadConfig, match=r"does not know the language 'fr' \(known: en, de\)"):
        firth.finetune(
            trained("xlm"), task="classify", train=train, out=tmp_path / "out", changes=["language=fr"], device="cpu"
        )
    with pytest.raises(BadConfig, match="The model has no language embeddings; leave out"):
        firth.load(trained("mbert"), language="en")
    (tmp_path / "fr.txt").write_text("\n\n".join(f"le chien court {i}." for i in range(300)))
    other = tmp_path / "other"
    firth.prepare([f"fr={tmp_path}/fr.txt"], out=other, tokenizer=trained("xlm"), processes=0)
    with pytest.raises(BadInput, match="does not know the language fr of"):
        firth.evaluate(trained("xlm"), data=other)
    with pytest.raises(BadConfig, match=r"no embedding for the language fr \(known: en, de\)"):
        firth.pretrain(other, out=tmp_path / "more", start_from=trained("xlm"), steps=1, device="cpu")


def test_a_language_of_one_document_is_one_sentence(prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "fr.txt").write_text("le chien court.")
    changes = ["batches.tokens=256", "batches.held_out_rate=0"]
    texts = [f"en={prepared.parent}/en.txt", f"fr={tmp_path}/fr.txt"]
    firth.prepare(texts, out=tmp_path / "data", processes=0)
    with pytest.raises(BadInput, match="has a single document in fr to train on; add text"):
        firth.pretrain(tmp_path / "data", out=tmp_path / "out", recipe="mbert", steps=1, changes=changes)


def test_a_model_is_trained_further_on_one_of_its_languages(trained: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "de.txt").write_text("\n\n".join(f"der hund rennt {i} mal heim." for i in range(300)))
    firth.prepare([f"de={tmp_path}/de.txt"], out=tmp_path / "data", tokenizer=trained("xlm"), processes=0)
    changes = ["batches.tokens=256", "batches.max_length=32"]
    out = tmp_path / "more"
    firth.pretrain(tmp_path / "data", out=out, start_from=trained("xlm"), steps=2, device="cpu", changes=changes)
    before, after = checkpoints.load(trained("xlm")), checkpoints.load(out)
    assert after.info["languages"] == ["en", "de"]
    moved_LD = (before.encoder.embeddings.segments.weight - after.encoder.embeddings.segments.weight).abs().amax(1)
    # English was not read, so that only weight decay can have changed its row.
    assert moved_LD[1] > 100 * moved_LD[0]
    assert load_tokenizer(out).fingerprint == load_tokenizer(trained("xlm")).fingerprint
