"""Answering: SQuAD's files, windows, legal spans, places in the passage, no answer, figures by language."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth import metrics, samples
from firth.checkpoint import make_head
from firth.encoders.bert import Bert
from firth.errors import BadConfig, BadInput
from firth.finetuning import labelled
from firth.tasks import scorer_of
from firth.tasks.answer import AnswerConfig, Answered, AnswerHead, AnswerReader
from firth.tasks.answer_spans import best_spans
from firth.tasks.predicting import predict
from firth.tasks.squad import Question
from firth.tokenizers.wordpiece import WordPiece
from firth.types import Example, Prediction, Problem, Span

PASSAGE = "The old mill stands by the river Tay. It was built in 1820, and the miller's name was Ann."
LONG = " ".join(f"On day {i} the boats went down to the sea." for i in range(40))
Make = Callable[..., tuple[AnswerHead, Bert]]


def ask(question: str, answer: str | None, passage: str = PASSAGE, row: int = 1) -> Question:
    gold, starts = ((), ()) if answer is None else ((answer,), (passage.index(answer),))
    return Question((question, passage), gold, row, starts)


ROWS = [ask("Where is the mill?", "by the river Tay"), ask("When was it built?", "1820"), ask("Who ate it?", None)]


@pytest.fixture
def make(small_bert: Callable[..., Bert]) -> Make:
    def build(examples: list[Question] = ROWS, **config: Any) -> tuple[AnswerHead, Bert]:
        encoder = small_bert()
        task = make_head("answer", AnswerReader(AnswerConfig(**config)).learn(examples), encoder, labels={})
        assert isinstance(task, AnswerHead)
        torch.nn.init.normal_(task.head.weight)
        return task, encoder

    return build


def squad(path: Path, *qas: dict[str, Any], context: Any = PASSAGE) -> Path:
    path.write_text(json.dumps({"version": "2.0", "data": [{"paragraphs": [{"context": context, "qas": qas}]}]}))
    return path


def read(path: Path, *, labelled: bool = True) -> tuple[list[Question], list[Problem]]:
    problems: list[Problem] = []
    return AnswerReader(AnswerConfig()).read(path, problems, labelled=labelled), problems


def test_squad_files_become_questions_and_wrong_rows_are_told(tmp_path: Path) -> None:
    mill = [{"text": "1820", "answer_start": PASSAGE.index("1820")}, {"text": "in 1820", "answer_start": 3}]
    rows, problems = read(
        squad(
            tmp_path / "q.json",
            {"id": "a", "question": "When?", "answers": mill},
            {"question": "Why?", "answers": [], "is_impossible": True},
            {"question": "Where?", "answers": [{"text": "river", "answer_start": 4}]},
            {"question": "Who?", "answers": [{"text": "Bob", "answer_start": 0}]},
            {"question": "Name?", "answers": [{"text": "Ann"}]},
            {"question": " ", "answers": []},
            {"question": "How?", "answers": [], "is_impossible": False},
            {"question": "What?", "answers": [{"text": 7, "answer_start": 0}]},
        )
    )
    assert [(row.row, row.gold) for row in rows] == [(1, ("1820", "in 1820")), (2, ()), (5, ("Ann",))]
    assert rows[0].starts == (PASSAGE.index("1820"), -1)
    assert rows[2].starts == (PASSAGE.index("Ann"),)
    assert {p.row: p.what for p in problems} == {
        3: "the answer 'river' is not at its answer_start 4",
        4: "the answer 'Bob' is not in its passage",
        6: "no question",
        7: "no answer, though not marked as impossible",
        8: "its answers are not texts with an answer_start",
    }
    config = AnswerReader(AnswerConfig()).learn(rows)
    looks = list(AnswerReader(config).problems(rows, {}))
    assert [(p.row, p.bad) for p in looks] == [(1, False)]
    assert "1 of 2 answers" in looks[0].what


def test_rows_of_json_may_have_two_lists_and_need_no_answers_for_prediction(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    rows = [
        {"question": "When?", "context": PASSAGE, "answers": {"text": ["1820"], "answer_start": [54]}},
        {"question": "Who?", "passage": PASSAGE, "answers": ["Ann"]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n{broken")
    found, problems = read(path)
    assert [row.starts for row in found] == [(PASSAGE.index("1820"),), (PASSAGE.index("Ann"),)]
    assert [p.row for p in problems] == [3]
    path.write_text(json.dumps({"question": "When?", "context": PASSAGE}))
    assert read(path, labelled=False)[0][0].gold is None
    assert read(path)[1][0].row == 1


@pytest.mark.parametrize("starts", [54, [54], [54, 3, 7]])
def test_two_lists_of_different_lengths_are_a_bad_row(starts: object, tmp_path: Path) -> None:
    row = {"question": "When?", "context": PASSAGE, "answers": {"text": ["1820", "in 1820"], "answer_start": starts}}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n", "utf-8")
    found, problems = read(path)
    assert found == []
    assert [problem.what for problem in problems] == ["its answers are not texts with an answer_start"]


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "is empty"), ("{", "not valid JSON"), ('{"rows": []}', "no list 'data'"), ('{"data": [{}]}', "article 1")],
)
def test_files_of_another_form_are_refused(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=says):
        read(path)


def test_the_rows_tell_the_rules_and_whether_questions_may_be_unanswerable() -> None:
    english, chinese = (
        labelled.read("answer", AnswerConfig(), {"train": samples.labelled("answers", language)})
        for language in ("en", "zh")
    )
    assert (english.config.rules, english.config.unanswerable, english.config.max_answer) == ("squad", "yes", 30)
    assert (chinese.config.rules, chinese.config.max_answer) == ("cmrc", 64)
    assert AnswerReader(AnswerConfig()).learn(ROWS[:2]).unanswerable == "no"
    unseen = list(AnswerReader(AnswerReader(AnswerConfig()).learn(ROWS[:2])).problems(ROWS, {}))
    assert [p.bad for p in unseen] == [True]
    assert AnswerReader(AnswerConfig()).balance(ROWS) == {"question": {"answered": 2, "without answer": 1}}
    with pytest.raises(BadConfig, match="num_candidates"):
        AnswerConfig(num_candidates=0)


def test_gold_tokens_cover_the_answer_and_windows_the_passage(make: Make, tokenizer: WordPiece) -> None:
    task, _ = make()
    row = ask("When did the boats go?", "day 20 the boats", LONG)
    (item,) = task.encode([row], tokenizer, max_length=64, training=True)
    tokens = tokenizer.encode(LONG)
    asked = len(tokenizer.encode(row.texts[0]))
    assert item.cut == 0
    covered = {w.start + i: t for w in item.windows for i, t in enumerate(w.ids[asked + 2 : -1])}
    assert [covered[i] for i in range(len(tokens))] == tokens.ids.tolist()
    holding = [w for w in item.windows if w.facts.answer_first]
    assert 0 < len(holding) < len(item.windows)
    for w in holding:
        first, last, cls_row, start, end = w.facts
        assert cls_row == 0
        assert first <= start <= end < last == len(w.ids) - 1
        places = tokens.offsets[[w.start + start - first, w.start + end - first]]
        assert LONG[places[0][0] : places[1][1]] == "day 20 the boats"
        assert w.segments[start] == 1
    batch = task.batch([item])
    assert task.counts(batch) == {"answer": len(item.windows)}
    assert batch.targets["spans_B2"].tolist() == [list(w.facts[3:]) for w in item.windows]


def test_a_long_question_is_cut_and_the_cut_is_counted(make: Make, tokenizer: WordPiece) -> None:
    task, _ = make(max_question=8)
    (item,) = task.encode([ask("why " * 50, "1820")], tokenizer, max_length=64, training=False)
    assert item.cut == len(tokenizer.encode("why " * 50)) - 8
    assert item.windows[0].facts[0] == 10


def test_the_loss_is_that_of_two_softmaxes_over_passage_and_first_token(make: Make, tokenizer: WordPiece) -> None:
    task, encoder = make()
    items = task.encode(ROWS, tokenizer, max_length=64, training=True)
    batch = task.batch(items)
    total = float(task.loss(encoder(batch), batch).sums["answer"].detach())
    with torch.no_grad():
        scores = task.outputs(encoder(batch), batch)
    expected = 0.0
    for (first, _, _, *rows), scores_L2 in zip((w.facts for i in items for w in i.windows), scores, strict=True):
        legal = np.concatenate([scores_L2[:1], scores_L2[first:-1]])
        for side, row in enumerate(rows):
            logs = legal[:, side] - np.logaddexp.reduce(legal[:, side])
            expected -= logs[row - first + 1 if row else 0] / 2
    assert total == pytest.approx(expected, rel=1e-4)


def test_best_spans_equal_brute_force() -> None:
    scores = np.random.default_rng(3).normal(size=(9, 2)).astype(np.float32)
    every = {(a, b): scores[a, 0] + scores[b, 1] for a in range(9) for b in range(a, min(9, a + 4))}
    found = {(a, b): score for a, b, score in best_spans(scores, 4)}
    assert len(found) == 20
    assert found == pytest.approx(dict(sorted(every.items(), key=lambda pair: -pair[1])[:20]))
    assert list(best_spans(scores[:0], 4)) == []
    assert [(a, b) for a, b, _ in best_spans(scores[:1], 4)] == [(0, 0)]


def test_windows_are_merged_and_answers_slice_the_passage(make: Make, tokenizer: WordPiece) -> None:
    task, encoder = make(unanswerable="no")
    texts = [LONG, PASSAGE, "大熊猫主要吃竹子，每天要吃十几公斤。Émile 也吃。", "\u200d"]
    rows = [Question(("where?", text)) for text in texts]
    items = task.encode(rows, tokenizer, max_length=64, training=False)
    found = predict(encoder, task, items)
    for text, prediction in zip(texts[:3], found, strict=False):
        assert isinstance(prediction, Answered)
        (span,) = prediction.spans
        assert text[span.start : span.end] == span.text == prediction.label
        assert prediction.probability == span.probability == max(s.probability for s in prediction.candidates)
        assert all(text[s.start : s.end] == s.text for s in prediction.candidates)
        assert prediction.nothing == 0
    assert (found[3].label, found[3].spans) == ("", ())
    each = [predict(encoder, task, [replace(items[0], windows=(w,))])[0] for w in items[0].windows]
    known = {(s.start, s.end) for p in each if isinstance(p, Answered) for s in p.candidates}
    places = [(s.start, s.end) for s in found[0].candidates]  # type: ignore[attr-defined]
    assert len(items[0].windows) > 3
    assert len({*places}) == 5
    assert known > {*places}


def test_the_threshold_decides_between_answer_and_nothing(make: Make) -> None:
    task, _ = make()
    assert task.config.unanswerable == "yes"

    def guess(text: str, doubt: float) -> Answered:
        return task._with_label(Answered("", candidates=(Span("answer", 0, 4, text, 0.7),), nothing=0.3, doubt=doubt))

    assert guess("1820", 0.5).label == ""
    assert guess("1820", 0.5).probability == 0.3
    assert guess("1820", -0.5).spans[0].text == "1820"
    predictions: list[Prediction] = [guess("river Tay", 1.0), guess("1820", 2.0), guess("Ann", 3.0)]
    before = scorer_of(task).score(predictions, ROWS)
    assert (before["em"], before["no_em"], before["has_em"]) == (pytest.approx(1 / 3), 1, 0)
    tuned = task.tune(predictions, ROWS)
    assert task.config.threshold == 2.0
    assert [p.label for p in tuned] == ["river Tay", "1820", ""]
    figures = scorer_of(task).score(tuned, ROWS)
    assert figures["em"] == pytest.approx(2 / 3)
    assert figures["f1"] == pytest.approx((metrics.squad([["by the river Tay"]], ["river Tay"])["f1"] + 2) / 3)


def test_figures_follow_the_language_and_the_best_gold(make: Make) -> None:
    task, _ = make(rules="cmrc")
    rows = [Example(("问", "文"), ("一百多克",)), Example(("问", "文"), ())]
    assert scorer_of(task).score([Prediction("一百多克。"), Prediction("")], rows)["em"] == 1.0
    half = scorer_of(task).score([Prediction("一百"), Prediction("竹子")], rows)
    assert half["has_f1"] == pytest.approx(2 / 3)
    assert half["no_f1"] == 0
    english = scorer_of(make()[0])
    row = Example(("q", "p"), ("the river Tay", "Tay"))
    assert english.score([Prediction("a Tay!")], [row]) == {"em": 1.0, "f1": 1.0}
    assert english.error(Prediction("Tay"), row) == 0
    assert english.error(Prediction("mill", 0.9), row) == pytest.approx(0.9)
    assert english.baseline([*ROWS, ROWS[2]], [row])[0].label == ""


def test_inputs_are_pairs_or_rows() -> None:
    config = AnswerConfig()
    assert AnswerReader(config).example(["When?", PASSAGE]).texts == ("When?", PASSAGE)
    assert AnswerReader(config).example({"question": "When?", "context": PASSAGE}).texts == ("When?", PASSAGE)
    for wrong in ("When?", ["a"], {"question": "When?"}, 3):
        with pytest.raises(BadInput, match="a question and its passage"):
            AnswerReader(config).example(wrong)
