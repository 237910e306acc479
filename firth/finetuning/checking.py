"""Looks at labelled files before any training: what is there, what is wrong, and in which rows.

In: a task and its files. Out: `Findings`, which are plain JSON values; `describe` turns them into sentences.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

from firth import checkpoint as checkpoints
from firth.checkpoint import make_head
from firth.console import counted
from firth.finetuning import labelled
from firth.finetuning.figures import readable, short
from firth.finetuning.labelled import Labelled, Lengths
from firth.finetuning.start import start_from_model
from firth.finetuning.writer_start import as_writer, needs_source, with_way
from firth.tasks import resolve
from firth.tasks.options import MultipleChoice
from firth.tasks.task import Balance, Reader, Scorer, TaskConfig
from firth.tasks.writers import can_write
from firth.tokenizers.unknown import hardly_reads, unknown_sentence
from firth.types import Example, Problem

SHOWN = 10
"""The most rows or names that a sentence lists."""
NAME_CHARACTERS = 40
"""Characters of a name in a sentence; what should be a text is sometimes given as a label."""
RARE = 5
"""A name with fewer training rows is hard to learn."""


class RowFinding(TypedDict):
    """What is wrong with one row."""

    row: int
    what: str
    remedy: str


class Conflict(TypedDict):
    """Rows with the same texts but several golds."""

    rows: list[int]
    golds: list[str]


class TokenLengths(Lengths):
    read_at_once: int
    """The longest sequence that the model reads."""
    unknown_share: float
    """Share of the tokens that the model does not know."""
    hardly_reads: bool
    """Whether that share is too high."""


class PartFindings(TypedDict):
    """What one file holds."""

    file: NotRequired[str]
    rows: int
    """Rows that can be used."""
    bad: list[RowFinding]
    worth_a_look: list[RowFinding]
    balance: Balance
    baseline: dict[str, float]
    """Figures of an answer that ignores the texts."""
    duplicates: list[list[int]]
    """Rows with the same texts."""
    conflicts: list[Conflict]
    also_in_train: NotRequired[list[tuple[int, int]]]
    """A row of this file and a row of the training file with the same texts."""
    lengths: NotRequired[TokenLengths]


class LabelError(TypedDict):
    """A row whose label is probably wrong."""

    row: int
    text: str
    label: str
    suggested: str
    chance: float
    """That the label is wrong."""
    probability: float
    """Of the given label, by models that did not see the row."""
    suggested_probability: float
    neighbours: list[str]
    """The labels of the most similar rows, the nearest first."""


class DeepFindings(TypedDict):
    """What cross-validation says about the labels of a file."""

    accuracy: float
    """How often the held-out prediction is the given label."""
    baseline: float
    """How often the most frequent label is the given one."""
    reliable: bool
    """Whether the predictions know enough about the labels to doubt any."""
    noise_rate: float
    """The estimated share of wrong labels, if the predictions are reliable."""
    errors: list[LabelError]
    """The rows to look at, the likeliest errors first; none if the predictions are not reliable."""


class Findings(TypedDict):
    task: str
    main: str
    """The figure that epochs are picked by."""
    parts: dict[str, PartFindings]
    deep: NotRequired[DeepFindings]
    """What cross-validation says about the labels, if it was asked."""


def check(name: str, config: TaskConfig, files: Mapping[str, Path], *, model: Path | None = None) -> Findings:
    """What a training file (and a dev and a test file) holds; with a model also lengths in its tokens."""
    data = labelled.read(name, config, files)
    findings = inspect(name, data)
    for part, path in files.items():
        # The path comes first in the JSON.
        findings["parts"][part] = {"file": str(path), **findings["parts"][part]}
    if model:
        _add_lengths(findings, name, data, model)
    return findings


def _add_lengths(findings: Findings, name: str, data: Labelled, model: Path) -> None:
    loaded = checkpoints.load(model)
    config = with_way(data.config, loaded.goals)
    encoder = loaded.encoder
    if needs_source(config) and not can_write(encoder):
        # Fine-tuning makes an encoder-decoder of such a model; its shape is enough to check lengths.
        encoder = as_writer(start_from_model(str(model), random=True, texts=())).shape
    head = make_head(name, config, encoder, labels=data.labels)
    longest = encoder.max_positions
    for part, examples in data.examples.items():
        items = head.encode(examples, loaded.tokenizer, max_length=longest, training=part == "train")
        unknown = labelled.unknown_share_of(items, loaded.tokenizer)
        findings["parts"][part]["lengths"] = {
            "read_at_once": longest,
            "unknown_share": unknown,
            "hardly_reads": hardly_reads(loaded.tokenizer, unknown),
            **labelled.lengths(items),
        }
    problems = list(head.token_problems(data.examples["train"], loaded.tokenizer, max_length=longest))
    training = findings["parts"]["train"]
    training["rows"] -= len(problems)
    training["bad"] += [_row_finding(problem) for problem in problems]


def inspect(name: str, data: Labelled) -> Findings:
    """Everything that needs no tokenizer."""
    task = resolve(name)
    reader = task.reader(data.config)
    scorer = task.scorer(data.config, data.labels)
    # No encoder is needed: readers and scorers know the labels.
    parts = {part: _part_findings(reader, scorer, data, part) for part in data.examples}
    training_rows = {_key(example): example.row for example in data.examples["train"]}
    for part, examples in data.examples.items():
        if part != "train":
            parts[part]["also_in_train"] = _leaks(examples, training_rows)
    return Findings(task=name, main=scorer.main_metric, parts=parts)


def _part_findings(reader: Reader, scorer: Scorer, data: Labelled, part: str) -> PartFindings:
    examples = data.examples[part]
    problems = data.problems.get(part, ())
    baseline = scorer.baseline(data.examples["train"], examples)
    duplicates, conflicts = _repeated(examples)
    return PartFindings(
        rows=len(examples),
        bad=[_row_finding(problem) for problem in problems if problem.bad],
        worth_a_look=[_row_finding(problem) for problem in problems if not problem.bad],
        balance=reader.balance(examples),
        baseline=scorer.score(baseline, examples),
        duplicates=duplicates,
        conflicts=conflicts,
    )


def _row_finding(problem: Problem) -> RowFinding:
    return RowFinding(row=problem.row, what=problem.what, remedy=problem.remedy)


def _leaks(examples: Sequence[Example], training_rows: Mapping[str, int]) -> list[tuple[int, int]]:
    """Rows that are also in the training file, with their rows there."""
    leaks: list[tuple[int, int]] = []
    for example in examples:
        key = _key(example)
        if key in training_rows:
            leaks.append((example.row, training_rows[key]))
    return leaks


def _key(example: Example) -> str:
    """The texts of an example, without differences of spaces and case."""
    texts = example.texts
    if isinstance(example, MultipleChoice):
        texts = (*texts, example.stem)
    return "\t".join(" ".join(text.split()).casefold() for text in texts)


def _repeated(examples: Sequence[Example]) -> tuple[list[list[int]], list[Conflict]]:
    """Rows with the same texts; and those of them whose gold differs."""
    groups: dict[str, list[Example]] = defaultdict(list)
    for example in examples:
        groups[_key(example)].append(example)
    duplicates: list[list[int]] = []
    conflicts: list[Conflict] = []
    for members in groups.values():
        if len(members) == 1:
            continue
        rows = [example.row for example in members]
        duplicates.append(rows)
        golds = {short(readable(example.gold)) for example in members}
        if len(golds) > 1:
            conflicts.append(Conflict(rows=rows, golds=sorted(golds)))
    return duplicates, conflicts


def describe(findings: Findings) -> list[str]:
    """The findings as sentences, one part after the other; warnings name their rows."""
    lines: list[str] = []
    for part, found in findings["parts"].items():
        lines.append(f"{part}: {counted(found['rows'], 'row')} that can be used, {len(found['bad']):,} that cannot.")
        for group, counts in found["balance"].items():
            lines.append(f"  {group}: {_balance_line(counts)}")
        baseline = found["baseline"].get(findings["main"], float("nan"))
        shown = "undefined" if math.isnan(baseline) else f"{baseline:.4f}"
        lines.append(f"  without reading the texts: {findings['main']} {shown}")
        if "lengths" in found:
            lines.append(f"  {_lengths_line(found['lengths'])}")
        for line in warnings(part, found):
            lines.append(f"  {line}")
    return lines


def _balance_line(counts: Mapping[str, int]) -> str:
    """The shares of the most frequent names."""
    total = sum(counts.values())
    most_frequent = sorted(counts.items(), key=lambda pair: -pair[1])
    shares = [f"{_name(name)} {count / total:.1%}" for name, count in most_frequent[:SHOWN]]
    return ", ".join(shares) + _and_more(len(counts))


def _lengths_line(lengths: TokenLengths) -> str:
    return (
        f"tokens: {lengths['mean_tokens']:.1f} a row, longest {lengths['longest']:,}; cut: "
        f"{lengths['cut_share']:.2%} of the tokens, in {counted(lengths['cut_rows'], 'row')}; unknown: "
        f"{lengths['unknown_share']:.2%} of the tokens"
    )


def warnings(part: str, found: PartFindings) -> list[str]:
    """What is wrong with one part, each kind in one sentence with its rows."""
    lines = [*_row_warnings("cannot be used", found["bad"]), *_row_warnings("worth a look", found["worth_a_look"])]
    conflicts = found["conflicts"]
    if conflicts:
        first = conflicts[0]
        texts_have = "text has" if len(conflicts) == 1 else "texts have"
        lines.append(
            f"Warning: {len(conflicts)} {texts_have} several labels, such as rows "
            f"{_listed(first['rows'][:SHOWN])} ({_names(first['golds'], ' / ')})."
        )
    if found["duplicates"]:
        num_repeats = sum(len(rows) - 1 for rows in found["duplicates"])
        rows_repeat = "row repeats" if num_repeats == 1 else "rows repeat"
        lines.append(f"Warning: {num_repeats} {rows_repeat} another, such as {_rows(found['duplicates'][0])}.")
    leaks = found.get("also_in_train")
    if leaks:
        row, training_row = leaks[0]
        are = "is" if len(leaks) == 1 else "are"
        share = len(leaks) / found["rows"]
        lines.append(
            f"Warning: {counted(len(leaks), 'row')} ({share:.1%}) {are} also in train, such as row {row} "
            f"(train row {training_row}): figures on {part} flatter the model."
        )
    if part == "train":
        lines += _rare_name_warnings(found["balance"])
    if "lengths" in found and found["lengths"]["hardly_reads"]:
        lines.append(f"Warning: {unknown_sentence(found['lengths']['unknown_share'])}")
    return lines


def _row_warnings(heading: str, findings: Sequence[RowFinding]) -> Iterator[str]:
    """One sentence for each kind of problem."""
    rows_by_problem: dict[str, list[int]] = defaultdict(list)
    for finding in findings:
        problem = finding["what"]
        if finding["remedy"]:
            problem += f" ({finding['remedy']})"
        rows_by_problem[problem].append(finding["row"])
    for problem, rows in list(rows_by_problem.items())[:SHOWN]:
        yield f"Warning: {heading}: {_rows(rows)}: {problem}."
    num_left = len(rows_by_problem) - SHOWN
    if num_left > 0:
        yield f"Warning: {num_left} more kinds of such rows; the JSON findings list them all."


def _rare_name_warnings(balance: Balance) -> Iterator[str]:
    # A group that is only a number has no name worth showing.
    for group, counts in balance.items():
        rare = [name for name, count in counts.items() if count < RARE]
        if rare:
            group_name = "" if group.isdigit() else f"the {group} "
            yield f"Warning: fewer than {RARE} training rows for {group_name}{_names(rare, ', ')}."


def _names(names: Sequence[str], separator: str) -> str:
    """The first names."""
    shown = separator.join(_name(name) for name in names[:SHOWN])
    return shown + _and_more(len(names))


def _name(name: str) -> str:
    """The name, cut if it is long."""
    if len(name) <= NAME_CHARACTERS:
        return name
    return f"{name[: NAME_CHARACTERS - 1]}…"


def _rows(rows: Sequence[int]) -> str:
    """Such as `rows 2, 3`."""
    noun = "rows" if len(rows) > 1 else "row"
    return f"{noun} {_listed(rows[:SHOWN])}{_and_more(len(rows))}"


def _listed(rows: Iterable[int]) -> str:
    return ", ".join(str(row) for row in rows)


def _and_more(count: int) -> str:
    """The end of a list of which only the first are shown."""
    if count <= SHOWN:
        return ""
    return f" and {count - SHOWN} more"
