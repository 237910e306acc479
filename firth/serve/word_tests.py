"""What people say of words against what vectors say: likeness of pairs (Spearman) and analogies (accuracy).

In: files of `word word number` (WordSim, SimLex, MEN, RareWords and their kin) or of four words a line, with `: name`
lines before each section (Google's analogies, CA8). Out: figures over the questions whose words the model knows, and
how many these are.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from firth import metrics
from firth.corpus.readers import read_lines
from firth.errors import BadInput
from firth.serve.lexicon import Lexicon

_BATCH = 256


def judge(lexicon: Lexicon, path: Path) -> dict[str, Any]:
    """A file's figures; what it asks is found by its first question."""
    lines = [(number, line.strip()) for number, line in enumerate(read_lines(path), 1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not lines:
        raise BadInput(f"{path} has no questions.")
    if lines[0][1].startswith(":") or (len(lines[0][1].split()) == 4 and not _numbers(lines[0][1].split())):
        return analogies(lexicon, _sections(path, lines))
    return likeness(lexicon, _pairs(path, lines))


def likeness(lexicon: Lexicon, pairs: Sequence[tuple[str, str, float]]) -> dict[str, Any]:
    known = [(a, b, gold) for a, b, gold in pairs if lexicon.knows(a) and lexicon.knows(b)]
    cosines = [lexicon.likeness(a, b) for a, b, _ in known]
    spearman = metrics.spearman([gold for *_, gold in known], cosines) if len(known) > 1 else float("nan")
    return {"spearman": spearman, "pairs": len(pairs), "coverage": len(known) / len(pairs)}


def analogies(lexicon: Lexicon, sections: dict[str, list[tuple[str, ...]]]) -> dict[str, Any]:
    """Accuracy of b - a + c by section and over all; the words of a question are never its answer."""
    rows, right, asked = {}, 0, 0
    for name, questions in sections.items():
        known = [row for row in questions if all(map(lexicon.knows, row))]
        hits = _right(lexicon, known)
        rows[name] = {
            "accuracy": hits / len(known) if known else float("nan"),
            "questions": len(questions),
            "coverage": len(known) / len(questions),
        }
        right, asked = right + hits, asked + len(known)
    total = sum(map(len, sections.values()))
    accuracy = right / asked if asked else float("nan")
    return {"accuracy": accuracy, "questions": total, "coverage": asked / total, "sections": rows}


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
            raise BadInput(f"{path}, line {number}: {len(words)} words where an analogy has 4.")
    if not sections:
        raise BadInput(f"{path} names sections, but has no questions.")
    return sections


def _pairs(path: Path, lines: list[tuple[int, str]]) -> list[tuple[str, str, float]]:
    """Two words and the first number after them; a first line without a number names the columns."""
    pairs = []
    for place, (number, line) in enumerate(lines):
        first, second, *rest = [*(field.strip() for field in re.split(r"[\t,;]|\s+", line) if field.strip()), "", ""]
        values = _numbers(rest)
        if values and first and second:
            pairs.append((first, second, values[0]))
        elif place:
            raise BadInput(f"{path}, line {number}: not two words and a number.")
    if not pairs:
        raise BadInput(f"{path} has no line with two words and a number.")
    return pairs


def _numbers(fields: Sequence[str]) -> list[float]:
    found = []
    for field in fields:
        try:
            found.append(float(field))
        except ValueError:
            continue
    return found
