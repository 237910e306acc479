"""What a person is told at the edges: of folders given for files, of places nothing can be written to, of tables read
as texts, of options that have no use, and when they stop a command."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth import checkpoint as checkpoints
from firth import lineage
from firth.commands.shown import show
from firth.data.health import warnings
from firth.errors import BadConfig, BadInput, Interrupted
from firth.files import check_writable, trouble, write_bytes

Command = Callable[..., Any]
FIRTH = Path(sys.executable).with_name("firth")
WORDS = "The quick brown fox jumps over the lazy dog while the other dogs watch.\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(WORDS * 40)
    return path


def test_a_folder_given_for_a_file(command: Command, run: Path, tmp_path: Path) -> None:
    for arguments in (
        ("keywords", tmp_path),
        ("embed", run, "--file", tmp_path, "--out", tmp_path / "x.npy"),
        ("senses", run, "--word", "dog", "--file", tmp_path),
    ):
        code, _, err = command(*arguments)
        assert (code, err) == (2, f"firth: {tmp_path} is a folder; name a file in it.\n")


def test_places_nothing_can_be_written_to(command: Command, text: Path, run: Path, tmp_path: Path) -> None:
    within = text / "x"
    code, _, err = command("prepare", text, "--out", within, "--vocab-size", 40)
    assert (code, err) == (
        2,
        f"firth: {text} is a file, not a folder, so there can be no {within}; choose another place.\n",
    )
    if not Path("/proc/self").exists():
        pytest.skip("no /proc, into which nobody can write")
    for out in ("/proc/x", "/proc/deep/x"):
        for arguments in (("prepare", text, "--vocab-size", 40), ("embed", run, "--file", text)):
            place = f"{out}.npy"
            code, _, err = command(*arguments, "--out", place)
            assert code == 2
            assert err.startswith(f"firth: {place} could not be read or written")  # nothing was trained before
            assert "check the path" in err


def test_a_place_that_cannot_be_made_is_refused_before_anything_is_read(
    command: Command, run: Path, tmp_path: Path
) -> None:
    """`none` does not exist, and a command that looked at it first would say so."""
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "x"
    none = tmp_path / "none"
    for arguments in (
        ("prepare", none),
        ("pretrain", none),
        ("pretrain", none, "--recipe", "word2vec-sg-ns"),
        ("finetune", run, "--task", "classify", "--train", none),
        ("finetune", run, "--task", "classify", "--train", none, "--few", "contrast"),
        ("finetune", run, "--task", "classify", "--train", none, "--recipe", "ulmfit"),
        ("tune", run, "--task", "classify", "--train", none),
        ("compress", run, "--by", "int8", "--data", none),
        ("compress", run, "--by", "distil", "--data", none, "--train", none),
        ("import", none),
        ("extend", run, "--text", none, "--add", 3),
        ("vectors", run, "--text", none),
        ("export", run, "--format", "vec"),
        ("package", run),
        ("embed", run, "--file", none),
        ("map", run, "the", "qqqq"),
        ("search", "build", none),
        ("search", "mine", none),
        ("study", "lineage"),
        ("demo",),
    ):
        code, shown, err = command(*arguments, "--out", f"{out}.npy")
        assert (code, shown) == (2, ""), arguments
        assert f"{tmp_path / 'file'} is a file, not a folder, so there can be no {out}" in err, (arguments, err)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_errors_name_what_the_person_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file/x") as raised:
        write_bytes(tmp_path / "file" / "x", b"")
    assert raised.value.filename == str(tmp_path / "file" / "x")
    assert "is a file, not a folder" in trouble(raised.value)
    check_writable(tmp_path / "new" / "deeper" / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_is_wrong_is_told_before_a_vocabulary_is_trained(command: Command, text: Path, tmp_path: Path) -> None:
    for option, value, says in (
        ("--segmenter", tmp_path / "none", "none is not a folder with a model"),
        ("--near-duplicates", 40, "40 bits says nothing of likeness"),
        ("--processes", 0, "--processes must be at least 1"),
    ):
        code, _, err = command("prepare", text, "--out", tmp_path / "data", "--vocab-size", 40, option, value)
        assert code == 2
        assert err.startswith("firth: ")
        assert says in err


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.conll", "rows.jsonl"])
def test_tables_read_as_texts_are_told(name: str, command: Command, run: Path, tmp_path: Path) -> None:
    table = tmp_path / name
    table.write_text("label,text\n1,dogs jump over foxes\n0,foxes watch lazy dogs\n")
    code, _, err = command("embed", run, "--file", table, "--out", tmp_path / "x.npy")
    assert code == 0
    assert err.startswith(f"Warning: {table}: every line of a file of rows is read as one text")
    assert f"Warning: {table}" in command("keywords", table).err
    plain = table.with_suffix(".txt")
    plain.write_bytes(table.read_bytes())
    assert command("keywords", plain).err == ""


def test_binary_files_and_other_endings(command: Command, run: Path, text: Path, tmp_path: Path) -> None:
    (tmp_path / "binary.txt").write_bytes(b"one\ntwo\0three\n")
    for arguments in (("keywords",), ("embed", run, "--out", tmp_path / "x.npy", "--file")):
        err = command(*arguments, tmp_path / "binary.txt").err
        assert err == f"firth: {tmp_path / 'binary.txt'}, line 2: a NUL byte; this is a binary file, give text.\n"
    err = command("embed", run, "--file", text, "--out", tmp_path / "x.txt").err
    assert err == f"firth: {tmp_path / 'x.txt'} would hold a numpy array; let its name end in .npy.\n"


def test_texts_that_a_folder_asks_to_cut(command: Command, run: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    whole = checkpoints.load(run)
    checkpoints.save(model, replace(whole, embedding=checkpoints.Embedding(max_length=16)))
    (tmp_path / "texts.txt").write_text("short\n" + "long " * 50 + "\n")
    assert command("embed", run, "--file", tmp_path / "texts.txt", "--out", tmp_path / "x.npy").err == ""
    err = command("embed", model, "--file", tmp_path / "texts.txt", "--out", tmp_path / "y.npy").err
    assert "1 of 2 texts are longer than the 16 tokens this model reads and are cut." in err
    assert np.load(tmp_path / "y.npy").shape == np.load(tmp_path / "x.npy").shape


def test_the_remedy_for_unknown_words_of_a_vocabulary_trained_here(text: Path, tmp_path: Path) -> None:
    text.write_text(WORDS * 40 + " ".join(f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(400)) + ".\n")
    health = firth.prepare(text, out=tmp_path / "data", tokenizer="words", min_count=3, processes=0)
    [told] = [line for line in health["warnings"] if "unknown" in line]
    assert "a lower `min_count=`" in told
    assert "train a vocabulary" not in told
    assert "train a vocabulary on this text" in warnings(health)[0]


def test_a_missing_file_to_import(command: Command, tmp_path: Path) -> None:
    code, _, err = command("import", tmp_path / "missing.txt", "--out", tmp_path / "model")
    assert (code, err) == (2, f"firth: {tmp_path / 'missing.txt'} does not exist.\n")


def test_the_help_names_every_recipe(command: Command) -> None:
    shown = " ".join(command("pretrain", "--help").out.split())
    words = set(re.findall(r"[\w-]+(?:\.\w+)*", shown))
    assert set(lineage.TABLE) | set(lineage.SIZES) <= words
    assert shown.count("[default: the recipe's own]") == 3
    assert "it serves all that come with firth" in " ".join(command("serve", "--help").out.split())


def test_options_that_word_vectors_have_no_use_for(text: Path, tmp_path: Path, messages: Callable[[], str]) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(BadConfig, match="no GPU"):
            firth.pretrain(text, out=tmp_path / "run", recipe="glove", device="cuda")
    firth.pretrain(text, out=tmp_path / "run", recipe="tf-idf", size="mini", min_count=1, device="cpu")
    assert "`size='mini'` changes nothing in tf-idf." in messages()
    with pytest.raises(BadInput, match="too few for 100 dimensions"):
        firth.pretrain(text, out=tmp_path / "lsa", recipe="lsa", size="mini", min_count=1)
    assert "`size='mini'` only sets the width of the vectors in lsa." in messages()


def test_duplicates_tell_their_number(command: Command, text: Path) -> None:
    assert "40 documents, of which 780 pairs" in command("duplicates", text).err
    text.write_text(WORDS)
    code, out, err = command("duplicates", text)
    assert (code, out) == (0, "")
    assert "1 documents, of which 0 pairs are nearly the same." in err


def test_large_numbers_have_no_decimals(capsys: pytest.CaptureFixture[str]) -> None:
    show({"words_per_second": 1322558.5028, "loss": 5.5}, as_json=False)
    assert capsys.readouterr().out.split() == ["words", "per", "second", "1,322,559", "loss", "5.5000"]


def test_only_pre_training_warns_of_a_missing_list(
    data: Path, tiny: tuple[str, ...], tmp_path: Path, messages: Callable[[], str]
) -> None:
    firth.pretrain(data, out=tmp_path / "ernie", recipe="ernie", steps=1, changes=tiny)
    assert "without a list of names and phrases" in messages()
    firth.evaluate(tmp_path / "ernie", data=data)
    assert "without a list" not in messages()


@pytest.mark.parametrize("seconds", [0.2, 0.6, 1.2])
def test_ctrl_c_at_any_time_is_one_line(seconds: float, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", _STARTS, FIRTH, "pretrain", data, "--out", out],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "begins\n"
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    told = err.splitlines()[-1]
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert told.startswith("firth: Stopped")
    assert (told == "firth: Stopped.") is not out.exists()


_STARTS = """
import runpy, site, sys
site.main()
sys.argv = sys.argv[1:]
print("begins", flush=True)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""The installed command, once python itself has started."""


def test_ctrl_c_where_a_folder_is_left(command: Command, data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from firth import run_folder
    from firth.pretraining import training as pretraining

    def stopped(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(run_folder, "to_toml", stopped)  # as early as a folder is there
    code, _, err = command("pretrain", data, "--out", tmp_path / "run")
    assert (code, err) == (130, "firth: Stopped. Give the same command again to continue.\n")
    assert (tmp_path / "run").exists()
    monkeypatch.undo()
    monkeypatch.setattr(pretraining, "TrainingRun", stopped)
    code, _, err = command("pretrain", data, "--out", tmp_path / "run")
    assert (code, err.splitlines()[-1]) == (130, "firth: Stopped. Continue with --resume.")
    monkeypatch.setattr("firth.inference.model.load", stopped)
    assert command("info", tmp_path)[::2] == (130, "firth: Stopped.\n")


def test_the_tour_is_run_again_not_resumed(monkeypatch: Any, tmp_path: Path, without_models: None) -> None:
    def stopped(*_: object, **__: object) -> None:
        text = "Stopped at step 5; its state is saved."
        raise Interrupted(text, number=signal.SIGINT, remedy="Continue with `resume=True`.")

    (tmp_path / "demo" / "data").mkdir(parents=True)
    monkeypatch.setattr(firth.pipeline, "pretrain", stopped)
    with pytest.raises(Interrupted, match=r"is saved\. Run it again to continue\.$"):
        firth.demo(out=tmp_path / "demo")
