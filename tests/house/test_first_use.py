"""What a first-time user stumbled over: each trap has its sentence, and every remedy that a sentence names works."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth import console, samples
from firth.errors import Interrupted
from firth.inference.model import load
from firth.interrupts import Interrupts
from firth.tokenizers.unknown import unknown_share
from firth.tokenizers.wordpiece import WordPiece

Command = Callable[..., Any]
GREEK = "Η ποιότητα ήταν εξαιρετική και θα ξαναέρθουμε.\n"
ROWS = "text\tlabel\n" + "".join(
    f"{word} day {i}\t{label}\n" for i in range(6) for word, label in (("good", "pos"), ("bad", "neg"))
)


@pytest.fixture(scope="module")
def reviews(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier over texts."""
    home = tmp_path_factory.mktemp("reviews")
    (home / "rows.tsv").write_text(ROWS)
    firth.finetune(
        run, task="classify", train=home / "rows.tsv", out=home / "model", changes=["epochs=1"], device="cpu"
    )
    return home / "model"


# A model that cannot read the text


def test_the_unknown_share_counts_texts_and_no_special_tokens(tokenizer: WordPiece) -> None:
    vocab = tokenizer.vocab
    known = tokenizer.encode("the day").ids
    assert len(known) == 2
    framed = vocab.frame.join(np.array([*known, vocab.unk, vocab.unk]))
    assert unknown_share(tokenizer, [framed]) == 0.5
    assert unknown_share(tokenizer, [known]) == 0.0
    assert unknown_share(tokenizer, []) == 0.0


def test_check_finetune_predict_and_evaluate_warn_of_text_that_the_model_cannot_read(
    run: Path, reviews: Path, tmp_path: Path, command: Command
) -> None:
    rows = tmp_path / "greek.tsv"
    rows.write_text("text\tlabel\n" + f"{GREEK.strip()}\tpos\n" * 4 + f"{GREEK.strip()} όχι\tneg\n" * 4)
    checked = command("check", rows, "--task", "classify", "--model", run)
    assert re.search(r"unknown: \d\d\.\d\d% of the tokens", checked.out)
    assert "Warning: " in checked.out
    assert "unknown to this model" in checked.out
    assert (
        json.loads(command("check", rows, "--task", "classify", "--model", run, "--json").out)["parts"]["train"][
            "lengths"
        ]["unknown_share"]
        > 0.5
    )
    tuned = command("finetune", run, "epochs=1", "--task", "classify", "--train", rows, "--out", tmp_path / "tuned")
    assert "classify, train: " in tuned.err
    assert "unknown to this model" in tuned.err
    assert "unknown to this model" in command("predict", reviews, GREEK.strip()).err
    assert "unknown to this model" in command("evaluate", reviews, "--data", rows).err
    assert "unknown" not in command("predict", reviews, "a good day").err


def test_embed_reports_the_unknown_share_and_gives_blank_lines_zeros(
    run: Path, tmp_path: Path, command: Command
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text(GREEK + "\n" + "a day\n" + "   \n")
    shown = command("embed", run, "--file", lines, "--out", tmp_path / "v.npy", "--json")
    figures = json.loads(shown.out)
    assert figures["blank"] == 2
    assert 0.5 < figures["unknown_share"] < 1
    assert "unknown to this model" in shown.err
    lengths = np.linalg.norm(np.load(tmp_path / "v.npy"), axis=1)
    assert lengths[[1, 3]].tolist() == [0, 0]
    assert (lengths[[0, 2]] > 0).all()


def test_search_drift_and_vectors_warn_of_text_that_the_model_cannot_read(
    run: Path, tmp_path: Path, command: Command
) -> None:
    texts = tmp_path / "greek.txt"
    texts.write_text("".join(f"{GREEK.strip()} {'όχι ' * i}\n" for i in range(40)))
    small = ("steps=1", "batch_size=2", "max_tokens=500")
    for shown in (
        command("search", "build", texts, "--model", run, "--out", tmp_path / "index"),
        command("drift", texts, texts, "--model", run),
        command("vectors", run, *small, "--text", texts, "--out", tmp_path / "head"),
    ):
        assert (shown.code, "unknown to this model" in shown.err) == (0, True)


def test_search_warns_of_the_rows_of_a_table(run: Path, tmp_path: Path, command: Command) -> None:
    for name, is_table in (("rows.tsv", True), ("rows.txt", False)):
        (tmp_path / name).write_text(ROWS)
        built = command("search", "build", tmp_path / name, "--model", run, "--out", tmp_path / f"{name}.index")
        assert (built.code, "every line of a file of rows is read as one text" in built.err) == (0, is_table)


# Files with other columns


def test_evaluate_and_predict_read_files_with_other_headers(reviews: Path, tmp_path: Path, command: Command) -> None:
    other = tmp_path / "other.csv"
    other.write_text("id,comment,verdict\n1,a good day,pos\n2,a bad day,neg\n")
    refused = command("evaluate", reviews, "--data", other)
    assert (refused.code, "--text-column" in refused.err) == (2, True)
    refused = command("evaluate", reviews, "--data", other, "--text-column", "comment")
    assert (refused.code, "--label-column" in refused.err) == (2, True)
    columns = ("--text-column", "comment", "--label-column", "verdict")
    measured = command("evaluate", reviews, "--data", other, *columns, "--json")
    assert json.loads(measured.out)["rows"] == 2
    refused = command("predict", reviews, "--file", other)
    assert (refused.code, "--text-column" in refused.err) == (2, True)
    rows = command("predict", reviews, "--file", other, "--text-column", "comment", "--json").out.splitlines()
    assert [json.loads(row)["input"] for row in rows] == ["a good day", "a bad day"]
    wrong = command("predict", reviews, "--file", other, "--text-column", "comments")
    assert "its columns are id, comment, verdict: name the right one with --text-column" in wrong.err


def test_columns_of_a_file_without_header_are_counted(reviews: Path, tmp_path: Path, command: Command) -> None:
    plain = tmp_path / "plain.tsv"
    plain.write_text("pos\ta good day\nneg\ta bad day\n")
    counted = ("--text-column", "2", "--label-column", "1")
    assert json.loads(command("evaluate", reviews, "--data", plain, *counted, "--json").out)["rows"] == 2
    predicted = command("predict", reviews, "--file", plain, "--text-column", "2")
    assert len(predicted.out.splitlines()) == 2


def test_other_settings_of_a_fine_tuned_model_are_refused_with_the_option(reviews: Path, command: Command) -> None:
    data = Path(str(samples.__file__)).parent / "classify.en.tsv"
    assert "leave out --kind" in command("evaluate", reviews, "--data", data, "--kind", "many").err
    two = command("evaluate", reviews, "--data", data, "--label-column", "a", "--label-column", "b")
    assert "learned 1 label column(s); name as many with --label-column" in two.err


# Progress and Ctrl-C


def test_training_prints_plain_lines_if_its_output_is_a_file(
    run: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.tsv").write_text(ROWS)
    monkeypatch.setattr(console, "PLAIN_SECONDS", 0.0)
    tuned = command(
        "finetune", run, "epochs=6", "batch_size=4", "--task", "classify", "--train", tmp_path / "rows.tsv",
        "--out", tmp_path / "model",
    )  # fmt: skip
    assert re.search(
        r"fine-tuning, seed 1: 2 of \d+ steps, classify \d\.\d{3} rate \d\.\de-\d\d, \d+ s left", tuned.err
    )
    monkeypatch.setattr(console, "PLAIN_SECONDS", 1e9)
    silent = command(
        "finetune", run, "epochs=1", "--task", "classify", "--train", tmp_path / "rows.tsv", "--out", tmp_path / "two"
    )
    assert "fine-tuning, seed 1" not in silent.err


@pytest.mark.parametrize(("seconds", "written"), [(40, "40 s"), (720, "12 min"), (7500, "2 h 5 min")])
def test_the_time_left_is_short(seconds: float, written: str) -> None:
    assert console._duration(seconds) == written


def test_ctrl_c_answers_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    with console.shown(), Interrupts() as interrupts, interrupts.deferred():
        signal.raise_signal(signal.SIGINT)
        assert interrupts.requested == signal.SIGINT
        assert "Stopping after this step" in capfd.readouterr().err
    with Interrupts() as interrupts, interrupts.deferred():
        signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == ""


def test_ctrl_c_in_a_run_is_answered_before_the_run_ends(run: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_text(ROWS)
    command = [sys.executable, "-m", "firth", "finetune", run, "epochs=2000", "--task", "classify"]
    command += ["--train", tmp_path / "rows.tsv", "--out", tmp_path / "model"]
    log = tmp_path / "log.txt"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 60
    metrics = tmp_path / "model" / "seed-1" / "metrics.jsonl"
    while not metrics.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    said = log.read_text()
    assert said.index("Stopping after this step") < said.index("Stopped at step")


# Answers as JSON


def test_predictions_in_json_have_the_input_and_no_empty_text(folder_of_tagger: Path, command: Command) -> None:
    row = json.loads(command("predict", folder_of_tagger, "Anna lives in Rome .", "--json").out)
    assert row["input"] == "Anna lives in Rome ."
    assert "text" not in row
    assert {"label", "spans"} <= row.keys()


@pytest.fixture(scope="module")
def folder_of_tagger(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tagger") / "model"
    rows = Path(str(samples.__file__)).parent / "entities.en.conll"
    firth.finetune(run, task="tag", train=rows, out=out, changes=["epochs=1"], device="cpu")
    return out


# Mistakes on the command line


def test_swapped_arguments_are_recognised(reviews: Path, run: Path, tmp_path: Path, command: Command) -> None:
    said = command("predict", "a good day", reviews)
    assert (said.code, "The model comes first" in said.err) == (2, True)
    assert command("predict", reviews, "a good day").code == 0  # as the message says
    assert "The model comes first" in command("fill", "the [MASK]", run).err
    assert command("fill", run).err == f"firth: '{run}' is a model; write the text with its mask after it.\n"
    rows = tmp_path / "rows.tsv"
    rows.write_text(ROWS)
    swapped = command("finetune", rows, "--task", "classify", "--train", run, "--out", tmp_path / "model")
    assert f"--train {run} is a model and {rows} is a file of rows; swap the two" in swapped.err
    file_alone = command("finetune", rows, "--task", "classify", "--out", tmp_path / "model")
    assert "is a file, not a folder with a model; labelled rows go to --train" in file_alone.err
    right = command("finetune", run, "epochs=1", "--task", "classify", "--train", rows, "--out", tmp_path / "model")
    assert right.code == 0


def test_a_setting_that_is_typed_as_an_option(command: Command) -> None:
    says = "No such option: --epochs; if it is a setting, write epochs=VALUE."
    assert says in command("finetune", "--task", "classify", "--epochs", "3").err
    assert "write batch_size=VALUE" in command("tune", "--task", "classify", "--batch-size=8").err
    assert "write train.seed=VALUE" in command("pretrain", "data", "--train.seed", "8").err
    assert "if it is a setting" not in command("fill", "a [MASK]", "--epochs", "3").err


def test_a_folder_without_weights_is_told_what_it_looks_like(run: Path, tmp_path: Path, command: Command) -> None:
    for name in ("config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    said = command("fill", tmp_path, "the [MASK]")
    assert "It looks like a model whose weights were not copied" in said.err
    (tmp_path / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes())
    assert command("fill", tmp_path, "the [MASK]").code == 0


@pytest.mark.parametrize(
    ("content", "row"),
    [
        ('text,label\na day,pos\n"a good day,pos\nbad,neg\nfine,pos\n', 3),
        ('text,label\na day,pos\n"a good day,pos\nhe said,neg\n"fine, or so",pos\nbad,neg\n', 3),
        ('text,label\n"two\nlines",pos\nbad,neg\nok,"pos\nugly,neg\n', 5),
    ],
)
def test_an_unclosed_quote_is_named_with_its_row(content: str, row: int, tmp_path: Path, command: Command) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(content)
    said = command("check", path, "--task", "classify")
    assert f"row {row}: a quote that opens here is never closed" in said.err + said.out
    closed = 'text,label\n"two\nlines",pos\n"he said ""fine"", twice",neg\n'
    path.write_text(closed)
    assert "never closed" not in command("check", path, "--task", "classify").out


def test_help_lists_the_values_of_task_and_kind(command: Command) -> None:
    shown = " ".join(command("finetune", "--help").out.split())
    for value in (
        "classify, tag, answer, choose, compare, rewrite",
        "one (a name), many (any number of names) or number",
    ):
        assert value in shown


def test_the_models_language_is_that_of_its_rows(run: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\n" + "".join(f"第{i}天很好\tpos\n第{i}天不好\tneg\n" for i in range(6)))
    firth.finetune(run, task="classify", train=rows, out=tmp_path / "model", changes=["epochs=1"], device="cpu")
    assert load(tmp_path / "model").checkpoint.info["text_language"] == "zh"


# Texts that the terminal cannot write, swapped arguments, and a remedy that the command has


def test_a_lone_surrogate_in_a_row_is_printed_as_an_escape(reviews: Path, tmp_path: Path, command: Command) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a good \\ud800 day"}\n')
    code, out, err = command("predict", reviews, "--file", rows, "--json")
    assert (code, "Traceback" in err) == (0, False)
    assert json.loads(out)["input"] == "a good \ud800 day"


def test_arguments_that_are_no_model_say_where_they_belong(run: Path, tmp_path: Path, command: Command) -> None:
    refused = command("finetune", run, "rows.tsv", "--task", "classify", "--out", tmp_path / "model")
    assert (refused.code, "go to --train" in refused.err) == (2, True)
    refused = command("finetune", run, "epochs", "3", "--task", "classify", "--out", tmp_path / "model")
    assert (refused.code, "epochs=3" in refused.err) == (2, True)
    refused = command("search", "ask", "Why does it rain?", tmp_path)
    assert (refused.code, "swap the two" in refused.err) == (2, True)


def test_files_in_the_place_of_models_and_texts_are_recognised(
    reviews: Path, run: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("A good day.\n")
    out = ("--out", tmp_path / "x.npy")
    assert "name it with --file" in command("embed", lines, *out).err
    assert "en-smal is not a folder with a model" in command("embed", "en-smal", "--file", lines, *out).err
    assert "texts to --file or --text" in command("embed", lines, "--file", lines, *out).err
    refused = command("predict", reviews, lines)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == f"firth: '{lines}' is a file; give it with --file.\n"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").write_text("A good day.\n")
    assert command("predict", reviews, "notes").code == 0  # a word may be the name of a file by chance
    assert "give it with --file" in command("predict", reviews, "./notes").err
    assert "give it with --file" in command("predict", reviews, "lines.txt").err
    assert "texts to --file or --text" in command("vectors", lines, "--text", run, "--out", tmp_path / "x").err
    assert command("predict", reviews, "word " * 2000, "a \0 b").code == 0  # no names of files


def test_a_binary_file_is_called_one(reviews: Path, run: Path, tmp_path: Path, command: Command) -> None:
    for ending in ("txt", "tsv", "jsonl"):
        (tmp_path / f"binary.{ending}").write_bytes(bytes(range(256)) * 4)
    out = ("--out", tmp_path / "x.npy")
    for arguments in (
        ("embed", run, "--file", tmp_path / "binary.txt", *out),
        ("predict", reviews, "--file", tmp_path / "binary.txt"),
        ("finetune", run, "--task", "classify", "--train", tmp_path / "binary.tsv", *out),
        ("search", "build", tmp_path / "binary.jsonl", "--model", run, *out),
        ("search", "mine", tmp_path / "binary.tsv", "--model", run, *out),
    ):
        refused = command(*arguments)
        assert (refused.code, refused.out) == (2, "")
        assert "binary file, give text" in refused.err, refused.err
        assert "iconv" not in refused.err


def test_columns_that_cannot_be_meant_are_refused(run: Path, tmp_path: Path, command: Command) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text(ROWS)
    finetune = ("finetune", run, "--task", "classify", "--train", rows, "--out", tmp_path / "x")
    refused = command(*finetune, "--label-column", "text")
    assert (refused.code, "'text' is read as the text; name another with --label-column" in refused.err) == (2, True)
    refused = command(*finetune, "--pattern", "{text} [MASK]", "--few", "contrast")
    assert (refused.code, "--pattern needs --words" in refused.err) == (2, True)
    prose = tmp_path / "prose.tsv"
    prose.write_text(f"{'A long line of prose. ' * 20}\nAnother.\n")
    refused = command("check", prose, "--task", "compare")
    assert "A long line of p…" in refused.err
    assert len(refused.err) < len(str(prose)) + 400


def test_words_for_labels_are_suggested_in_the_language_of_the_rows(
    run: Path, tmp_path: Path, command: Command
) -> None:
    suggested = "--words 好评=好,差评=差."
    options = ("--task", "classify", "--few", "prompt", "--out", tmp_path / "out")
    for labels in (("好评", "差评"), ("positive", "negative")):
        rows = tmp_path / f"{labels[0]}.tsv"
        rows.write_text("text\tlabel\n" + f"今天的菜很好吃\t{labels[0]}\n汤是冷的，不好喝\t{labels[1]}\n" * 8)
        refused = command("finetune", run, "--train", rows, *options)
        assert (refused.code, suggested in refused.err, ", ".join(sorted(labels)) in refused.err) == (2, True, True)
    shown = command("predict", run, "今天真好。", "--words", "好评").err
    assert '--pattern "{text} 总之很[MASK]。" and --words 好评=好,差评=差' in shown
    assert "--words 好评=好,差评=差" in command("predict", run, "今天真好。", "--words", "好评=好").err
    english = tmp_path / "english.tsv"
    english.write_text(ROWS)
    assert "--words positive=great,negative=terrible." in command("finetune", run, "--train", english, *options).err


def test_a_folder_for_a_fine_tuned_model_says_what_to_give(
    reviews: Path, data: Path, tmp_path: Path, command: Command
) -> None:
    refused = command("evaluate", reviews, "--data", data)
    assert "fine-tuned for classify, so give a file of labelled rows as --data." in refused.err
    (tmp_path / "rows.tsv").write_text(ROWS)
    assert command("evaluate", reviews, "--data", tmp_path / "rows.tsv").code == 0


def test_the_remedy_of_a_prompt_without_words_can_be_typed(run: Path, tmp_path: Path, command: Command) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text(ROWS)
    for asked in (
        ("evaluate", run, "--task", "prompt", "--data", rows),
        ("tune", run, "--task", "prompt", "--train", rows, "--out", tmp_path / "tuned"),
    ):
        refused = command(*asked)
        # Neither has options for them; the --words of evaluate are files.
        assert "`label_words='positive=great,negative=terrible'`" in refused.err
        assert "--pattern" not in refused.err
    refused = command("predict", run, "A day.", "--words", "good")
    assert """--pattern "{text} It was [MASK]." and --words positive=great,negative=terrible""" in refused.err
    refused = command("predict", run, "A day.", "--words", "positive=good")
    assert "Words are given for one label only (positive)" in refused.err


def test_questions_without_words_and_pairs_without_negatives_are_refused(
    run: Path, tmp_path: Path, command: Command
) -> None:
    refused = command("search", "ask", tmp_path, "?! …")
    assert (refused.code, "The question has no words" in refused.err) == (2, True)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("anchor\tpositive\nA day.\tA good day.\nA night.\tA bad night.\n")
    out = tmp_path / "triplets.tsv"
    refused = command("search", "mine", pairs, "--model", run, "--out", out, "--margin", 3)
    assert (refused.code, "no text is less similar by 3; lower --margin" in refused.err) == (2, True)
    for number, second in enumerate(("A good day.", "A day.")):
        pairs.write_text(f"anchor\tpositive\nA day.\t{second}\nA day.\tA good day.\n")
        refused = command("search", "mine", pairs, "--model", run, "--out", out, "--margin", 0.1 * (1 - number))
        assert (refused.code, "add pairs with other second texts" in refused.err) == (2, True)
    assert not out.exists()


def test_options_of_predict_that_do_not_go_together_are_refused_before_the_model_is_loaded(
    tmp_path: Path, command: Command
) -> None:
    asked = ("predict", tmp_path / "no-model", "A day.")
    assert "--pattern needs --words" in command(*asked, "--pattern", "{text} [MASK]").err
    assert "leave out --engine" in command(*asked, "--words", "good=fine", "--engine", "ray").err
    assert "Columns are those of a --file" in command(*asked, "--text-column", "text").err
    assert "add --explain" in command(*asked, "--explain-by", "occlusion").err
    assert "leave out one of the two" in command(*asked, "--abstain-below", "0.9", "--wanted-precision", "0.9").err


def test_a_stopped_study_is_continued_by_the_same_command(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise Interrupted("Stopped.", number=signal.SIGINT, remedy="Continue with `resume=True`.")

    monkeypatch.setattr("firth.study.studies.run", stop)
    stopped = command("study", "lineage", "--out", tmp_path / "study")
    assert "resume" not in stopped.err
    assert "Give the same command again" in stopped.err


# Files, folders and settings that say nothing, and memory that is not there


def test_a_file_of_inputs_with_a_header_alone_is_refused(reviews: Path, tmp_path: Path, command: Command) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\n")
    refused = command("predict", reviews, "--file", rows)
    assert (refused.code, refused.out) == (2, "")
    assert f"{rows} has a header at most and no row; give it one input a row." in refused.err
    rows.write_text("text\tlabel\na good day\tpos\n")
    assert command("predict", reviews, "--file", rows).code == 0


def test_a_message_names_the_first_of_many_columns(tmp_path: Path, command: Command) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text("\t".join(f"column {i}" for i in range(500)) + "\n")
    known = tmp_path / "known.tsv"
    known.write_text("\t".join(["text", "label", *(f"column {i}" for i in range(500))]) + "\n")
    counted = command("check", known, "--task", "classify", "--text-column", "1", "--label-column", "2").err
    assert "has a header (text, label, column 0, " in counted
    assert "column 17, and 482 more)" in counted
    for options in (
        ("classify",),
        ("classify", "--text-column", "comment"),
        ("compare", "--kind", "triplets"),
        ("choose",),
        ("rewrite",),
    ):
        said = command("check", rows, "--task", *options).err
        assert "column 0, column 1, " in said
        assert "column 19, and 480 more" in said


def test_what_firth_wrote_is_not_read_as_text(run: Path, tmp_path: Path, command: Command) -> None:
    for refused in (
        command("prepare", run, "--out", tmp_path / "data"),
        command("search", "build", run, "--out", tmp_path / "index"),
    ):
        assert refused.code == 2
        assert f"{run} is a model, not a folder of texts; name the files that the texts are in." in refused.err


def test_a_file_with_other_labels_names_the_model_that_does_not_know_them(
    reviews: Path, tmp_path: Path, command: Command
) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\na good day\tfood\nb\tfilm\n")
    for options in ((), ("--against", reviews), ("--slices",)):
        said = command("evaluate", reviews, "--data", rows, *options).err
        wanted = (
            f"No row of {rows} has an answer that {reviews} knows (row 2: the label 'food' never occurs in training)"
        )
        assert wanted in said


def test_a_setting_of_another_mode_is_not_taken_in_silence(run: Path, tmp_path: Path, command: Command) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text(ROWS)
    options = ("epochs=1", "--task", "classify", "--train", rows)
    tuned = command("finetune", run, *options, "transfer.lora.rank=4", "--out", tmp_path / "one")
    assert "Warning: transfer.lora has no effect without transfer.mode=lora.\n" in tuned.err
    tuned = command("finetune", run, *options, "transfer.lora.rank=4", "transfer.mode=lora", "--out", tmp_path / "two")
    assert (tuned.code, "no effect" in tuned.err) == (0, False)


def test_memory_that_is_not_there_is_one_sentence(run: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.int8)

    def fail(*_: object, **__: object) -> None:
        raise raised.value

    monkeypatch.setattr("firth.inference.model.load", fail)
    refused = command("predict", run, "a good day")
    assert (refused.code, "There is not enough memory for this" in refused.err) == (2, True)
