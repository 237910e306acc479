"""Labelled files -> the examples of a fine-tuning run, and what is wrong with them.

In: a task, its config and the files for training, picking and testing. Out: examples whose rows are all usable. A bad
row stops everything with its number and the remedy, or is skipped and counted when that was asked for.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from firth import rng
from firth.data.items import Item
from firth.errors import BadInput
from firth.tasks import resolve
from firth.tasks.task import Labels, TaskConfig
from firth.types import Example, Problem

log = logging.getLogger(__name__)

HELD_OUT_LIMIT = 2_000
"""Training rows held out at most where there is no dev file."""
PARTS = ("train", "dev", "test")


@dataclass(frozen=True)
class Labelled:
    """What a task learns from and is measured on."""

    config: TaskConfig
    labels: Labels
    examples: Mapping[str, Sequence[Example]]
    """By part: train, dev, test."""
    problems: Mapping[str, Sequence[Problem]] = field(default_factory=dict)
    held_out: bool = False
    """Whether `dev` are rows of the training file."""

    @property
    def picked_on(self) -> str:
        return "held-out training rows" if self.held_out else "dev"

    @property
    def num_skipped(self) -> dict[str, int]:
        return {part: len({p.row for p in found if p.bad}) for part, found in self.problems.items()}


def read(name: str, config: TaskConfig, files: Mapping[str, Path], *, labels: Labels | None = None) -> Labelled:
    """Reads all parts; bad rows are left out and told of in `problems`."""
    task = resolve(name)
    config = config.with_preset()
    if labels is None:
        config = task.reader(config).locate(next(iter(files.values())))
    reader = task.reader(config)
    examples: dict[str, Sequence[Example]] = {}
    problems: dict[str, list[Problem]] = {part: [] for part in files}
    for part, path in files.items():
        examples[part] = reader.read(path, problems[part])
        if not examples[part]:
            raise BadInput(f"{path} has no row that can be used: {_first(problems[part])}.")
    if labels is None:
        training_rows = examples[next(iter(files))]
        config = reader.learn(training_rows)
        reader = task.reader(config)
        labels = reader.labels_of(training_rows)
    for part in files:
        found = list(reader.problems(examples[part], labels))
        problems[part] += found
        bad = {problem.row if problem.example_row is None else problem.example_row for problem in found if problem.bad}
        examples[part] = [example for example in examples[part] if example.row not in bad]
        if not examples[part]:
            raise BadInput(f"{files[part]}: no row is left to use ({found[0].what} in row {found[0].row}).")
    return Labelled(config, labels, examples, problems)


def _first(problems: Sequence[Problem]) -> str:
    """What is wrong with the first row of a file whose rows are all bad, and the remedy."""
    if not problems:
        return "there is none; give it one example a row"
    more = f" ({len(problems):,} bad rows in all)" if len(problems) > 1 else ""
    return f"row {problems[0].row}: {problems[0].what}; {problems[0].remedy}{more}"


def refuse_bad(data: Labelled, files: Mapping[str, Path]) -> None:
    """Raises for the first bad row."""
    for part, found in data.problems.items():
        bad = sorted((problem for problem in found if problem.bad), key=lambda problem: problem.row)
        if bad:
            count = len({problem.row for problem in bad})
            more = f" ({count} such rows; `firth check` lists them)" if count > 1 else ""
            raise BadInput(
                f"{files[part]}, row {bad[0].row}: {bad[0].what}; {bad[0].remedy}, "
                f"or leave such rows out with `skip_bad=True`{more}."
            )


def hold_out(name: str, data: Labelled, *, rate: float, seed: int) -> Labelled:
    """Without a dev file, some training rows take its place; rows of one group stay together."""
    if "dev" in data.examples:
        return data
    rows = data.examples["train"]
    wanted = min(max(round(len(rows) * rate), 1), HELD_OUT_LIMIT)
    order = rng.permutation(rng.key(seed, "held-out rows"), len(rows)).tolist()
    group = resolve(name).reader(data.config).group
    members = Counter(group(row) for row in rows)
    largest = max(2 * wanted, min(members.values()))  # one text that fills half the file stays in training
    chosen: set[Any] = set()
    held = 0
    for i in order:  # whole groups, until there are rows enough
        if held < wanted and group(rows[i]) not in chosen and members[group(rows[i])] <= largest:
            chosen.add(group(rows[i]))
            held += members[group(rows[i])]
    train = [row for row in rows if group(row) not in chosen]
    dev = [row for row in rows if group(row) in chosen]
    if len(rows) < 4 or not train:
        shared = f" on {len(members)} different texts or passages" if len(members) < len(rows) else ""
        raise BadInput(f"{len(rows)} training rows{shared} are too few to hold some out; give a `dev=` file.")
    return replace(data, examples={**data.examples, "train": train, "dev": dev}, held_out=True)


def sizes(items: Sequence[Item]) -> dict[str, float]:
    """Lengths of encoded items, and how much of them is cut."""
    tokens, cut = np.array([item.tokens for item in items]), np.array([item.cut for item in items])
    return {
        "mean_tokens": float(tokens.mean()),
        "longest": int(tokens.max()),
        "cut_rows": int((cut > 0).sum()),
        "cut_share": float(cut.sum() / max(tokens.sum(), 1)),
    }


def tell_of_cuts(what: str, items: Sequence[Item]) -> None:
    """Says how much of the text no window holds, if anything."""
    found = sizes(items) if items else {"cut_rows": 0}
    if found["cut_rows"]:
        log.warning(
            f"{what}: {found['cut_share']:.2%} of the tokens are cut ({found['cut_rows']:,} of {len(items):,} rows are "
            f"longer than can be read at once; the longest has {found['longest']:,} tokens)."
        )
