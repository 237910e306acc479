"""What a study is made of: runs, the cells they fill, and the claims that the cells decide.

An `Experiment` is one run. It names everything that its result depends on, so its key is a hash of that, and two
studies that need the same run share it. A `Cell` is one score: of a system, on a set, with a seed.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from firth.files import sha256
from firth.study.sets import Sources

Setting = str | int | float | bool | tuple[str, ...]
Sentences = Mapping[str, str]
"""The same sentence by language: en, zh."""

KEY_LENGTH = 16
"""Hexadecimal digits of a run's key."""


@dataclass(frozen=True)
class Experiment:
    """One step, with all that its result depends on."""

    step: str
    """Its name in `steps.TABLE`."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    files: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    """Files by argument. Their contents are part of the key, their paths are not."""
    needs: Mapping[str, "Experiment"] = field(default_factory=dict)
    """Runs whose folder is an argument, by argument."""
    seconds: float = 10.0
    """The expected duration on two cores."""

    @cached_property
    def key(self) -> str:
        """A hash of what the result depends on."""
        contents = {}
        for name, paths in self.files.items():
            contents[name] = [sha256(path) for path in paths]
        described = {
            "step": self.step,
            "settings": dict(self.settings),
            "files": contents,
            "needs": {name: run.key for name, run in self.needs.items()},
        }
        canonical = json.dumps(described, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:KEY_LENGTH]


@dataclass(frozen=True)
class Cell:
    """A place in a study's table, and the run that fills it."""

    system: str
    dataset: str
    seed: int
    run: Experiment
    figure: str = ""
    """Which figure of the run it is; empty: the main one, and all others are kept with it."""
    also: tuple[str, ...] = ()
    """Figures to keep with a named one."""
    x: float | None = None
    """Where it is on the horizontal axis, in a study of curves: a number of rows, a layer."""
    turn: int = 0
    """Cells of a lower turn are filled first."""


@dataclass(frozen=True)
class Claim:
    """That one system is better than another."""

    better: str
    worse: str
    text: Sentences
    datasets: tuple[str, ...] = ()
    """The sets it is about; none: all that both systems were scored on."""
    x: float | None = None
    """The place on the horizontal axis that it is about."""
    worse_x: float | None = None
    """That of the worse system, where it is another one."""

    def is_about(self, cell: Cell) -> bool:
        """Whether the claim depends on a cell."""
        if self.datasets and cell.dataset not in self.datasets:
            return False
        worse_x = self.x if self.worse_x is None else self.worse_x
        is_better = cell.system == self.better and self.x in (None, cell.x)
        is_worse = cell.system == self.worse and worse_x in (None, cell.x)
        return is_better or is_worse


@dataclass(frozen=True)
class Study:
    """A question and how it is answered."""

    name: str
    question: Sentences
    design: Sentences
    cells: Callable[[Sources], list[Cell]]
    """The cells; `queue` says in which order they are filled."""
    claims: tuple[Claim, ...] = ()
    x_label: str = ""
    """What the horizontal axis is, in a study of curves."""
    log_x: bool = False
    """Whether that axis is logarithmic."""
    score: str = ""
    """What a score is, where the name of the run's figure does not say it."""
    spread: tuple[str, ...] = ()
    """Three figures, low, middle and high, that runs record in addition to a score: a picture shows them."""
    systems: Mapping[str, Sentences] = field(default_factory=dict)
    """What each system is, for a reader who does not know its name."""
    against: str = ""
    """A figure of the runs that the scores are drawn against, one point for each system."""

    def queue(self, sources: Sources) -> list[Cell]:
        """The cells in the order in which they are filled.

        In each turn those that a claim is about come first, and of these one seed of everything before the next seed,
        so that a short time limit gives many small verdicts instead of one.
        """

        def place(cell: Cell) -> tuple[int, bool, int]:
            decides = any(claim.is_about(cell) for claim in self.claims)
            return cell.turn, not decides, cell.seed

        return sorted(self.cells(sources), key=place)
