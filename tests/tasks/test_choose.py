"""Choosing: the forms of files, one sequence an option, long contexts, a softmax over each example's own options."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth.checkpoint import make_head
from firth.encoders.bert import Bert
from firth.errors import BadInput
from firth.tasks import scorer_of
from firth.tasks.choose import ChooseConfig, ChooseHead, ChooseReader
from firth.tasks.options import MultipleChoice
from firth.tasks.predicting import predict
from firth.tokenizers.wordpiece import WordPiece
from firth.types import Prediction, Problem

SWAG = """,video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label
0,a,1,x,"Tom sits, then",He,gold,stands up.,sings.,"eats, twice.",sleeps.,2
1,b,2,x,Ann runs.,She,gold,stops.,,falls.,rests.,0
2,c,3,x,Eve reads.,She,gold,stops.,falls.,rests.,,1
3,d,4,x,Eve reads.,She,gold,stops.,falls.,rests.,,7
"""
DREAM = [
    [["M: Is it late?", "W: Yes."], [{"question": "Is it?", "choice": ["Late.", "Early."], "answer": "Late."}], "1"],
    [["M: Tea?", "W: No."], [{"question": "What?", "choice": ["Tea", "Nuts", "No"], "answer": "No"}] * 2, "2"],
]
ROWS = [
    MultipleChoice(("The sea is", "wet", "a lamp", "made of wood"), "wet", 1, "clearly"),
    MultipleChoice(("Birds", "sing", "read"), "read", 2),
]
Make = Callable[..., tuple[ChooseHead, Bert]]


@pytest.fixture
def make(small_bert: Callable[..., Bert]) -> Make:
    def build(**config: Any) -> tuple[ChooseHead, Bert]:
        encoder = small_bert()
        task = make_head("choose", ChooseConfig(**{"dropout": 0.0, **config}), encoder, labels={})
        assert isinstance(task, ChooseHead)
        return task, encoder

    return build


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., tuple[list[MultipleChoice], list[Problem]]]:
    def call(name: str, text: str, *, labelled: bool = True) -> tuple[list[MultipleChoice], list[Problem]]:
        path, problems = tmp_path / name, list[Problem]()
        path.write_text(text)
        return ChooseReader(ChooseConfig()).read(path, problems, labelled=labelled), problems

    return call


def test_swag_as_published(read: Callable[..., Any]) -> None:
    rows, problems = read("swag.csv", SWAG)
    assert rows[0].texts == ("Tom sits, then", "stands up.", "sings.", "eats, twice.", "sleeps.")
    assert (rows[0].gold, rows[0].stem, rows[0].row) == ("eats, twice.", "He", 2)
    assert rows[0].endings[0] == "He stands up."
    assert (rows[1].gold, len(rows[1].texts)) == ("falls.", 4)
    assert [(p.row, p.what) for p in problems] == [
        (3, "an empty option"),
        (5, "the label '7' is none of the options"),
    ]


def test_dream_and_codah_as_published(read: Callable[..., Any]) -> None:
    rows, problems = read("dream.json", json.dumps(DREAM))
    assert [row.row for row in rows] == [1, 2, 3]
    assert rows[0] == MultipleChoice(("M: Is it late?\nW: Yes.", "Late.", "Early."), "Late.", 1, "Is it?")
    assert rows[2].gold == "No"
    rows, more = read("codah.tsv", "o\tI am\tglad.\t sad.\told.\tnew.\t3\nq\tYou\ta\tb\tc\td\t0\nbroken\trow\n")
    assert rows[0] == MultipleChoice(("I am", "glad.", "sad.", "old.", "new."), "new.", 1)
    assert [row.gold for row in rows] == ["new.", "a"]
    assert not problems
    assert [p.row for p in more] == [3]


def test_json_rows_name_the_right_option_by_text_letter_or_place(read: Callable[..., Any]) -> None:
    base = {"context": "C", "question": "Q", "options": ["one", "two"]}
    labels = [0, "1", "B", "two", "2", 2, None]
    rows, problems = read("rows.jsonl", "\n".join(json.dumps({**base, "answer": label}) for label in labels))
    assert [row.gold for row in rows] == ["one", "two", "two", "two"]
    assert [p.row for p in problems] == [5, 6, 7]
    numbers, _ = read("n.jsonl", json.dumps({"question": "Q", "choices": ["1", "0"], "label": "1"}))
    assert (numbers[0].gold, numbers[0].texts[0], numbers[0].stem) == ("1", "Q", "")
    unlabelled, _ = read("u.jsonl", json.dumps(base), labelled=False)
    assert unlabelled[0].gold is None
    wrong = [{"context": "C", "options": ["one"]}, {"options": ["a", "b"]}, {"context": 3, "options": ["a", "b"]}]
    rows, problems = read("w.jsonl", "\n".join(map(json.dumps, wrong)))
    assert not rows
    assert len(problems) == 3


def test_other_files_are_refused(read: Callable[..., Any]) -> None:
    with pytest.raises(BadInput, match="has no options"):
        read("x.csv", "text,label\na,b\n")
    with pytest.raises(BadInput, match="DREAM's form"):
        read("x.json", '[["a", 3, "b"]]')


def test_each_option_is_a_sequence_after_the_same_context(make: Make, tokenizer: WordPiece) -> None:
    task, _ = make()
    first, second = task.encode(ROWS, tokenizer, max_length=64, training=True)
    assert (len(first.windows), len(second.windows)) == (3, 2)
    vocab = tokenizer.vocab
    expected = [
        vocab.cls,
        *tokenizer.encode("The sea is").ids,
        vocab.sep,
        *tokenizer.encode("clearly wet").ids,
        vocab.sep,
    ]
    assert first.windows[0].ids.tolist() == expected
    assert first.cut == second.cut == 0


def test_a_long_context_is_read_in_windows_for_every_option(make: Make, tokenizer: WordPiece) -> None:
    task, encoder = make()
    long = MultipleChoice(("the boats went down to the sea " * 20, "wet " * 10, "dry"), "dry", 3)
    (item,) = task.encode([long], tokenizer, max_length=64, training=False)
    (shorter,) = task.encode([long], tokenizer, max_length=64, training=True)
    assert item.cut == 0
    assert shorter.cut > 0
    assert len(shorter.windows) == 4
    count = len(item.windows) // 2
    assert [w.start for w in item.windows[:count]] == [w.start for w in item.windows[count:]]
    batch = task.batch([*task.encode(ROWS, tokenizer, max_length=64, training=True), shorter])
    assert task.counts(batch) == {"choose": 3}
    assert batch.targets["options_B"].tolist() == [0, 1, 2, 3, 4, 5, 5, 6, 6]
    with torch.no_grad():
        scores = task.outputs(encoder(batch), batch)
    means = np.array(scores[5:]).reshape(2, 2).mean(1)
    found = predict(encoder, task, [shorter])[0].probabilities
    assert found["dry"] == pytest.approx(1 / (1 + np.exp(means[0] - means[1])), abs=1e-5)


def test_the_loss_is_a_softmax_over_the_options_of_each_example(make: Make, tokenizer: WordPiece) -> None:
    task, encoder = make(pooling="mean")
    items = task.encode(ROWS, tokenizer, max_length=64, training=True)
    found = predict(encoder, task, items)
    assert [len(p.probabilities) for p in found] == [3, 2]
    assert all(sum(p.probabilities.values()) == pytest.approx(1) for p in found)
    assert all(p.probabilities[p.label] == p.probability == max(p.probabilities.values()) for p in found)
    expected = -sum(np.log(p.probabilities[row.gold]) for p, row in zip(found, ROWS, strict=True))
    batch = task.batch(items)
    assert float(task.loss(encoder(batch), batch).sums["choose"].detach()) == pytest.approx(expected, abs=1e-5)


def test_figures_balance_and_baseline(make: Make) -> None:
    task, _ = make()
    assert scorer_of(task).score([Prediction("wet"), Prediction("sing")], ROWS) == {"accuracy": 0.5}
    assert ChooseReader(task.config).balance(ROWS) == {"right one": {"option 1": 1, "option 2": 1}}
    assert [p.label for p in scorer_of(task).baseline([ROWS[1]], ROWS)] == ["a lamp", "read"]
    assert scorer_of(task).error(Prediction("sing", 0.8), ROWS[1]) == 0.8


def test_inputs_are_lists_or_rows() -> None:
    config = ChooseConfig()
    assert ChooseReader(config).example(["The sea is", "wet", "dry"]).texts == ("The sea is", "wet", "dry")
    row = ChooseReader(config).example({"context": "C", "question": "Q", "options": ["a", "b"]})
    assert row == MultipleChoice(("C", "a", "b"), None, 0, "Q")
    for wrong in ("text", ["only", "one"], {"context": "C"}, []):
        with pytest.raises(BadInput, match="at least two options"):
            ChooseReader(config).example(wrong)
