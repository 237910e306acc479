"""`check` finds what would spoil a run, and names the rows."""

from collections.abc import Callable
from pathlib import Path

import pytest

import firth
from firth.errors import BadConfig, BadInput
from firth.finetuning.checking import describe


def write(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return path


def test_everything_wrong_is_named_with_its_row(run: Path, tmp_path: Path) -> None:
    rows = ["text\tlabel", "good one\tgood", "Good  one\tbad", "so bad\tbad", "\tbad", "only text"]
    rows += [f"row number {i}\tgood" for i in range(9)] + [f"{'very ' * 300}long\tbad", "rare\tugly"]
    train = write(tmp_path / "train.tsv", rows)
    dev = write(tmp_path / "dev.tsv", ["text\tlabel", "SO BAD\tbad", "new\tgood", "odd\tstrange"])
    found = firth.check(train, task="classify", dev=dev, model=run)
    part = found["parts"]["train"]
    assert part["rows"] == 14
    assert [row["row"] for row in part["bad"]] == [6, 5] or [row["row"] for row in part["bad"]] == [5, 6]
    assert part["balance"] == {"label": {"bad": 3, "good": 10, "ugly": 1}}
    assert part["baseline"]["accuracy"] == pytest.approx(10 / 14)
    assert part["duplicates"] == [[2, 3]]
    assert part["conflicts"] == [{"rows": [2, 3], "golds": ["bad", "good"]}]
    assert part["lengths"]["longest"] > 300
    assert part["lengths"]["cut_rows"] == 1
    assert 0 < part["lengths"]["cut_share"] < 1
    assert found["parts"]["dev"]["also_in_train"] == [(2, 4)]
    assert "'strange' never occurs in training" in found["parts"]["dev"]["bad"][0]["what"]
    said = "\n".join(describe(found))
    for wanted in (
        "14 rows that can be used, 2 that cannot",
        "row 5: an empty text",
        "row 6: the number of columns is 1, not 2",
        "rows 2, 3 (bad / good)",
        "1 row (50.0%) is also in train, such as row 2 (train row 4)",
        "of the tokens, in 1 row;",
        "fewer than 5 training rows for the label bad, ugly",
        "without reading the texts: accuracy 0.7143",
    ):
        assert wanted in said


def test_a_clean_file_has_no_warnings() -> None:
    from firth import samples

    for language in ("en", "zh"):
        for task, name in (("classify", "classify"), ("tag", "entities")):
            said = describe(firth.check(samples.labelled(name, language), task=task))
            assert not [line for line in said if "cannot be used" in line], said


def test_swapped_columns_are_refused_and_sentences_stay_short(tmp_path: Path) -> None:
    rows = [f"The sentence number {i} is quite long, but each of them is another one.\t{i % 2}" for i in range(40)]
    path = write(tmp_path / "rows.tsv", ["text\tlabel", *rows])
    with pytest.raises(BadInput, match="there are 40 labels for 40 rows but only 2 different texts: are"):
        firth.check(path, task="classify", text_column="label", label_columns=("text",))
    # Several labels of a text are a matter of opinion, up to a point; the sentences about them list the first.
    doubtful = [f"text {i % 30}\t{'name ' * 20}{i}" for i in range(60)]
    found = firth.check(write(tmp_path / "doubtful.tsv", ["text\tlabel", *doubtful]), task="classify")
    assert max(len(line) for line in describe(found)) < 1000


def test_a_header_is_no_row_when_columns_are_counted(tmp_path: Path) -> None:
    rows = [f"sentence {i}\t{i % 2}" for i in range(8)]
    headed = write(tmp_path / "headed.tsv", ["text\tlabel", *rows])
    counted = {"text_column": "1", "label_columns": ("2",)}
    with pytest.raises(BadInput, match=r"has a header \(text, label\), and columns are counted only without one"):
        firth.check(headed, task="classify", **counted)
    plain = write(tmp_path / "plain.tsv", rows)
    assert firth.check(plain, task="classify", **counted)["parts"]["train"]["rows"] == 8


def test_an_option_of_another_task_names_that_task() -> None:
    from firth import samples

    rows = samples.labelled("classify", "en")
    with pytest.raises(BadConfig, match=r"^`tagger=` is for `task='tag'`, not for `task='classify'`\.$"):
        firth.check(rows, task="classify", tagger="crf")
    with pytest.raises(BadConfig, match=r"^`label_words=` is for `task='prompt'` or `few='prompt'`, not for"):
        firth.check(rows, task="classify", label_words="positive=great")


def test_illegal_tags_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "tags.txt", ["a B-PER", "b O", "", "c O", "d I-PER", "", "e B-PER", "f I-PER"])
    (bad,) = firth.check(path, task="tag")["parts"]["train"]["bad"]
    assert bad["row"] == 5
    assert bad["what"] == "word 2: I-PER after O is illegal in BIO"


def test_another_question_on_the_same_context_is_no_repetition(tmp_path: Path) -> None:
    rows = [
        '{"context": "It is noon.", "question": "Is it late?", "options": ["yes", "no"], "label": "no"}',
        '{"context": "It is noon.", "question": "Is it day?", "options": ["yes", "no"], "label": "yes"}',
        '{"context": "It is noon.", "question": "is it  day?", "options": ["yes", "no"], "label": "no"}',
    ]
    part = firth.check(write(tmp_path / "rows.jsonl", rows), task="choose")["parts"]["train"]
    assert part["duplicates"] == [[2, 3]]
    assert [row["rows"] for row in part["conflicts"]] == [[2, 3]]


def test_quotes_of_a_spreadsheet_are_told_wherever_rows_are_read(
    run: Path, tmp_path: Path, messages: Callable[[], str]
) -> None:
    rows = [f'"Number {i}, a ""good"" one."\tgood\nNumber {i} was bad.\tbad' for i in range(12)]
    file = write(tmp_path / "rows.tsv", ["text\tlabel", *rows])
    wanted = "cells of column 'text' are in quotes"
    (line,) = [line for line in describe(firth.check(file, task="classify")) if wanted in line]
    assert line.strip().startswith("Warning: worth a look: row 2:")
    firth.finetune(run, task="classify", train=file, out=tmp_path / "tuned", changes=["epochs=1"], device="cpu")
    assert wanted in messages()
    assert len(firth.load(tmp_path / "tuned").predict_file(file)) == 24
    assert f"Warning: {file}, row 2: {wanted}" in messages()
