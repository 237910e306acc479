"""Files of questions and passages -> examples: SQuAD's JSON, CMRC's of the same form, and JSON lines.

In: `{"data": [{"paragraphs": [{"context", "qas": [{"question", "answers": [{"text", "answer_start"}]}]}]}]}`, or a row
for each question with the same names. Out: questions counted from 1, each with its passage, the texts of its answers
and their places. An answer that is not at its offset is reported with its question.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from firth.errors import BadInput
from firth.tasks.table_files import MAX_ROW, as_texts, read_rows, read_text
from firth.types import Example, Problem

PASSAGES = ("context", "passage", "text")
"""The names that files give the passage."""
GivenAnswer = tuple[str, int | None]
"""An answer's text, and where the file says it begins."""


@dataclass(frozen=True)
class Question(Example):
    """`texts` are question and passage, gold the texts of the answers: none where there is no answer."""

    starts: tuple[int, ...] = ()
    """Where each answer begins in the passage; -1 if the file is wrong about it."""


def read(path: Path, problems: list[Problem], *, labelled: bool) -> list[Question]:
    examples = []
    for row, value in _rows(path):
        made = value if isinstance(value, Problem) else _question(row, value, labelled=labelled)
        if isinstance(made, Problem):
            problems.append(made)
        else:
            examples.append(made)
    return examples


def _rows(path: Path) -> Iterable[tuple[int, object]]:
    """Each question with its number."""
    # The ending before a compressed file's, such as .jsonl.gz, counts too.
    if ".jsonl" in path.suffixes[-2:]:
        return read_rows(path).lines
    return enumerate(_questions(path), 1)


def question(value: object) -> Question:
    """A question with its passage, as a pair or a row with names."""
    pair = value
    if isinstance(value, Mapping):
        pair = (value.get("question"), _passage(value))
    texts = as_texts(pair)
    if texts is None or len(texts) != 2:
        raise BadInput(
            f"An input must be a question and its passage; it is {value!r:.80}. Give both texts, or rows by `file=` "
            "with the fields question and context."
        )
    return Question(texts)


def _questions(path: Path) -> Iterator[object]:
    """Each question of a JSON file, with its passage put into it."""
    text = read_text(path)
    if not text.strip():
        raise BadInput(f"{path} is empty; give it questions as SQuAD does.")
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(
            f"{path} is not valid JSON ({error}); questions are a .json file as SQuAD's, or a .jsonl file with "
            "question, context and answers on each line."
        ) from None
    if isinstance(whole, list):
        yield from whole
        return
    if not isinstance(whole, dict) or not isinstance(whole.get("data"), list):
        raise BadInput(
            f"{path} has no list 'data' as SQuAD's files do; name the file .jsonl if each line is a question."
        )
    for place, article in enumerate(whole["data"], 1):
        try:
            for paragraph in article["paragraphs"]:
                for asked in paragraph["qas"]:
                    yield {**asked, "context": paragraph["context"]}
        except (KeyError, TypeError):
            raise BadInput(
                f"{path}: article {place} is not of SQuAD's form (paragraphs with a context and qas); correct it."
            ) from None


def _question(row: int, found: object, *, labelled: bool) -> Question | Problem:
    """A row of a file as a question, or what is wrong with it."""
    if not isinstance(found, Mapping):
        return Problem(row, "not a JSON object", "write the question, its context and its answers")
    asked = _checked(row, "question", found.get("question"))
    if isinstance(asked, Problem):
        return asked
    passage = _checked(row, "passage", _passage(found))
    if isinstance(passage, Problem):
        return passage
    if not labelled:
        # The gold of an unlabelled row is None; that of a question without answer is an empty tuple.
        return Question((asked, passage), None, row)
    if found.get("is_impossible") is True:
        return Question((asked, passage), (), row)
    answers = _answers(found.get("answers"))
    if answers is None:
        return Problem(row, "its answers are not texts with an answer_start", "correct or remove the question")
    if not answers and found.get("is_impossible") is False:
        return Problem(row, "no answer, though not marked as impossible", "add the answer or is_impossible")
    return _placed(row, asked, passage, answers)


def _checked(row: int, name: str, text: object) -> str | Problem:
    """A question or a passage, or what is wrong with it."""
    if not isinstance(text, str) or not text.strip():
        what = f"an empty {name}" if text == "" else f"no {name}"
        return Problem(row, what, "fill it in or remove the question")
    if len(text) > MAX_ROW:
        return Problem(row, f"a {name} of {len(text):,} characters", "split it")
    return text


def _placed(row: int, asked: str, passage: str, answers: list[GivenAnswer]) -> Question | Problem:
    """The question with the places of its answers; at least one must be right."""
    texts = []
    starts = []
    for text, start in answers:
        if start is None:
            # Without an offset the first occurrence counts.
            start = passage.find(text)
        is_there = start >= 0 and passage[start : start + len(text)] == text
        if not is_there:
            start = -1
        texts.append(text)
        starts.append(start)
    if answers and max(starts) < 0:
        text, start = answers[0]
        where = f"is not at its answer_start {start}" if text in passage else "is not in its passage"
        return Problem(row, f"the answer '{text:.40}' {where}", "correct or remove the question")
    return Question((asked, passage), tuple(texts), row, tuple(starts))


def _answers(found: object) -> list[GivenAnswer] | None:
    """Texts and offsets, from a list of both or from two lists; None if they are neither."""
    if isinstance(found, Mapping) and isinstance(found.get("text"), list):
        texts = found["text"]
        starts = found.get("answer_start") or [None] * len(texts)
        if not isinstance(starts, list) or len(starts) != len(texts):
            return None
        found = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    if not isinstance(found, list):
        return None
    answers: list[GivenAnswer] = []
    for answer in found:
        text: object = None
        start: object = None
        if isinstance(answer, str):
            text = answer
        elif isinstance(answer, Mapping):
            text = answer.get("text")
            start = answer.get("answer_start")
        if not isinstance(text, str) or not text.strip() or not isinstance(start, int | None):
            return None
        answers.append((text, start))
    return answers


def _passage(found: Mapping[str, object]) -> object:
    for name in PASSAGES:
        if name in found:
            return found[name]
    return None
