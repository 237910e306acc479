"""Labelled files -> the examples of a fine-tuning run, and what is wrong with them.

In: a task, its config and the files for training, picking and testing. Out: examples whose rows are all usable. A bad
row stops the run with its number and the remedy, or is skipped and counted with `skip_bad=True`.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict

import numpy as np

from firth import rng
from firth.console import counted
from firth.data.items import Item, all_windows
from firth.errors import BadInput
from firth.files import sha256
from firth.tasks import resolve
from firth.tasks.task import Labels, Reader, TaskConfig
from firth.tokenizers import Tokenizer
from firth.tokenizers.unknown import unknown_share
from firth.types import Example, Problem

log = logging.getLogger(__name__)

HELD_OUT_LIMIT = 2_000
"""The most training rows that are held out if there is no dev file."""
HELD_OUT = "held-out training rows"
"""What these rows are called."""
PARTS = ("train", "dev", "test")


@dataclass(frozen=True)
class Labelled:
    """The rows that a task learns from and is measured on."""

    config: TaskConfig
    labels: Labels
    examples: Mapping[str, Sequence[Example]]
    """By part: train, dev, test."""
    problems: Mapping[str, Sequence[Problem]] = field(default_factory=dict)
    held_out: bool = False
    """Whether `dev` are rows of the training file."""

    learned_from: bool = False
    """Whether `dev` are the training rows themselves."""

    @property
    def picked_on(self) -> str:
        """What the rows for picking epochs are called."""
        if self.learned_from:
            return "the training rows themselves"
        return HELD_OUT if self.held_out else "dev"

    @property
    def num_skipped(self) -> dict[str, int]:
        """The number of bad rows, by part."""
        counts: dict[str, int] = {}
        for part, found in self.problems.items():
            bad_rows = {problem.row for problem in found if problem.bad}
            counts[part] = len(bad_rows)
        return counts


class Lengths(TypedDict):
    """Lengths of encoded rows in tokens, and how much of them no window holds."""

    mean_tokens: float
    longest: int
    cut_rows: int
    cut_share: float


def texts_of(data: Mapping[str, Labelled]) -> Iterator[str]:
    """All texts of the training rows, task by task."""
    for part in data.values():
        for row in part.examples["train"]:
            yield from row.texts


def read(
    name: str, config: TaskConfig, files: Mapping[str, Path], *, labels: Labels | None = None, model: str = ""
) -> Labelled:
    """Reads the files of all parts. Bad rows are left out and listed in `problems`.

    Without `labels` the first file is that for training: columns, labels and the like are found in it. With the
    `labels` of a trained head the files are read as its training files were; messages call it `model`.
    """
    is_trained = labels is not None
    task = resolve(name)
    config = config.with_preset()
    first_part, first_path = next(iter(files.items()))
    # Columns are found in the training file, because a test file may have fewer.
    if labels is None:
        config = task.reader(config).locate(first_path)
    reader = task.reader(config)
    examples: dict[str, Sequence[Example]] = {}
    problems: dict[str, list[Problem]] = {}
    for part, path in files.items():
        problems[part] = []
        examples[part] = reader.read(path, problems[part])
        if not examples[part]:
            raise BadInput(f"{path} has no row that can be used: {_first_problem(problems[part])}.")
    # What only the training rows show: labels, a tag scheme, the mean of numbers.
    if labels is None:
        config = reader.learn(examples[first_part])
        reader = task.reader(config)
        labels = _learned_labels(reader, examples[first_part], problems[first_part], first_path)
    # Some problems show only once the labels are known.
    for part, path in files.items():
        found = list(reader.problems(examples[part], labels))
        problems[part] += found
        examples[part] = _without_bad(examples[part], found)
        if examples[part]:
            continue
        if is_trained:
            _refuse_unknown_answer(path, found, model)
        raise BadInput(f"{path} has no row that can be used: {_first_problem(found)}.")
    return Labelled(config, labels, examples, problems)


def _learned_labels(reader: Reader, examples: Sequence[Example], problems: Sequence[Problem], path: Path) -> Labels:
    """The labels of the training rows."""
    try:
        return reader.labels_of(examples)
    except BadInput as error:
        # A bad row may be the reason that a label is missing, so it is named first.
        if not any(problem.bad for problem in problems):
            raise BadInput(f"{path}: {error}") from None
        raise BadInput(f"{path}, {_first_problem(problems)}. Without bad rows: {error}") from None


def _refuse_unknown_answer(path: Path, problems: Sequence[Problem], model: str) -> None:
    """Raises if the first bad row has an answer that a trained head does not know."""
    bad = _first_bad(problems)
    if bad.is_unknown:
        raise BadInput(
            f"No row of {path} has an answer that {model or 'the model'} knows "
            f"(row {bad.row}: {bad.what}); give rows with the answers of its training file."
        )


def rows_sha256(name: str, config: TaskConfig, path: Path) -> str:
    """The sha256 of a labelled file; if it is read together with others, of all their hashes."""
    digests = [sha256(file) for file in resolve(name).reader(config).files(path)]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def with_problems(data: Labelled, part: str, found: Sequence[Problem]) -> Labelled:
    """The rows of a part without those that turned out to be bad."""
    examples = {**data.examples, part: _without_bad(data.examples[part], found)}
    problems = {**data.problems, part: [*data.problems.get(part, ()), *found]}
    return replace(data, examples=examples, problems=problems)


def _without_bad(examples: Sequence[Example], problems: Sequence[Problem]) -> list[Example]:
    """The examples without those of bad rows."""
    bad_rows: set[int] = set()
    for problem in problems:
        if problem.bad:
            bad_rows.add(problem.row if problem.example_row is None else problem.example_row)
    return [example for example in examples if example.row not in bad_rows]


def _first_problem(problems: Sequence[Problem]) -> str:
    """What is wrong with the first bad row of a file, and the remedy."""
    num_bad = sum(problem.bad for problem in problems)
    if not num_bad:
        return "nothing follows its header; give it one example a row"
    first = _first_bad(problems)
    more = f" ({num_bad:,} bad rows in all)" if num_bad > 1 else ""
    return f"row {first.row}: {first.what}; {first.remedy}{more}"


def _first_bad(problems: Sequence[Problem]) -> Problem:
    return min((problem for problem in problems if problem.bad), key=lambda problem: problem.row)


def refuse_bad(data: Labelled, files: Mapping[str, Path]) -> None:
    """Raises for the first bad row."""
    for part, found in data.problems.items():
        bad = sorted((problem for problem in found if problem.bad), key=lambda problem: problem.row)
        if not bad:
            continue
        first = bad[0]
        count = data.num_skipped[part]
        more = f" ({count} such rows; `firth check` lists them)" if count > 1 else ""
        raise BadInput(
            f"{files[part]}, row {first.row}: {first.what}; {first.remedy}, or leave such rows out with "
            f"`skip_bad=True`{more}."
        )


def hold_out(name: str, data: Labelled, *, rate: float, seed: int) -> Labelled:
    """Without a dev file, some training rows take its place; rows of one group (the same text) stay together.

    With a rate of 0 all rows are learned from, and take its place as well.
    """
    if "dev" in data.examples:
        return data
    if not rate:
        return replace(data, examples={**data.examples, "dev": data.examples["train"]}, learned_from=True)
    rows = data.examples["train"]
    reader = resolve(name).reader(data.config)
    group_of = reader.group
    chosen = _chosen_groups(rows, group_of, rate=rate, seed=seed)
    train = [row for row in rows if group_of(row) not in chosen]
    dev = [row for row in rows if group_of(row) in chosen]
    if len(rows) < 4 or not train:
        num_groups = len({group_of(row) for row in rows})
        shared = f" on {num_groups} different texts or passages" if num_groups < len(rows) else ""
        num_rows = counted(len(rows), "training row")
        form = f" The file needs {reader.between_rows}." if reader.between_rows else ""
        raise BadInput(f"Only {num_rows}{shared}: too few to hold some out; give a `dev=` file.{form}")
    return replace(data, examples={**data.examples, "train": train, "dev": dev}, held_out=True)


def _chosen_groups(
    rows: Sequence[Example], group_of: Callable[[Example], Hashable], *, rate: float, seed: int
) -> set[Hashable]:
    """Groups drawn at random until they have the share `rate` of the rows."""
    # At least one row, at most the limit.
    num_wanted = min(max(round(len(rows) * rate), 1), HELD_OUT_LIMIT)
    sizes = Counter(group_of(row) for row in rows)
    # A text that fills half the file stays in training.
    largest = max(2 * num_wanted, min(sizes.values()))
    chosen: set[Hashable] = set()
    num_held = 0
    for i in rng.permutation(rng.key(seed, "held-out rows"), len(rows)).tolist():
        group = group_of(rows[i])
        if num_held < num_wanted and group not in chosen and sizes[group] <= largest:
            chosen.add(group)
            num_held += sizes[group]
    return chosen


def lengths(items: Sequence[Item]) -> Lengths:
    """Lengths of encoded items, of which there is at least one."""
    tokens = np.array([item.tokens for item in items])
    cut = np.array([item.cut for item in items])
    return Lengths(
        mean_tokens=float(tokens.mean()),
        longest=int(tokens.max()),
        cut_rows=int((cut > 0).sum()),
        cut_share=float(cut.sum() / max(tokens.sum(), 1)),
    )


def unknown_share_of(items: Sequence[Item], tokenizer: Tokenizer) -> float:
    """The share of the items' tokens that the tokenizer does not know."""
    return unknown_share(tokenizer, [window.ids for window in all_windows(items)])


def report_cuts(what: str, items: Sequence[Item]) -> None:
    """Says how much of the text no window holds, if anything."""
    if not items:
        return
    found = lengths(items)
    if found["cut_rows"]:
        are = "is" if found["cut_rows"] == 1 else "are"
        log.warning(
            f"{what}: {found['cut_share']:.2%} of the tokens are cut ({found['cut_rows']:,} of {len(items):,} rows "
            f"{are} longer than can be read at once; the longest has {found['longest']:,} tokens)."
        )
