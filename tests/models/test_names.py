"""Models by name: `en-small` and `zh-small` wherever a model is asked for, and by themselves where none is named."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import firth
from bench import cloze
from firth import models, samples
from firth.data.packing import pack_tokens
from firth.errors import BadInput
from firth.inference.lexicon import open_lexicon
from firth.model_files import embed_file

Command = Callable[..., Any]
NAMES = ("en-small", "zh-small")
TEXTS = {"en-small": "The [MASK] is open.", "zh-small": "今天的天气很[MASK]。"}
LIMIT = 14_000_000
"""Bytes of a model that comes with firth."""
SHIPPED = models.names()


# The models that come with firth


@pytest.mark.parametrize("name", SHIPPED)
def test_a_model_that_comes_with_firth_is_small_and_says_what_it_was_trained_on(name: str) -> None:
    folder = models.find(name)
    language = firth.load(name).info().training["language"]
    assert language == name.partition("-")[0]
    assert language in models.LANGUAGES
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= LIMIT
    card = (folder / "README.md").read_text("utf-8")
    sources = card.split("## Text and licences\n")[1].split("\n## ")[0].strip().splitlines()
    assert sources
    for source in sources:
        assert re.search(r"^- .+: .*(CC BY|public domain|licences mixed)", source)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_model_that_comes_with_firth_knows_its_language(name: str) -> None:
    rows = cloze.sentences(name.partition("-")[0])
    grammar = [row for row in rows if row["kind"] == "grammar"]
    tally = cloze.measure(models.find(name), grammar)["all"]
    # Weights that are read wrongly fill none; the models as measured fill more than 70 %.
    assert tally.first / tally.count > 0.6


@pytest.mark.parametrize("name", NAMES)
def test_every_file_of_a_model_is_in_the_wheel(name: str, with_models: Path) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["firth"]
    for file in (with_models / name).iterdir():
        place = Path("models") / name / file.name
        assert any(place.match(pattern) for pattern in patterns), place


@pytest.mark.parametrize("name", NAMES)
def test_a_named_model_fills_and_embeds(name: str, with_models: Path) -> None:
    model = firth.load(name)
    assert model.folder == with_models / name
    fills = model.fill(TEXTS[name], top=3)
    assert len({fill.token for fill in fills}) == 3
    vectors = model.embed(["a river", "一条河", "a river"])
    assert np.isfinite(vectors).all()
    assert np.allclose(vectors[0], vectors[2], atol=1e-6)
    assert not np.allclose(vectors[0], vectors[1], atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_transformers_opens_the_exported_folder_of_a_name(
    name: str, with_models: Path, command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "plain"
    assert command("export", name, "--to", "huggingface", "--out", out).code == 0
    theirs = transformers.AutoModel.from_pretrained(out).eval()
    ours = firth.load(name)
    for text in ("The river runs through the city.", "今天的天气很好。"):
        ids = ours.tokenizer.vocab.frame.join(ours.tokenizer.encode(text).ids)
        with torch.no_grad():
            our_ND = ours.encoder(pack_tokens([ids])).last_ND
            their_ND = theirs(torch.from_numpy(np.asarray(ids))[None]).last_hidden_state[0]
        assert torch.allclose(our_ND, their_ND, atol=1e-5)


# Names


def test_a_path_that_exists_comes_before_a_name(
    with_models: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert models.names() == list(NAMES)
    assert models.find("en-small") == with_models / "en-small"
    (tmp_path / "en-small").symlink_to(run)
    assert models.find("en-small") == Path("en-small")
    assert models.find(Path("zh-small")) == with_models / "zh-small"
    assert models.find(run) == run


def test_an_unknown_name_is_told_the_known_ones(with_models: Path) -> None:
    with pytest.raises(BadInput, match=r"^en-smal is not .* \(en-small, zh-small\); did you mean en-small\?$"):
        firth.load("en-smal")
    with pytest.raises(BadInput, match=r"^somewhere is not .* \(en-small, zh-small\); train one with .*folder\.$"):
        firth.load("somewhere")


def test_a_name_in_every_command_that_takes_a_model(with_models: Path, command: Command, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("The bank of the river.\nA bank lends money.\n" * 3)
    rows = samples.labelled("classify", "en")
    pairs = samples.labelled("pairs", "en")
    text = samples.prose("en")
    word = open_lexicon(with_models / "en-small").words[-1]
    for arguments in (
        ("info", "en-small"),
        ("fill", "en-small", TEXTS["en-small"]),
        ("embed", "en-small", "--file", lines, "--out", tmp_path / "vectors.npy"),
        ("senses", "en-small", "--word", "bank", "--file", lines, "--groups", 1),
        ("neighbours", "en-small", word),
        ("analogy", "en-small", word, word, word),
        ("map", "en-small", word, word, "--out", tmp_path / "map.svg"),
        ("check", rows, "--task", "classify", "--model", "en-small"),
        ("evaluate", "en-small", "--task", "compare", "--data", pairs),
        ("prepare", text, "--tokenizer", "en-small", "--out", tmp_path / "data", "--processes", 1),
        ("evaluate", "en-small", "--data", tmp_path / "data"),
        ("extend", "en-small", "--text", text, "--add", 1, "--min-count", 2, "--out", tmp_path / "extended"),
        ("export", "en-small", "--to", "vec", "--out", tmp_path / "words.vec"),
    ):
        done = command(*arguments)
        assert done.code == 0, (arguments, done.err)
        assert "No model was named" not in done.err


def test_training_starts_from_a_name(with_models: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\n" + "a good day\tyes\na bad day\tno\n" * 8)
    changes = ["epochs=1", "max_length=16"]
    firth.finetune("en-small", task="classify", train=rows, out=tmp_path / "one", changes=changes, device="cpu")
    firth.finetune(encoder="en-small", task="classify", train=rows, out=tmp_path / "two", changes=changes, device="cpu")
    one = firth.load(tmp_path / "one").info()
    assert one.training["fine_tuned_from"] == "en-small"
    assert one == firth.load(tmp_path / "two").info()
    source = json.loads((tmp_path / "one/source.json").read_text())
    assert Path(source["model"]) == models.find("en-small").resolve()
    firth.prepare(samples.prose("en"), tokenizer="en-small", out=tmp_path / "data", processes=0)
    firth.pretrain(
        tmp_path / "data",
        start_from="en-small",
        steps=1,
        changes=["batches.tokens=512", "batches.max_length=64", "batches.held_out_rate=0.1"],
        out=tmp_path / "run",
        device="cpu",
    )
    assert json.loads((tmp_path / "run/source.json").read_text())["start_from"] == source["model"]


# No model is named


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The capital of France is [MASK].", "en"),
        ("北京是中国的首[MASK]。", "zh"),
        ("[MASK]国", "zh"),
        ("使用语言模型来预测下一个词的probability。", "zh"),
        ("The word 苹果 means apple in Chinese.", "en"),
        ("12 + 30 = [MASK]", "en"),
        ("", "en"),
        (["", "一", "二"], "zh"),
    ],
)
def test_the_language_of_a_text(text: str | list[str], language: str) -> None:
    assert models.language_of(text) == language


def test_the_language_of_much_text_is_that_of_its_beginning() -> None:
    assert models.language_of(["中文" * models.SAMPLE_CHARACTERS, "English words " * models.SAMPLE_CHARACTERS]) == "zh"


@pytest.mark.parametrize(
    ("notes", "tokens", "languages"),
    [
        ({}, ["the", "of", "##ing", "[MASK]", "。"], ["en"]),
        ({}, ["的", "中", "国", "。"], ["zh"]),
        ({"fine_tuned_from": "run"}, ["的", "中", "the"], ["en", "zh"]),
        ({"language": "zh"}, ["的", "中", "the"], ["zh"]),
        ({"fine_tuned_from": "zh-small"}, ["的", "中", "the"], ["zh"]),
    ],
)
def test_the_languages_of_a_model(notes: dict[str, str], tokens: list[str], languages: list[str]) -> None:
    assert models.languages_of_model(notes, tokens) == languages


@pytest.mark.parametrize(("name", "language"), [("en-small", "English"), ("zh-small", "Chinese")])
def test_fill_and_embed_choose_by_the_text_and_say_so(
    name: str, language: str, with_models: Path, command: Command, tmp_path: Path
) -> None:
    note = f"No model was named: using {name}, the model for {language} text.\n"
    named = command("fill", name, TEXTS[name])
    chosen = command("fill", TEXTS[name])
    assert (chosen.code, chosen.out, chosen.err) == (0, named.out, note)
    lines = tmp_path / "lines.txt"
    lines.write_text(TEXTS[name] + "\n")
    assert command("embed", "--file", lines, "--out", tmp_path / "one.npy").err == note
    assert command("embed", name, "--file", lines, "--out", tmp_path / "two.npy").err == ""
    assert np.array_equal(np.load(tmp_path / "one.npy"), np.load(tmp_path / "two.npy"))
    words = open_lexicon(with_models / name).words
    word = next(word for word in reversed(words) if models.language_of(word) == name.partition("-")[0])
    assert command("neighbours", word).code == 0


def test_senses_and_analogies_choose_by_the_text(with_models: Path, command: Command, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("我在银行存钱。\n银行在河边。\n" * 3)
    done = command("senses", "--word", "银", "--file", lines, "--groups", 1)
    assert "using zh-small" in done.err
    assert done.code == 0
    word = open_lexicon(with_models / "en-small").words[-1]
    assert command("analogy", word, word, word).code == 0
    refused = command("analogy", word, word)
    assert refused.code == 2
    assert "Give FIRST SECOND THIRD, or a model and FIRST SECOND THIRD; there are 2 arguments." in refused.err


def test_embed_reads_standard_input(with_models: Path, tmp_path: Path) -> None:
    def embed(text: str, out: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "firth", "embed", *arguments, "--out", str(tmp_path / out)]
        return subprocess.run(command, input=text.encode(), capture_output=True, check=False)

    text = "今天下雨。\r\n明天天晴。\n"
    done = embed(text, "piped.npy")
    assert done.returncode == 0, done.stderr
    assert b"using zh-small" in done.stderr
    (tmp_path / "lines.txt").write_bytes(text.encode())
    embed_file(file=tmp_path / "lines.txt", out=tmp_path / "read.npy")
    piped = np.load(tmp_path / "piped.npy")
    assert len(piped) == 2
    assert np.array_equal(piped, np.load(tmp_path / "read.npy"))
    empty = embed("", "empty.npy", "--file", "-")
    assert empty.returncode == 2
    assert empty.stderr.decode() == "firth: standard input is empty; put one text on each line.\n"


@pytest.mark.parametrize(("language", "name"), [("en", "en-small"), ("zh", "zh-small")])
def test_fine_tuning_chooses_by_the_rows(
    language: str, name: str, with_models: Path, command: Command, tmp_path: Path
) -> None:
    lines = samples.labelled("classify", language).read_text("utf-8").splitlines()
    rows = tmp_path / "rows.tsv"
    rows.write_text("\n".join([lines[0], *lines[1::12]]), "utf-8")
    out = tmp_path / "tuned"
    arguments = ("--task", "classify", "--train", rows, "--device", "cpu", "epochs=1", "max_length=32")
    done = command("finetune", *arguments, "--out", out)
    assert done.code == 0, done.err
    assert f"No model was named: using {name}," in done.err
    assert firth.load(out).info().training["fine_tuned_from"] == name
    # A resumed run keeps its model, and says nothing.
    again = command("finetune", "--out", out, "--resume")
    assert again.code == 0
    assert "No model was named" not in again.err
    control = command("finetune", *arguments, "--random", "--out", tmp_path / "control")
    assert "No model was named" not in control.err
    assert "random weights and a vocabulary of the training rows" in control.err


# An installation without models


def test_without_models_one_sentence_says_what_to_do(
    without_models: None, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # there is no demo here
    rows = samples.labelled("classify", "en")
    none = "No model was named, and this installation has no models; name a model folder"
    finetune = ("finetune", "--task", "classify", "--train", rows, "--out", tmp_path / "tuned")
    for arguments, says in (
        (("fill", TEXTS["en-small"]), f"{none}."),
        (("embed", "--file", rows, "--out", tmp_path / "v.npy"), f"{none}."),
        (finetune, f"{none}, or start from random weights with --random."),
        (("serve",), "This installation has no models: name a model folder to serve, or run `firth demo` first."),
        (("info", "en-small"), "en-small is not a folder with a model; train one with `firth pretrain` or name its"),
    ):
        done = command(*arguments)
        assert done.code == 2
        assert says in done.err
        assert not (tmp_path / "tuned").exists()


def test_a_language_without_a_model_is_an_error(models_folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "en-small").symlink_to(models_folder / "en-small")
    monkeypatch.setenv(models.VARIABLE, str(tmp_path))
    assert models.suiting("Some words.") == tmp_path / "en-small"
    with pytest.raises(BadInput, match=r"has no model for Chinese text, only en-small; name a model folder\."):
        models.suiting("一些字")


# Messages


def test_a_message_names_a_model_as_the_user_did(with_models: Path, tmp_path: Path, command: Command) -> None:
    refused = command("evaluate", "en-small", "--data", samples.labelled("classify", "en"))
    assert (refused.code, "firth: en-small is not fine-tuned for a task" in refused.err) == (2, True)
    refused = command(
        "prepare", samples.prose("en"), "--tokenizer", "en-small", "--vocab-size", 9, "--out", tmp_path / "x"
    )
    assert (refused.code, "the tokenizer in en-small has its own" in refused.err) == (2, True)


def test_a_file_of_a_model_and_other_folders_keep_their_paths(with_models: Path) -> None:
    folder = with_models / "en-small"
    assert models.with_names(f"{folder} is old; {folder}.") == "en-small is old; en-small."
    for path in (folder / "config.json", f"{folder}-2", f"{folder}.tar", f"/elsewhere{folder}", "en-small"):
        assert models.with_names(f"{path} is damaged.") == f"{path} is damaged."
