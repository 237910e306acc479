"""Successive halving (Jamieson & Talwalkar 2016): many settings with few epochs, the better half with twice as many.

In: a function that tries settings with a share of their epochs, and the seconds there are. Out: all trials. A bracket
is one elimination of all settings but one; another with new settings follows while there is time. The time is that of
the trials themselves, so that a search that was interrupted and resumed makes the same ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

LARGEST_BRACKET = 8
"""Settings that a bracket begins with, if the time allows so many."""
RUNGS = 3
"""A setting is tried with a quarter, a half and all of its epochs."""
UNDEFINED = -1.0
"""The figure of a trial that diverged, or whose figure is undefined: no defined one is lower."""


@dataclass(frozen=True)
class TuningTrial:
    """One run of the search."""

    number: int
    """Of its settings, from 0."""
    rung: int
    settings: Mapping[str, object]
    epochs: float
    figure: float
    """The task's main figure on the rows for picking."""
    seconds: float

    @property
    def share(self) -> float:
        return share_of(self.rung)

    @property
    def rank(self) -> tuple[int, float]:
        """More epochs count more than a better figure, which fewer epochs may owe to luck."""
        if self.figure <= UNDEFINED:
            return -1, self.figure
        return self.rung, self.figure


Try = Callable[[int, int], TuningTrial]
"""A number of settings and a rung in, their trial out."""


def written_figure(figure: float) -> str:
    """The figure of a trial for reading."""
    if figure <= UNDEFINED:
        return "undefined"
    return f"{figure:.4f}"


def share_of(rung: int) -> float:
    """The share of the epochs that a rung trains."""
    return float(2.0 ** (rung - RUNGS + 1))


def search(attempt: Try, seconds: float) -> list[TuningTrial]:
    """All trials that fit into the time; the first is always made."""
    first = attempt(0, 0)
    trials = [first]
    number = 0
    while True:
        # The first trial of all is a part of the first bracket.
        earlier = [trial for trial in trials if trial.number < number]
        size = bracket_size(trials, seconds - _used(earlier))
        numbers = list(range(number, number + size))
        made = _bracket(attempt, numbers, trials, seconds)
        if not made:
            return trials
        number += size


def bracket_size(trials: Sequence[TuningTrial], seconds_left: float) -> int:
    """How many settings the next bracket begins with: as many as the time allows, 2 at least."""
    size = LARGEST_BRACKET
    while size > 2 and _bracket_seconds(size, trials) > seconds_left:
        size //= 2
    return size


def _bracket_seconds(size: int, trials: Sequence[TuningTrial]) -> float:
    """About how long a bracket takes."""
    total = 0.0
    for rung in range(RUNGS):
        total += max(1, size >> rung) * _expected(rung, trials)
    return total


def _expected(rung: int, trials: Sequence[TuningTrial]) -> float:
    """About how long a trial of a rung takes: the mean over all trials, for its share of the epochs."""
    full = [trial.seconds / trial.share for trial in trials]
    return share_of(rung) * sum(full) / len(full)


def _bracket(attempt: Try, numbers: Sequence[int], trials: list[TuningTrial], seconds: float) -> bool:
    """Runs one bracket and appends its trials; returns whether there was time for any."""
    has_made = False
    candidates = list(numbers)
    for rung in range(RUNGS):
        figures: dict[int, float] = {}
        for number in candidates:
            known = [trial for trial in trials if trial.number == number and trial.rung == rung]
            if not known:
                if _used(trials) + _expected(rung, trials) > seconds:
                    continue
                known = [attempt(number, rung)]
                trials += known
                has_made = True
            figures[number] = known[0].figure
        # The better half advances; ties go to the earlier trial.
        best_first = sorted(figures, key=lambda number: -figures[number])
        candidates = best_first[: max(1, len(candidates) // 2)]
    return has_made


def _used(trials: Sequence[TuningTrial]) -> float:
    return sum(trial.seconds for trial in trials)
