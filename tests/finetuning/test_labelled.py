"""Held-out rows share nothing with the training rows; files of inputs are read as the task reads them."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firth.checkpoint import Checkpoint, make_head
from firth.encoders.bert import Bert
from firth.errors import BadInput
from firth.finetuning import labelled
from firth.finetuning.labelled import Labelled
from firth.inference.inputs_file import read_inputs
from firth.tasks import resolve
from firth.tasks.tag import TagConfig
from firth.tokenizers.wordpiece import WordPiece


def answer_row(question: int, passage: int) -> dict[str, Any]:
    answers = [{"text": "Ann", "answer_start": 0}]
    return {"question": f"Who is {question}?", "context": f"Ann is {passage}.", "answers": answers}


def choose_row(question: int, context: int) -> dict[str, Any]:
    options = [f"one {question}", f"two {question}"]
    return {"context": f"Talk {context}.", "question": f"Which {question}?", "options": options, "label": 0}


def held_out(path: Path, task: str, rows: list[dict[str, Any]]) -> Labelled:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = labelled.read(task, resolve(task).Config(), {"train": path})
    return labelled.hold_out(task, read, rate=0.2, seed=1)


@pytest.mark.parametrize(("task", "make", "place"), [("answer", answer_row, 1), ("choose", choose_row, 0)])
def test_a_passage_is_either_held_out_or_learned(
    tmp_path: Path, task: str, make: Callable[[int, int], dict[str, Any]], place: int
) -> None:
    path = tmp_path / "rows.jsonl"
    data = held_out(path, task, [make(i, i % 5) for i in range(20)])
    passages = {part: {row.texts[place] for row in rows} for part, rows in data.examples.items()}
    assert len(data.examples["dev"]) == 4
    assert len(passages["dev"]) == 1
    assert not passages["dev"] & passages["train"]
    with pytest.raises(BadInput, match=r"^Only 8 training rows on 1 different texts or passages: too few .* `dev=`"):
        held_out(path, task, [make(i, 0) for i in range(8)])


def test_a_row_with_an_empty_label_is_named_before_the_label_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("text\tlabel\nlove it\tpos\nhate it\t\nok\tpos\n")
    says = r"rows\.tsv, row 3: the label is empty; correct or remove the row\. Without bad rows: all rows have the same"
    with pytest.raises(BadInput, match=says):
        labelled.read("classify", resolve("classify").Config(), {"train": path})
    path.write_text("text\tlabel\nlove it\tpos\nok\tpos\n")
    with pytest.raises(BadInput, match=r"rows\.tsv: all rows have the same label \(pos\), so there is nothing"):
        labelled.read("classify", resolve("classify").Config(), {"train": path})


@pytest.fixture
def checkpoint(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> Callable[..., Checkpoint]:
    def build(name: str, labels: dict[str, tuple[str, ...]], **config: Any) -> Checkpoint:
        encoder = small_bert()
        task = make_head(name, resolve(name).Config(**config), encoder, labels=labels)
        return Checkpoint(encoder, {}, tokenizer, tasks={name: task})

    return build


def test_a_text_that_fills_half_the_file_is_not_held_out(tmp_path: Path) -> None:
    for seed in range(5):
        rows = [{"text": "again" if i < 12 else f"row {i}", "label": str(i % 2)} for i in range(24)]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        read = labelled.read("classify", resolve("classify").Config(), {"train": tmp_path / "rows.jsonl"})
        parts = labelled.hold_out("classify", read, rate=0.1, seed=seed).examples
        assert len(parts["dev"]) == 2
        assert sum(row.texts == ("again",) for row in parts["train"]) == 12


def test_inputs_are_read_as_the_task_reads_them(checkpoint: Callable[..., Checkpoint], tmp_path: Path) -> None:
    tagger = checkpoint("tag", {"tag": ("B-X", "I-X", "O")}, scheme="BIO")
    columns = tmp_path / "words.conll"
    columns.write_text("Ann B-X\nruns O\n\nBo B-X\n")
    assert [row.texts for row in read_inputs(tagger, columns)] == [("Ann runs",), ("Bo",)]
    lines = tmp_path / "lines.txt"
    lines.write_text("Ann runs\nBo\n")
    assert [row.texts for row in read_inputs(tagger, lines)] == [("Ann runs",), ("Bo",)]
    classifier = checkpoint("classify", {"label": ("a", "b")})
    table = tmp_path / "rows.tsv.gz"
    table.write_bytes(gzip.compress(b"text\tlabel\nAnn runs\ta\n"))
    assert [row.texts for row in read_inputs(classifier, table)] == [("Ann runs",)]


def test_a_file_without_usable_rows_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    for text, says in (
        ("text\tlabel\n", r"can be used: nothing follows its header; give it one example a row\."),
        (
            "text\tlabel\nonly\na\tb\tc\n",
            r"row 2: the number of columns is 1, not 2; correct .* \(2 bad rows in all\)\.",
        ),
    ):
        path.write_text(text)
        with pytest.raises(BadInput, match=says):
            labelled.read("classify", resolve("classify").Config(), {"train": path})


def test_inputs_with_a_strange_column_are_read_with_the_option_that_the_error_names(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"txt": "a day"}\n')
    model = checkpoint("classify", {"label": ("a", "b")})
    with pytest.raises(BadInput, match=r"name it with `text_column=`.*the first row has txt"):
        read_inputs(model, path)
    [example] = read_inputs(model, path, columns={"text_column": "txt"})
    assert example.texts == ("a day",)


def test_a_text_column_found_beside_the_label_is_remembered(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("label,review\ngood,A day.\nbad,A night.\n")
    data = labelled.read("classify", resolve("classify").Config(), {"train": path})
    assert [row.texts for row in data.examples["train"]] == [("A day.",), ("A night.",)]
    assert data.config.text_column == "review"
    model = checkpoint("classify", dict(data.labels), text_column=data.config.text_column)
    path.write_text("review\nA river.\n")
    assert [row.texts for row in read_inputs(model, path)] == [("A river.",)]
    path.write_text("label,sentence\ngood,A day.\nbad,A night.\n")
    known = labelled.read("classify", resolve("classify").Config(), {"train": path})
    assert known.config.text_column == ""  # a well-known name: files may use another one


def test_rows_that_a_trained_model_cannot_use_are_told_by_what_is_wrong_with_them(tmp_path: Path) -> None:
    train = tmp_path / "train.conll"
    train.write_text("Anna B-PER\nBerg I-PER\nsings O\n", "utf-8")
    data = labelled.read("tag", TagConfig(), {"train": train})
    rows = tmp_path / "rows.conll"
    for text, said in {
        "Anna B-LOC\nsings O\n": r"has an answer that tagger knows \(row 1: the tag 'B-LOC' never occurs",
        "Anna I-PER\nsings O\n": r"can be used: row 1: word 1: I-PER after the start is illegal.*repair=true",
    }.items():
        rows.write_text(text, "utf-8")
        with pytest.raises(BadInput, match=said):
            labelled.read("tag", data.config, {"data": rows}, labels=data.labels, model="tagger")
