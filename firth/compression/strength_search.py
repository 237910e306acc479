"""The search for a strength: strengths from mild to strong and a measuring function in, the strength to take out.

Scores should fall and speeds rise from one strength to the next, so a bisection measures only a few of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from firth.config import check_limits
from firth.errors import BadConfig


@dataclass(frozen=True)
class Wanted:
    """What the compressed model must reach."""

    keep: float | None = None
    """The least share of the original's score; None accepts any."""
    faster: float | None = None
    """The least speed as a multiple of the original's, in batches; None accepts any."""

    def __post_init__(self) -> None:
        if self.keep is not None and not 0 < self.keep <= 1:
            raise BadConfig(f"`keep=` is a share of the score, above 0 and up to 1; it is {self.keep}.")
        check_limits(faster=self.faster)

    @property
    def is_searched(self) -> bool:
        return self.keep is not None or self.faster is not None


@dataclass(frozen=True)
class Trial:
    """What one strength reaches."""

    kept: float
    """Its score as a share of the original's."""
    speedup: float
    """Its speed as a multiple of the original's."""

    def keeps_score(self, wanted: Wanted) -> bool:
        return wanted.keep is None or self.kept >= wanted.keep

    def is_fast(self, wanted: Wanted) -> bool:
        return wanted.faster is None or self.speedup >= wanted.faster


@dataclass(frozen=True)
class Chosen:
    """The strength to take."""

    number: int
    reached: bool
    """Whether it is what was wanted; otherwise it is the best that was found."""


def search(count: int, measure: Callable[[int], Trial], wanted: Wanted) -> Chosen:
    """Which of `count` strengths, from mild to strong, to take.

    If a speed is wanted, this is the mildest one that reaches it, otherwise the strongest one that keeps the score. If
    no strength reaches all, it is the strongest one that keeps the score, or else the mildest.
    """
    trials: dict[int, Trial] = {}

    def trial(number: int) -> Trial:
        if number not in trials:
            trials[number] = measure(number)
        return trials[number]

    if wanted.faster is not None:
        fast = _first(count, lambda number: trial(number).is_fast(wanted))
        if fast < count and trial(fast).keeps_score(wanted):
            return Chosen(fast, reached=True)
    if wanted.keep is None:
        return Chosen(count - 1, reached=False)
    too_strong = _first(count, lambda number: not trial(number).keeps_score(wanted))
    best = max(too_strong - 1, 0)
    reached = trial(best).keeps_score(wanted) and trial(best).is_fast(wanted)
    return Chosen(best, reached)


def _first(count: int, is_true: Callable[[int], bool]) -> int:
    """The first number below `count` for which it is true; `count` if there is none."""
    low = 0
    high = count
    while low < high:
        middle = (low + high) // 2
        if is_true(middle):
            high = middle
        else:
            low = middle + 1
    return low
