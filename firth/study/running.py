"""A study and a time limit -> its rows: the cells that fit are filled, in the order of the study's queue.

A cell is started only if the runs that it still needs are expected to end in time. Expected seconds are those of the
design, scaled by how long the runs so far took on this machine.
"""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from firth.config import from_dict
from firth.files import write_bytes
from firth.study.design import Cell, Experiment, Study
from firth.study.sets import Sources
from firth.study.store import Store

log = logging.getLogger(__name__)

ROWS = "rows.jsonl"
DIGITS = 6
"""Of a figure, after the point."""


@dataclass(frozen=True)
class Score:
    """A filled cell."""

    system: str
    dataset: str
    seed: int
    figure: str
    score: float | None
    """None where the run failed, or the figure is undefined."""
    key: str
    """Of the run."""
    seconds: float
    x: float | None = None
    figures: dict[str, float] = field(default_factory=dict)
    failed: str = ""


@dataclass
class Clock:
    """Seconds that are left, and how fast this machine is compared with the design."""

    limit: float | None
    started: float = field(default_factory=time.monotonic)
    designed: float = 0.0
    """Seconds of the runs done so far, by the design."""
    taken: float = 0.0
    """What they took."""

    def expected(self, runs: Sequence[Experiment]) -> float:
        # A ratio of sums, because many short runs say little about a long one.
        factor = self.taken / self.designed if self.designed else 1.0
        return factor * sum(run.seconds for run in runs)

    def fits(self, runs: Sequence[Experiment]) -> bool:
        if self.limit is None:
            return True
        elapsed = time.monotonic() - self.started
        return self.expected(runs) <= self.limit - elapsed

    def learn(self, runs: Sequence[Experiment], seconds: float) -> None:
        """Records how long some runs took."""
        self.designed += sum(run.seconds for run in runs)
        self.taken += seconds


def run_study(study: Study, sources: Sources, store: Store, *, minutes: float | None) -> list[Score]:
    """Fills the cells that fit into the time, and returns all rows that are known, including those of earlier calls."""
    clock = Clock(None if minutes is None else 60 * minutes)
    cells = study.queue(sources)
    rows = []
    num_left = 0
    for number, cell in enumerate(cells, start=1):
        missing = list(store.missing(cell.run))
        # Results of earlier calls are shown, even when no time is left.
        if missing and not clock.fits(missing):
            num_left += 1
            continue
        if missing:
            where = f"{cell.system}, {cell.dataset}, seed {cell.seed}"
            log.info(f"{study.name} {number}/{len(cells)}: {where} (about {clock.expected(missing):.0f} s)")
        started = time.monotonic()
        row = _row(cell, store)
        rows.append(row)
        # A run that failed early says nothing about how fast this machine is.
        if missing and not row.failed:
            clock.learn(missing, time.monotonic() - started)
    if num_left:
        log.info(f"{num_left} of {len(cells)} cells did not fit into the time; run it again to continue.")
    return rows


def _row(cell: Cell, store: Store) -> Score:
    result = store.do(cell.run)
    rounded = {name: round(value, DIGITS) for name, value in result.defined.items()}
    figure = cell.figure or next(iter(result.figures), "")
    kept = rounded
    if cell.figure:
        # A run that fills many cells has the figures of all of them.
        kept = {name: value for name, value in rounded.items() if name in (cell.figure, *cell.also)}
    return Score(
        system=cell.system,
        dataset=cell.dataset,
        seed=cell.seed,
        figure=figure,
        score=rounded.get(figure),
        key=cell.run.key,
        seconds=round(result.seconds, 1),
        x=cell.x,
        figures=kept,
        failed=result.failed,
    )


def write_rows(rows: Sequence[Score], path: Path) -> None:
    """The rows as JSON lines."""
    lines = [json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows]
    write_bytes(path, "".join(lines).encode())


def read_rows(path: Path) -> list[Score]:
    """The rows of a file that `write_rows` wrote."""
    # Not `splitlines`: the sentence of a failure may hold other line separators of Unicode.
    lines = path.read_text("utf-8").split("\n")
    return [from_dict(Score, json.loads(line)) for line in lines if line]
