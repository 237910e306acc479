"""What people say of words against what vectors say: likeness of pairs (Spearman) and analogies (accuracy).

In: files of `word word number` (WordSim, SimLex, MEN, RareWords and their kin) or of four words a line, with `: name`
lines before each section (Google's analogies, CA8). Out: figures over the questions that the model can answer, and how
many these are.
"""

import re
from collections import Counter
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from firth import metrics
from firth.corpus.readers import read_lines
from firth.errors import BadInput
from firth.inference.lexicon import Lexicon

_BATCH = 256
_REMEDY = "put two words and a number, or the four words of an analogy, on each line"


def judge(lexicon: Lexicon, path: Path) -> dict[str, Any]:
    """A file's figures; what it asks is found by the lines after the first, which may name the columns."""
    lines = [(number, line.strip()) for number, line in enumerate(read_lines(path, remedy=_REMEDY), 1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not lines:
        raise BadInput(f"{path} has no questions; {_REMEDY}.")
    rows = [_fields(line) for _, line in lines[1:] or lines]
    [(column, _)] = Counter(map(_score_column, rows)).most_common(1)
    if lines[0][1].startswith(":") or (not column and len(rows[0]) == 4):
        return analogies(lexicon, _sections(path, lines), path)
    return likeness(lexicon, _pairs(path, lines), path)


def likeness(lexicon: Lexicon, pairs: Sequence[tuple[str, str, float]], path: Path) -> dict[str, Any]:
    known = [(a, b, gold) for a, b, gold in pairs if lexicon.knows(a) and lexicon.knows(b)]
    if len(known) < 2:
        raise BadInput(
            f"{path}: the model knows both words of {len(known)} of {len(pairs)} pairs, and a rank correlation needs "
            "two; take a file with words of the model's language and case."
        )
    golds, cosines = [gold for *_, gold in known], [lexicon.likeness(a, b) for a, b, _ in known]
    if len({*golds}) < 2 or len({*cosines}) < 2:
        same = "people give" if len({*golds}) < 2 else "the model gives"
        raise BadInput(f"{path}: {same} all {len(known)} known pairs one number, so they have no order; add pairs.")
    return {"spearman": metrics.spearman(golds, cosines), "pairs": len(pairs), "coverage": len(known) / len(pairs)}


def analogies(lexicon: Lexicon, sections: dict[str, list[tuple[str, ...]]], path: Path) -> dict[str, Any]:
    """Accuracy of b - a + c by section and over all; the words of a question are never its answer."""
    rows, right, asked = {}, 0, 0
    for name, questions in sections.items():
        known = [row for row in questions if _can_be_right(lexicon, row)]
        hits = _right(lexicon, known)
        rows[name] = {
            "accuracy": hits / len(known) if known else float("nan"),
            "questions": len(questions),
            "coverage": len(known) / len(questions),
        }
        right, asked = right + hits, asked + len(known)
    total = sum(map(len, sections.values()))
    if not asked:
        raise BadInput(
            f"{path}: the model knows all four words of none of its {total} analogies; take a file with words of the "
            "model's language and case."
        )
    return {"accuracy": right / asked, "questions": total, "coverage": asked / total, "sections": rows}


def _can_be_right(lexicon: Lexicon, question: tuple[str, ...]) -> bool:
    """Answers are taken from the list: one made of its parts (fastText) has a vector, but is never given."""
    return lexicon.place(question[3]) is not None and all(map(lexicon.knows, question[:3]))


def _right(lexicon: Lexicon, questions: list[tuple[str, ...]]) -> int:
    right = 0
    for start in range(0, len(questions), _BATCH):
        batch = questions[start : start + _BATCH]
        a_QD, b_QD, c_QD = (np.stack([lexicon.vector(row[i]) for row in batch]) for i in range(3))
        nearest = lexicon.nearest_of(b_QD - a_QD + c_QD, [row[:3] for row in batch])
        right += sum(lexicon.place(row[3]) == place for row, place in zip(batch, nearest, strict=True))
    return right


def _sections(path: Path, lines: list[tuple[int, str]]) -> dict[str, list[tuple[str, ...]]]:
    sections: dict[str, list[tuple[str, ...]]] = {}
    name = path.stem
    for number, line in lines:
        if line.startswith(":"):
            name = line[1:].strip()
        elif len(words := line.split()) == 4:
            sections.setdefault(name, []).append(tuple(words))
        else:
            raise BadInput(
                f"{path}, line {number}: {len(words)} words where an analogy has 4; mend or remove the line."
            )
    if not sections:
        raise BadInput(f"{path} names sections, but has no questions.")
    return sections


def _pairs(path: Path, lines: list[tuple[int, str]]) -> list[tuple[str, str, float]]:
    """Two words and a number, always in one column; a first line without a number there names the columns."""
    rows = [(number, _fields(line)) for number, line in lines]
    columns = Counter(filter(None, (_score_column(row) for _, row in rows[1:] or rows)))
    column = columns.most_common(1)[0][0] if columns else _score_column(rows[0][1])
    if not column:
        raise BadInput(f"{path} has no line with two words and a number.")
    pairs = []
    for place, (number, row) in enumerate(rows):
        value = _number(row[column]) if len(row) > column else None
        if value is not None and not isfinite(value):
            raise BadInput(f"{path}, line {number}: the score '{row[column]}' is no finite number; mend or remove it.")
        if value is not None:
            pairs.append((row[0], row[1], value))
        elif place:
            raise BadInput(
                f"{path}, line {number}: not two words and a number in column {column + 1}; mend or remove the line."
            )
    return pairs


def _fields(line: str) -> list[str]:
    return [field for field in re.split(r"[\t,;]|\s+", line) if field]


def _score_column(row: Sequence[str]) -> int:
    """Where the first number after two words stands; 0 for nowhere."""
    return next((i for i, field in enumerate(row) if i > 1 and _number(field) is not None), 0)


def _number(field: str) -> float | None:
    try:
        return float(field)
    except ValueError:
        return None
