"""Where a model is weak: a labelled file with predictions in, the groups of rows with too many errors out.

Groups are made of what can be seen of a row: its label, its length, a word in it, digits, questions, unknown tokens. A
group is weak if it has more errors than chance gives as many rows (Fisher's exact test), corrected for the number of
groups (Benjamini & Hochberg 1995).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from firth.console import counted
from firth.data.spoken import words_of
from firth.finetuning.figures import readable
from firth.metrics.paired import false_discovery, upper_tail
from firth.trust.rows import AnsweredRows, answer_file
from firth.types import Example

FEWEST_ROWS = 10
"""Rows that a group must have."""
SURE = 0.05
"""A corrected p-value below this is taken for a real weakness."""
SHOWN_ROWS = 5
"""Wrong rows that are named of a group."""
MOST_WORDS = 2000
"""Words that are looked at, the most frequent ones."""
MOST_SHARE = 0.9
"""A word in a larger share of the rows makes no group."""
QUARTERS = ("shortest", "second", "third", "longest")


class Slice(TypedDict):
    """A group of rows on which the model is weak."""

    name: str
    rows: int
    accuracy: float
    rest: float
    """The accuracy on all other rows."""
    p_value: float
    """Corrected for the number of groups."""
    examples: list[int]
    """Some rows of the file that the model has wrong."""


class SliceFindings(TypedDict):
    rows: int
    accuracy: float
    slices: list[Slice]
    """The groups with the most errors above the usual first."""


def find_weak_slices(
    model: str | Path,
    *,
    data: str | Path,
    task: str = "",
    columns: Mapping[str, object] | None = None,
    skip_bad: bool = False,
) -> SliceFindings:
    """The groups of rows of a labelled file on which a fine-tuned model is weak."""
    answered = answer_file(model, data, task=task, columns=columns, skip_bad=skip_bad)
    groups = groups_of(answered)
    right_N = np.array(answered.is_right)
    return SliceFindings(
        rows=len(right_N), accuracy=float(right_N.mean()), slices=weak_groups(groups, right_N, answered.examples)
    )


def weak_groups(groups: Mapping[str, Sequence[int]], right_N: np.ndarray, examples: Sequence[Example]) -> list[Slice]:
    """The groups (positions of rows by name) with more errors than by chance."""
    total = len(right_N)
    num_wrong = int((~right_N).sum())
    tested: list[Slice] = []
    for name, places in groups.items():
        if not FEWEST_ROWS <= len(places) < total:
            continue
        wrong_places = [place for place in places if not right_N[place]]
        wrong = len(wrong_places)
        wrong_elsewhere = num_wrong - wrong
        slice_ = Slice(
            name=name,
            rows=len(places),
            accuracy=1 - wrong / len(places),
            rest=1 - wrong_elsewhere / (total - len(places)),
            p_value=upper_tail(wrong, len(places), num_wrong, total),
            examples=[examples[place].row for place in wrong_places[:SHOWN_ROWS]],
        )
        tested.append(slice_)
    corrected = false_discovery([each["p_value"] for each in tested])
    weak = []
    for each, p_value in zip(tested, corrected, strict=True):
        if p_value < SURE:
            weak.append(Slice({**each, "p_value": p_value}))
    # The most errors above what the other rows have.
    return sorted(weak, key=lambda each: -each["rows"] * (each["rest"] - each["accuracy"]))


def groups_of(answered: AnsweredRows) -> dict[str, list[int]]:
    """Positions of rows, by what the rows of a group have in common."""
    groups: dict[str, list[int]] = defaultdict(list)
    texts = [" ".join(example.texts) for example in answered.examples]
    words = []
    lengths = []
    for text in texts:
        all_words = words_of(text)
        words.append(set(all_words))
        lengths.append(len(all_words))
    quarters = _quarters(lengths)
    tokenizer = answered.model.tokenizer
    frequent = _frequent_words(words)
    for place, (example, text) in enumerate(zip(answered.examples, texts, strict=True)):
        if isinstance(example.gold, str):
            groups[f"label {readable(example.gold)}"].append(place)
        groups[f"{quarters[place]} quarter by words"].append(place)
        if any(character.isdigit() for character in text):
            groups["has digits"].append(place)
        if "?" in text or "？" in text:
            groups["has a question mark"].append(place)
        if tokenizer.vocab.unk in tokenizer.encode(text).ids:
            groups["has unknown tokens"].append(place)
        for word in sorted(words[place] & frequent):
            groups[f"has the word '{word}'"].append(place)
    return groups


def _quarters(lengths: Sequence[int]) -> list[str]:
    """Which quarter of the texts each belongs to, by its number of words."""
    edges = np.quantile(lengths, [0.25, 0.5, 0.75])
    return [QUARTERS[int(np.searchsorted(edges, length))] for length in lengths]


def _frequent_words(words: Sequence[set[str]]) -> set[str]:
    """Words in enough rows, but not in nearly all."""
    counts: Counter[str] = Counter()
    for own in words:
        counts.update(own)
    most_rows = MOST_SHARE * len(words)
    useful = [word for word, count in counts.items() if FEWEST_ROWS <= count <= most_rows]
    useful.sort(key=lambda word: (-counts[word], word))
    return set(useful[:MOST_WORDS])


def describe(findings: SliceFindings) -> list[str]:
    """The findings as lines."""
    lines = [f"{counted(findings['rows'], 'row')}, {findings['accuracy']:.1%} right."]
    if not findings["slices"]:
        lines.append("No group of rows has more errors than chance explains.")
    for each in findings["slices"]:
        rows = ", ".join(str(row) for row in each["examples"])
        lines.append(
            f"  {each['name']}: {each['accuracy']:.1%} of {each['rows']:,} rows right, elsewhere {each['rest']:.1%} "
            f"(p {each['p_value']:.2g}); wrong rows: {rows}"
        )
    return lines
