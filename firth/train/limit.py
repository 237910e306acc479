"""A time limit as a number of steps: in go a run's first steps, evaluation and saved state, timed; out comes a `StepPlan`.

The plan is kept in RUN/plan.json, so that a resumed run goes on by it. Evaluations and saved states count, and where
they would take too much of the time, they come less often and read less.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from firth.config import from_dict
from firth.files import read_json

PLAN = "plan.json"
WARM_STEPS = 10
"""The first step compiles, the next ones fill caches; none of them is timed, unless there is no time for more."""
CALIBRATION_STEPS = 50
LATEST_STEPS = 200
"""By then steps are known well enough."""
SHARE = 0.1
"""Of the time: what is spent on finding out how long steps take once they are compiled, on all evaluations, and on all
saved states."""


@dataclass(frozen=True)
class StepPlan:
    """What was decided once the first steps were timed."""

    planned_at: int
    """After this step."""
    steps: int
    """Of the whole run."""
    evaluate_every: int
    checkpoint_every: int
    held_out: int = 0
    """Packs of held-out text that an evaluation reads; 0 for all."""
    shares: tuple[float, ...] = ()
    """The share of the time that was used up before each step until the plan was made, and at its making: the
    schedule follows it, and a run that is started again follows the same."""


@dataclass
class EvaluationExtent:
    """How much of the held-out text an evaluation reads."""

    packs: int = 0
    """0 for all."""
    seconds: float = math.inf
    """An evaluation that takes longer ends there, and `packs` then says how far it came."""
    share: float = 1.0
    """What was read last, of all."""


class TimeLimit:
    """Times the first steps of a run."""

    def __init__(self, minutes: float, *, first: int, wait: Callable[[], None] = lambda: None) -> None:
        """`first` is the step it begins after; `wait` returns once the device has done all it was told."""
        self.minutes, self.seconds, self.wait = minutes, minutes * 60, wait
        self.first = self.warm_step = first
        self.started = self.compiled = self.warm = time.perf_counter()

    def due(self, step: int) -> bool:
        """Whether enough steps were timed to plan by; to be asked after each."""
        done = step - self.first
        if done == 1:
            self.compiled = self._begin(step)
            return False
        left = self.seconds - (self.compiled - self.started)
        spent = (time.perf_counter() - self.compiled) / max(left, 1e-9)
        if done >= LATEST_STEPS or (done >= CALIBRATION_STEPS and spent >= SHARE) or (done > 2 and spent >= 3 * SHARE):
            return True
        if done == WARM_STEPS:
            self._begin(step)
        return False

    def share(self, step: int) -> float:
        """The share of the time that is used up; compiling does not count, because nothing is learned meanwhile."""
        if step <= self.first + 1:
            return 0.0
        left = self.seconds - (self.compiled - self.started)
        return min(1.0, (time.perf_counter() - self.compiled) / max(left, 1e-9))

    def _begin(self, step: int) -> float:
        """Times the steps from here on."""
        self.wait()
        self.warm, self.warm_step = time.perf_counter(), step
        return self.warm

    def per_step(self, step: int) -> float:
        self.wait()
        return (time.perf_counter() - self.warm) / (step - self.warm_step)

    def plan(
        self, step: int, *, per_step: float, evaluation: float, saving: float, every: tuple[int, int], held_out: int
    ) -> StepPlan:
        """The steps that fit into what is left; `every` is how often evaluations and saved states were asked for."""
        left = self.seconds - (time.perf_counter() - self.started)
        spaced = [
            max(asked, math.ceil(cost / (SHARE * per_step)))
            for asked, cost in zip(every, (evaluation, saving), strict=True)
        ]
        each = per_step + evaluation / spaced[0] + saving / spaced[1]
        last = evaluation + 2 * saving  # the last state and the model
        return StepPlan(step, step + max(1, int((left - last) / each)), spaced[0], spaced[1], held_out)

    def describe(self, plan: StepPlan, *, per_step: float, share: float, asked: int) -> str:
        """What a person is told of the plan; `asked` is how often evaluations were asked for."""
        limit = "1 minute is" if self.minutes == 1 else f"{self.minutes:g} minutes are"
        text = f"{limit} {plan.steps:,} steps at {per_step:.3f} s a step."
        if share < 1:
            text += f" An evaluation reads only {share:.1%} of the held-out text, for all would take too long."
        if asked < plan.evaluate_every < plan.steps:
            text += f" Evaluations come every {plan.evaluate_every:,} steps, not {asked:,}, for they take long."
        return text


def read_plan(folder: Path) -> StepPlan | None:
    return from_dict(StepPlan, read_json(folder / PLAN)) if (folder / PLAN).exists() else None
