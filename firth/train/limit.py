"""How much of a run goes to evaluations and saved states, and a time limit as a number of steps.

In go the times of a run's first steps, evaluation and saved state; out comes a `StepPlan`.

The plan is written to RUN/plan.json, and a resumed run follows it. Evaluations and saved states count. If they would
take too much of the time, they come less often and read less.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from firth.config import from_dict
from firth.files import read_json
from firth.train.settings import TrainConfig

PLAN = "plan.json"
WARM_STEPS = 10
"""The first step compiles, the next ones fill caches. None of them is timed, unless there is no time for more."""
CALIBRATION_STEPS = 50
"""Steps that are timed at least, unless they are slow."""
LATEST_STEPS = 200
"""After this many steps the time of a step is known well enough."""
SHARE = 0.1
"""The share of the time for each of these: timing steps once they are compiled, all evaluations, all saved states."""
EVALUATED_SHARE = 0.25
"""Without a time limit: the most that an evaluation reads, as a share of what is trained on between two evaluations.
Reading takes about a third of the time of training, so evaluations take less than a tenth of the run."""
FEWEST_EVALUATED_TOKENS = 65_536
"""However short a run is, its evaluations read this much: fewer tokens make a noisy figure."""


@dataclass(frozen=True)
class StepPlan:
    """What was decided once the first steps were timed."""

    planned_at: int
    """The step after which the plan was made."""
    steps: int
    """Of the whole run."""
    evaluate_every: int
    checkpoint_every: int
    held_out: int = 0
    """Packs of held-out text that an evaluation reads; 0 for all."""
    shares: tuple[float, ...] = ()
    """The share of the time that was used up before each step until the plan was made, and when it was made. The
    schedule follows these shares, also in a run that is resumed."""


@dataclass
class EvaluationExtent:
    """How much of the held-out text an evaluation reads."""

    packs: int = 0
    """0 for all."""
    seconds: float = math.inf
    """An evaluation that takes longer stops there, and `packs` then says how far it came."""
    share: float = 1.0
    """The share of the held-out text that the last evaluation read."""


def evaluation_extent(config: TrainConfig, *, tokens_of_a_pack: int) -> EvaluationExtent:
    """How much an evaluation of this run reads. With a time limit this is decided later, by the clock."""
    if config.minutes:
        return EvaluationExtent()
    trained_packs = min(config.evaluate_every, config.steps) * config.accumulate
    fewest_packs = math.ceil(FEWEST_EVALUATED_TOKENS / tokens_of_a_pack)
    return EvaluationExtent(packs=max(math.ceil(EVALUATED_SHARE * trained_packs), fewest_packs))


class TimeLimit:
    """Times the first steps of a run."""

    def __init__(self, minutes: float, *, first: int, wait: Callable[[], None] = lambda: None) -> None:
        """`first` is the step it begins after; `wait` returns once the device has finished its work."""
        self.minutes = minutes
        self.seconds = minutes * 60
        self.wait = wait
        self.first = first
        now = time.perf_counter()
        self.started = now
        self.compiled = now
        """When the first step was done."""
        self.warm = now
        """When the steps that are timed began."""
        self.warm_step = first

    def due(self, step: int) -> bool:
        """Whether enough steps were timed to plan by; called after each step."""
        done = step - self.first
        if done == 1:
            self._begin(step)
            self.compiled = self.warm
            return False
        # Timing ends after many steps, after a tenth of the time, or after three tenths if steps are slow.
        spent = self._spent_since_compiled()
        if done >= LATEST_STEPS:
            return True
        if done >= CALIBRATION_STEPS and spent >= SHARE:
            return True
        if done > 2 and spent >= 3 * SHARE:
            return True
        # From here on caches are filled, so the steps before are not timed.
        if done == WARM_STEPS:
            self._begin(step)
        return False

    def share(self, step: int) -> float:
        """The share of the time that is used up; compiling does not count, because nothing is learned meanwhile."""
        if step <= self.first + 1:
            return 0.0
        return min(1.0, self._spent_since_compiled())

    def _spent_since_compiled(self) -> float:
        left_for_steps = self.seconds - (self.compiled - self.started)
        return (time.perf_counter() - self.compiled) / max(left_for_steps, 1e-9)

    def _begin(self, step: int) -> None:
        """Times the steps from here on."""
        self.wait()
        self.warm = time.perf_counter()
        self.warm_step = step

    def per_step(self, step: int) -> float:
        """Seconds of a step, once the device has finished its work."""
        self.wait()
        # Rank 0 decides when to plan, so the clock of another rank may have begun at this very step.
        num_timed = max(1, step - self.warm_step)
        return (time.perf_counter() - self.warm) / num_timed

    def plan(
        self,
        step: int,
        *,
        per_step: float,
        evaluation: float,
        saving: float,
        every: tuple[int, int],
        held_out: int,
        compiles_again: bool = False,
    ) -> StepPlan:
        """The steps that fit into the time that is left.

        `evaluation` and `saving` are the seconds of one; `every` is how often the config wants each. If the network is
        compiled again later, for other lengths, that takes as long as the first time.
        """
        left = self.seconds - (time.perf_counter() - self.started)
        if compiles_again:
            left -= self.compiled - self.started
        evaluate_every = _spaced(every[0], cost=evaluation, per_step=per_step)
        checkpoint_every = _spaced(every[1], cost=saving, per_step=per_step)
        each = per_step + evaluation / evaluate_every + saving / checkpoint_every
        last = evaluation + 2 * saving  # the last state and the model
        steps_left = max(1, int((left - last) / each))
        return StepPlan(step, step + steps_left, evaluate_every, checkpoint_every, held_out)

    def describe(self, plan: StepPlan, *, per_step: float, share: float, requested: int) -> str:
        """The plan as sentences for the user; `requested` is how often the config wants evaluations."""
        limit = "1 minute is" if self.minutes == 1 else f"{self.minutes:g} minutes are"
        text = f"{limit} {plan.steps:,} steps at {per_step:.3f} s a step."
        if share < 1:
            text += f" An evaluation reads only {share:.1%} of the held-out text, because all would take too long."
        if requested < plan.evaluate_every < plan.steps:
            text += f" Evaluations come every {plan.evaluate_every:,} steps, not {requested:,}, because they take long."
        return text


def _spaced(requested: int, *, cost: float, per_step: float) -> int:
    """Steps between two evaluations or states, so that all of them take at most their share of the time."""
    return max(requested, math.ceil(cost / (SHARE * per_step)))


def read_plan(folder: Path) -> StepPlan | None:
    """The plan of a run; None before it was made."""
    path = folder / PLAN
    if not path.exists():
        return None
    values = dict(read_json(path))
    if "settled" in values:  # the name of the field in the first versions of firth
        values["planned_at"] = values.pop("settled")
    return from_dict(StepPlan, values)
