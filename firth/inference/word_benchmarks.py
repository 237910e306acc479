"""Benchmarks of word vectors: similarity of word pairs (Spearman's correlation with people's scores) and analogies.

In: files of `word word number` (WordSim, SimLex, MEN, RareWords and similar) or of four words a line, with `: name`
lines before each section (Google's analogies, CA8). Out: metrics over the questions that the model can answer, and the
share of such questions (coverage).
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np

from firth import metrics
from firth.corpus.small_files import read_lines
from firth.errors import BadInput
from firth.inference.lexicon import Lexicon

_BATCH_QUESTIONS = 256
_REMEDY = "put two words and a number, or the four words of an analogy, on each line"

NumberedLines = list[tuple[int, str]]
"""Lines with their numbers in the file."""


@dataclass(frozen=True)
class ScoredPair:
    """Two words and how similar people find them."""

    first: str
    second: str
    score: float


@dataclass(frozen=True)
class Analogy:
    """A question: a is to b as c is to which word?"""

    a: str
    b: str
    c: str
    answer: str


@dataclass(frozen=True)
class SimilarityResult:
    """How well cosines agree with people's scores of word pairs."""

    spearman: float
    pairs: int
    coverage: float


@dataclass(frozen=True)
class SectionResult:
    """The analogies of one section."""

    accuracy: float
    """NaN if the model cannot answer any question."""
    questions: int
    coverage: float


@dataclass(frozen=True)
class AnalogyResult:
    """The analogies of all sections together, and of each."""

    accuracy: float
    questions: int
    coverage: float
    sections: dict[str, SectionResult]


def evaluate_word_file(lexicon: Lexicon, path: Path) -> SimilarityResult | AnalogyResult:
    """A file's metrics. Its kind is found by the lines after the first, which may name the columns."""
    lines: NumberedLines = []
    for number, line in enumerate(read_lines(path, remedy=_REMEDY), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            lines.append((number, stripped))
    if not lines:
        raise BadInput(f"{path} has no questions; {_REMEDY}.")
    # The first line may be a header, unless it is the only one.
    data_lines = lines[1:] or lines
    rows = [_fields(line) for _, line in data_lines]
    score_columns = Counter(_score_column(row) for row in rows)
    [(column, _)] = score_columns.most_common(1)
    _, first_line = lines[0]
    # Rows without a score are analogies.
    has_four_words = not column and len(rows[0]) == 4
    if first_line.startswith(":") or has_four_words:
        return evaluate_analogies(lexicon, _read_sections(path, lines), path)
    return evaluate_similarity(lexicon, _read_pairs(path, lines), path)


def evaluate_similarity(lexicon: Lexicon, pairs: Sequence[ScoredPair], path: Path) -> SimilarityResult:
    """The rank correlation of cosines with people's scores, over the pairs whose words the model knows."""
    known = []
    for pair in pairs:
        if lexicon.knows(pair.first) and lexicon.knows(pair.second):
            known.append(pair)
    if len(known) < 2:
        raise BadInput(
            f"{path}: the model knows both words of {len(known)} of {len(pairs)} pairs, and a rank correlation needs "
            "two; take a file with words of the model's language and case."
        )
    scores = [pair.score for pair in known]
    cosines = [lexicon.similarity(pair.first, pair.second) for pair in known]
    # Equal values have no ranks to correlate.
    for values, giver in ((scores, "people give"), (cosines, "the model gives")):
        if len(set(values)) < 2:
            raise BadInput(
                f"{path}: {giver} all {len(known)} known pairs one number, so they have no order; add pairs."
            )
    correlation = metrics.spearman(scores, cosines)
    coverage = len(known) / len(pairs)
    return SimilarityResult(spearman=correlation, pairs=len(pairs), coverage=coverage)


def evaluate_analogies(lexicon: Lexicon, sections: Mapping[str, Sequence[Analogy]], path: Path) -> AnalogyResult:
    """Accuracy of b - a + c by section and over all; the words of a question are never its answer."""
    results = {}
    total_questions = 0
    total_known = 0
    total_correct = 0
    for name, questions in sections.items():
        known = [question for question in questions if _can_answer(lexicon, question)]
        correct = _count_correct(lexicon, known)
        # A section without known questions has no accuracy, but counts towards the coverage.
        accuracy = float("nan")
        if known:
            accuracy = correct / len(known)
        coverage = len(known) / len(questions)
        results[name] = SectionResult(accuracy=accuracy, questions=len(questions), coverage=coverage)
        total_questions += len(questions)
        total_known += len(known)
        total_correct += correct
    if not total_known:
        raise BadInput(
            f"{path}: the model knows all four words of none of its {total_questions} analogies; take a file with "
            "words of the model's language and case."
        )
    return AnalogyResult(
        accuracy=total_correct / total_known,
        questions=total_questions,
        coverage=total_known / total_questions,
        sections=results,
    )


def _can_answer(lexicon: Lexicon, question: Analogy) -> bool:
    """Whether the model has vectors for the question, and a row for the answer.

    Answers are words with a row: a word composed of its parts (fastText) has a vector, but is never given.
    """
    if lexicon.row_of(question.answer) is None:
        return False
    return lexicon.knows(question.a) and lexicon.knows(question.b) and lexicon.knows(question.c)


def _count_correct(lexicon: Lexicon, questions: Sequence[Analogy]) -> int:
    """Number of questions whose answer is the word nearest to b - a + c."""
    correct = 0
    for start in range(0, len(questions), _BATCH_QUESTIONS):
        batch = questions[start : start + _BATCH_QUESTIONS]
        a_QD = np.stack([lexicon.vector(question.a) for question in batch])
        b_QD = np.stack([lexicon.vector(question.b) for question in batch])
        c_QD = np.stack([lexicon.vector(question.c) for question in batch])
        # 3CosAdd; the three words of a question are excluded from its answers.
        without = [(question.a, question.b, question.c) for question in batch]
        nearest = lexicon.nearest_rows(b_QD - a_QD + c_QD, without)
        for question, row in zip(batch, nearest, strict=True):
            if lexicon.row_of(question.answer) == row:
                correct += 1
    return correct


def _read_sections(path: Path, lines: NumberedLines) -> dict[str, list[Analogy]]:
    """The analogies of each section; without section names, one section named like the file."""
    sections: dict[str, list[Analogy]] = {}
    name = path.stem
    for number, line in lines:
        # `: capital-common-countries` begins a section.
        if line.startswith(":"):
            name = line[1:].strip()
            continue
        words = line.split()
        if len(words) != 4:
            raise BadInput(
                f"{path}, line {number}: {len(words)} words where an analogy has 4; correct or remove the line."
            )
        sections.setdefault(name, []).append(Analogy(*words))
    if not sections:
        raise BadInput(f"{path} names sections, but has no questions.")
    return sections


def _read_pairs(path: Path, lines: NumberedLines) -> list[ScoredPair]:
    """Two words and a number, always in the same column; a first line without a number there names the columns."""
    rows = [(number, _fields(line)) for number, line in lines]
    column = _common_score_column([row for _, row in rows])
    if not column:
        raise BadInput(f"{path} has no line with two words and a number.")
    pairs = []
    for index, (number, row) in enumerate(rows):
        score = None
        if len(row) > column:
            score = _number(row[column])
        if score is None:
            is_header = index == 0
            if is_header:
                continue
            raise BadInput(
                f"{path}, line {number}: not two words and a number in column {column + 1}; correct or remove the line."
            )
        if not isfinite(score):
            raise BadInput(
                f"{path}, line {number}: the score '{row[column]}' is no finite number; correct or remove it."
            )
        pairs.append(ScoredPair(row[0], row[1], score))
    return pairs


def _common_score_column(rows: Sequence[Sequence[str]]) -> int:
    """The column that most rows have their score in; 0 if no row has a score. The first row may be a header."""
    columns = Counter[int]()
    for row in rows[1:] or rows:
        column = _score_column(row)
        if column:
            columns[column] += 1
    if not columns:
        return _score_column(rows[0])
    [(most_common, _)] = columns.most_common(1)
    return most_common


def _fields(line: str) -> list[str]:
    """The columns of a line, separated by tabs, commas, semicolons or spaces."""
    return [field for field in re.split(r"[\t,;]|\s+", line) if field]


def _score_column(row: Sequence[str]) -> int:
    """The column of the first number after two words; 0 if there is none."""
    for column, field in enumerate(row):
        if column > 1 and _number(field) is not None:
            return column
    return 0


def _number(field: str) -> float | None:
    try:
        return float(field)
    except ValueError:
        return None
