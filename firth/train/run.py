"""A training run in its folder: logs, held-out evaluation, saved states, a time limit and clean interruption.

In: a learner, its batches and a folder. Out: trained weights, and the logs and states in the folder. With several ranks
only rank 0 writes files.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from firth.console import bar
from firth.data.loader import BatchAddress, Batches, is_lost_worker, load, places
from firth.errors import FirthError, Interrupted, LostRank, Resumable
from firth.files import write_json
from firth.interrupts import Interrupts
from firth.tensors import Goal
from firth.train import state
from firth.train.evaluation import means
from firth.train.journal import METRICS, Journal, read_rows
from firth.train.limit import PLAN, SHARE, EvaluationExtent, StepPlan, TimeLimit, read_plan
from firth.train.loop import PROVISIONAL_STEPS, Learner, Progress, rate_at, train
from firth.train.optim import make_optimizer
from firth.train.parallel import current_world, is_lost_rank
from firth.train.settings import TrainConfig
from firth.train.sharding import copy_whole, parallel_mode, sharded_copy, whole_weights

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"

Measure = Callable[[], dict[str, float]]
"""Gives the held-out figures."""


@dataclass(frozen=True)
class LastPhase:
    """The batches of a run's last steps, where these differ from those before."""

    packs: Batches
    measure: Measure | None
    share: float
    """Of the steps."""

    def first_step(self, steps: int) -> int:
        """The steps before this phase begins, in a run of so many."""
        return steps - max(1, round(steps * self.share))


class TrainingRun:
    """Everything that happens around the steps of the loop."""

    def __init__(
        self,
        folder: Path,
        learner: Learner,
        *,
        packs: Batches,
        measure: Measure | None,
        config: TrainConfig,
        resume: bool,
        interrupts: Interrupts,
        floor: float = 0.0,
        scale: Callable[[str], float] = lambda name: 1.0,
        label: str = "pre-training",
        extent: EvaluationExtent | None = None,
        last_phase: LastPhase | None = None,
        needs_whole: str = "",
    ) -> None:
        """`measure` gives the held-out figures, and `extent` bounds what it reads if there is a time limit.

        `floor` is the entropy of the unigrams, `scale` a parameter's share of the learning rate. `interrupts` may ask
        the run to stop. `needs_whole` is why ranks cannot share the weights, if they cannot.
        """
        self.folder = folder
        self.learner = learner
        """What is evaluated and saved as a model."""
        self.trained = learner
        """What is trained: the learner itself, or its copy of which each rank holds a share."""
        self.packs = packs
        self.measure = measure
        self.last_phase = last_phase
        self.config = config
        self.interrupts = interrupts
        self.floor = floor
        self.label = label
        self.extent = extent or EvaluationExtent()
        self.world = current_world()
        self.device = next(learner.parameters()).device
        if parallel_mode(learner, config, obstacle=needs_whole) == "fsdp":
            self.trained = sharded_copy(learner, config)
            learner.cpu()
        self.optimizer = make_optimizer(self.trained, config.optim, scale=scale)
        self.progress, lengths = self._begin_or_resume(resume)
        self.journal = Journal(folder, lengths=lengths, writes=self.world.is_main)
        self.last: dict[str, float] = {}
        """The newest value of every figure."""
        self._clock = time.perf_counter()
        self.evaluate_every = config.evaluate_every
        self.checkpoint_every = config.checkpoint_every
        self.limit: TimeLimit | None = None
        if config.minutes:
            self.limit = TimeLimit(config.minutes, first=self.progress.step, wait=self._wait_for_device)
            plan = read_plan(folder) if resume else None
            if plan is not None:
                self._follow(plan)

    def _begin_or_resume(self, resume: bool) -> tuple[Progress, Mapping[str, int]]:
        """The progress of a new or a saved run, and the sizes of its logs."""
        restored = None
        if resume:
            restored = state.restore(
                self.folder / CHECKPOINTS, self.trained, optimizer=self.optimizer, report=self._warn
            )
        if restored is not None:
            return restored
        if self.config.minutes:
            return Progress(PROVISIONAL_STEPS, shares=[0.0]), {}
        return Progress(self.config.steps), {}

    def _wait_for_device(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _inform(self, text: str) -> None:
        """Logs a message once, however many ranks there are."""
        if self.world.is_main:
            log.info(text)

    def _warn(self, text: str) -> None:
        """Logs a warning once, however many ranks there are."""
        if self.world.is_main:
            log.warning(text)

    def go(self) -> None:
        """Trains to the end, or saves and raises `Interrupted`. At the end the learner is whole and on its device."""
        try:
            self._train()
            if self.trained.is_sharded:
                copy_whole(self.trained, self.learner)
        except RuntimeError as error:
            if is_lost_worker(error):
                lost = "A process that makes batches was lost, perhaps for lack of memory (batches.workers),"
                raise Resumable(f"{lost} {self._where()}.") from None
            if self.world.size > 1 and is_lost_rank(error):
                raise LostRank(f"A process of the run was lost {self._where()}.") from None
            raise
        finally:
            self.journal.close()

    def _where(self) -> str:
        """How far the run came, and which state is saved."""
        last = state.newest_step(self.folder / CHECKPOINTS)
        kept = f"the state of step {last} is saved" if last else "no state was saved before"
        return f"after step {self.progress.step}; {kept}"

    def _train(self) -> None:
        with self.interrupts.deferred(), bar(self.label, self.progress.steps, unit="steps") as self._advance:
            last = self.last_phase
            if last is None:
                self._train_on(self.packs)
            else:
                self._train_on(self.packs, until=lambda: self._last_phase_begins_at(last))
                self._begin_last_phase(last)
                self._train_on(last.packs)
        self.save()
        self._stop_if_requested()

    def _train_on(self, packs: Batches, *, until: Callable[[], int] | None = None) -> None:
        """Trains to the end, or to the step that `until` gives; does nothing if that is behind."""
        if until is not None and self.progress.step >= until():
            return
        addresses = self.world.share(places(packs, self.progress.place))
        train(
            self.trained,
            load(packs, addresses, workers=packs.workers),
            self.config,
            optimizer=self.optimizer,
            progress=self.progress,
            on_step=self.on_step,
            until=until,
        )

    def _begin_last_phase(self, last: LastPhase) -> None:
        """Goes over to the batches of the last steps; in a run that is resumed there, their address is known."""
        self.measure = last.measure
        if self.progress.step == self._last_phase_begins_at(last):
            # A new epoch, so that the draws are new. The epoch of the last batch is the same on all ranks.
            place = self.progress.place
            before = BatchAddress(place.epoch, max(0, place.index - 1))
            last_batch = next(places(self.packs, before))
            self.progress.place = BatchAddress(last_batch.epoch + 1)

    def _last_phase_begins_at(self, last: LastPhase) -> int:
        """The step before the last phase. If the steps are planned after it should have begun, it begins at once."""
        return max(last.first_step(self.progress.steps), self.progress.planned_at)

    def on_step(self, progress: Progress, norm: Tensor) -> None:
        """Logs, evaluates, saves and warns after a step, as often as the config says."""
        step = progress.step
        is_last = step == progress.steps
        if step % self.config.log_every == 0 or is_last:
            self._log(norm)
        if self.limit and not progress.planned_at:
            self._time_step(self.limit)
        elif step >= progress.planned_at:
            self._evaluate_and_save(step, is_last=is_last)
        # Checked once, when a healthy run has passed the floor.
        if step == floor_step(progress.steps):
            self._warn_if_nothing_learned()
        self._show_progress()
        self._stop_if_requested()

    def _time_step(self, limit: TimeLimit) -> None:
        """Times one of the first steps of a run with a time limit, and plans the rest once enough were timed."""
        step = self.progress.step
        # Clocks differ between ranks, and the learning rate follows the share.
        is_due, share = self.world.from_main((limit.due(step), limit.share(step)))
        self.progress.shares.append(share)
        if is_due:
            self._plan_steps(limit)

    def _evaluate_and_save(self, step: int, *, is_last: bool) -> None:
        is_planned_now = step == self.progress.planned_at
        if self.measure and (step % self.evaluate_every == 0 or is_last or is_planned_now):
            self.evaluate()
        # The state after the last step is saved at the end of the run.
        if (step % self.checkpoint_every == 0 or is_planned_now) and not is_last:
            self.save()

    def _show_progress(self) -> None:
        losses = {*self.learner.word_losses, *self.learner.goals}
        shown = []
        for name, value in self.last.items():
            if name in losses:
                shown.append(f"{name} {value:.3f}")
        if "rate" in self.last:
            shown.append(f"rate {self.last['rate']:.1e}")
        self._advance(self.progress.step, " ".join(shown), self._expected_steps())

    def _expected_steps(self) -> int:
        """The steps of the run; with a time limit an estimate until they are planned."""
        progress = self.progress
        share = progress.shares[-1] if progress.shares else 0.0
        if self.limit is None or progress.planned_at or share == 0.0:
            return progress.steps
        return max(progress.step + 1, round(progress.step / share))

    def _stop_if_requested(self) -> None:
        """Saves the state and raises `Interrupted` if a signal came, to whichever rank."""
        number = self.world.greatest(self.interrupts.requested)
        if number:
            self.save()  # does nothing if the state of this step is already there
            raise Interrupted(f"Stopped at step {self.progress.step}; its state is saved.", number=number)

    def save(self) -> None:
        """Writes the state of this step."""
        state.save(
            self.folder / CHECKPOINTS,
            self.trained,
            optimizer=self.optimizer,
            progress=self.progress,
            files=self.journal.lengths(),
            keep=self.config.keep,
        )

    def evaluate(self) -> dict[str, float]:
        """Measures and logs the held-out figures."""
        assert self.measure is not None
        with whole_weights(self.learner, self.trained):
            values = self.measure()
        self.journal.metrics(self.progress.step, "held-out", values)
        for name, value in values.items():
            self.last[f"held_out_{name}"] = value
        return values

    def _log(self, norm: Tensor) -> None:
        """Writes the means since the last log row, and starts new sums."""
        progress = self.progress
        now = time.perf_counter()
        values = means(state.total_sums(progress), progress.counts)
        values["rate"] = rate_at(progress.step - 1, progress, self.config)
        values["gradient_norm"] = float(norm)
        self.journal.metrics(progress.step, "train", values)
        self.last |= values
        # Logged first, so that the row shows which figure diverged.
        if not math.isfinite(sum(values.values())):
            raise FirthError(
                f"The loss diverged (NaN or infinite) at step {progress.step}; begin again with a lower "
                "train.optim.rate and another `out=`."
            )
        # Rates differ from run to run, so they are not in the metrics.
        seconds = now - self._clock
        tokens = self.world.total({"tokens": progress.tokens})
        timing = {
            "seconds": seconds,
            "tokens_per_second": tokens["tokens"] / seconds,
            "waiting": progress.waited / seconds,
        }
        self.journal.timing(progress.step, timing)
        progress.sums = {}
        progress.counts = {}
        progress.waited = 0.0
        progress.tokens = 0
        self._clock = now

    def _plan_steps(self, limit: TimeLimit) -> None:
        """Plans as many steps as the time allows, from the times of the first ones, an evaluation and a state."""
        step = self.progress.step
        per_step = limit.per_step(step)
        began = time.perf_counter()
        if self.measure:
            self.extent.seconds = limit.seconds * SHARE / 2  # there is another evaluation at the end
            self.evaluate()
            self.extent.seconds = math.inf
        evaluated = time.perf_counter()
        self.save()
        plan = limit.plan(
            step,
            per_step=per_step,
            evaluation=evaluated - began,
            saving=time.perf_counter() - evaluated,
            every=(self.config.evaluate_every, self.config.checkpoint_every),
            held_out=self.extent.packs,
            compiles_again=self.last_phase is not None,
        )
        # The evaluation and the state took time as well, so the schedule continues from now.
        self.progress.shares[-1] = limit.share(step)
        plan = replace(plan, shares=tuple(self.progress.shares))
        plan = self.world.from_main(plan)
        self.world.on_main(lambda: write_json(self.folder / PLAN, asdict(plan)))
        self._follow(plan)
        self._inform(
            limit.describe(plan, per_step=per_step, share=self.extent.share, requested=self.config.evaluate_every)
        )

    def _follow(self, plan: StepPlan) -> None:
        self.progress.steps = plan.steps
        self.progress.planned_at = plan.planned_at
        self.progress.shares = list(plan.shares)
        self.evaluate_every = plan.evaluate_every
        self.checkpoint_every = plan.checkpoint_every
        self.extent.packs = plan.held_out

    def _warn_if_nothing_learned(self) -> None:
        step = self.progress.step
        for goal in self.learner.goals.values():
            finding = goal.nothing_learned(self.last) if isinstance(goal, Goal) else ""
            if finding:
                self._warn(f"at step {step} {finding}")
        word_losses = [self.last[name] for name in self.learner.word_losses if name in self.last]
        if not self.floor or not word_losses:
            return
        loss = word_losses[0]
        if loss > self.floor:
            self._warn(
                f"at step {step} the loss {loss:.2f} has not passed the unigram floor "
                f"{self.floor:.2f}: the model has not learned more than word frequencies. Try another train.optim.rate."
            )


def held_out_figures(folder: Path) -> dict[str, float]:
    """The means of a run's last evaluation, as logged: a run that is resumed at its end gives the same ones."""
    held_out = [row for row in read_rows(folder / METRICS) if row["split"] == "held-out"]
    if not held_out:
        return {}
    return {name: value for name, value in held_out[-1].items() if name not in ("step", "split")}


def floor_step(steps: int) -> int:
    """By this step a healthy run has passed the unigram floor; shorter runs may not have."""
    return max(200, steps // 5)
