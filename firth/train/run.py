"""A run and its folder: training with logs, held-out evaluation, saved states, a time limit and clean interruption."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from firth.console import bar
from firth.data.loader import Batches, Packs, Place, load, places
from firth.errors import FirthError, Interrupted
from firth.files import write_json
from firth.interrupts import Interrupts
from firth.tensors import Objective
from firth.train import state
from firth.train.journal import Journal, read_rows
from firth.train.limit import PLAN, SHARE, Extent, Limit, Plan, read_plan
from firth.train.loop import PROVISIONAL_STEPS, Learner, Progress, rate_at, train
from firth.train.optim import make_optimizer
from firth.train.parallel import current_world, in_precision, reseed
from firth.train.settings import TrainConfig

log = logging.getLogger(__name__)


class Run:
    """Everything that happens around the loop's steps."""

    def __init__(
        self,
        folder: Path,
        learner: Learner,
        *,
        packs: Batches,
        measure: Callable[[], dict[str, float]] | None,
        config: TrainConfig,
        resume: bool,
        interrupts: Interrupts,
        floor: float = 0.0,
        scale: Callable[[str], float] = lambda name: 1.0,
        label: str = "pre-training",
        extent: Extent | None = None,
    ) -> None:
        """`extent` bounds what `measure` reads where there is a time limit; `interrupts` may ask the run to stop."""
        self.folder, self.learner, self.packs, self.measure = folder, learner, packs, measure
        self.config, self.floor, self.label = config, floor, label
        self.device = next(learner.parameters()).device
        self.optimizer = make_optimizer(learner, config.optim, scale=scale)
        restored = None
        if resume:
            restored = state.restore(folder / "checkpoints", learner, optimizer=self.optimizer, report=log.warning)
        self.progress, lengths = restored or (_beginning(config), {})
        self.journal = Journal(folder, lengths=lengths)
        self.interrupts = interrupts
        self.last: dict[str, float] = {}
        self._clock = time.perf_counter()
        self.evaluate_every, self.checkpoint_every = config.evaluate_every, config.checkpoint_every
        self.extent = extent or Extent()
        wait = torch.cuda.synchronize if self.device.type == "cuda" else lambda: None
        self.limit = Limit(config.minutes, first=self.progress.step, wait=wait) if config.minutes else None
        if self.limit and resume and (plan := read_plan(folder)):
            self._follow(plan)

    def go(self) -> None:
        """Trains to the end, or saves and raises `Interrupted`."""
        addresses = current_world().share(places(self.packs, self.progress.place))
        with self.interrupts.deferred(), bar(self.label, self.progress.steps, unit="steps") as self._advance:
            batches = load(self.packs, addresses, workers=self.packs.workers)
            train(
                self.learner,
                batches,
                self.config,
                optimizer=self.optimizer,
                progress=self.progress,
                on_step=self.on_step,
            )
        self.save()
        self.journal.close()
        self._stop_if_asked()

    def on_step(self, progress: Progress, norm: Tensor) -> None:
        step, config = progress.step, self.config
        end = step == progress.steps
        if step % config.log_every == 0 or end:
            self._log(norm)
        if self.limit and not progress.settled:
            due = self.limit.due(step)
            progress.shares.append(self.limit.share(step))
            if due:
                self._settle(self.limit)
        elif step >= progress.settled:
            if self.measure and (step % self.evaluate_every == 0 or end or step == progress.settled):
                self.evaluate()
            if (step % self.checkpoint_every == 0 or step == progress.settled) and not end:
                self.save()
        if step == floor_step(progress.steps):
            self._warn_if_nothing_learned()
        shown = " ".join(f"{k} {v:.3f}" for k, v in self.last.items() if k in (*self.learner.word_losses, "rate"))
        self._advance(step, shown, progress.steps)
        if self.interrupts.requested:
            self.save()
        self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        """Raises `Interrupted` where a signal came; the state is saved by now."""
        if self.interrupts.requested:
            text = f"Stopped at step {self.progress.step}; its state is saved."
            raise Interrupted(text, number=self.interrupts.requested)

    def save(self) -> None:
        state.save(
            self.folder / "checkpoints",
            self.learner,
            optimizer=self.optimizer,
            progress=self.progress,
            files=self.journal.lengths(),
            keep=self.config.keep,
        )

    def evaluate(self) -> dict[str, float]:
        """Figures on what is held out."""
        assert self.measure is not None
        values = self.measure()
        self.journal.metrics(self.progress.step, "held-out", values)
        self.last |= {f"held_out_{k}": v for k, v in values.items()}
        return values

    def _log(self, norm: Tensor) -> None:
        progress, now = self.progress, time.perf_counter()
        values = means(progress.sums, progress.counts)
        values |= {"rate": rate_at(progress.step - 1, progress, self.config), "gradient_norm": float(norm)}
        self.journal.metrics(progress.step, "train", values)
        self.last |= values
        if not math.isfinite(sum(values.values())):
            raise FirthError(
                f"The loss is not a number at step {progress.step}; lower train.optim.rate and start again."
            )
        seconds, tokens = now - self._clock, progress.tokens
        timing = {"seconds": seconds, "tokens_per_second": tokens / seconds, "waiting": progress.waited / seconds}
        self.journal.timing(progress.step, timing)
        progress.sums, progress.counts, progress.waited, progress.tokens = {}, {}, 0.0, 0
        self._clock = now

    def _settle(self, limit: Limit) -> None:
        """Plans as many steps as the time allows, going by the first ones, an evaluation and a saved state."""
        step, config = self.progress.step, self.config
        per_step, began = limit.per_step(step), time.perf_counter()
        if self.measure:
            self.extent.seconds = limit.seconds * SHARE / 2  # there is another one at the end
            self.evaluate()
            self.extent.seconds = math.inf
        evaluated = time.perf_counter()
        self.save()
        plan = limit.plan(
            step,
            per_step=per_step,
            evaluation=evaluated - began,
            saving=time.perf_counter() - evaluated,
            every=(config.evaluate_every, config.checkpoint_every),
            held_out=self.extent.packs,
        )
        self.progress.shares[-1] = limit.share(step)
        plan = replace(plan, shares=tuple(self.progress.shares))
        write_json(self.folder / PLAN, asdict(plan))
        self._follow(plan)
        log.info(limit.told(plan, per_step=per_step, share=self.extent.share, asked=config.evaluate_every))

    def _follow(self, plan: Plan) -> None:
        self.progress.steps, self.progress.settled = plan.steps, plan.settled
        self.progress.shares = list(plan.shares)
        self.evaluate_every, self.checkpoint_every = plan.evaluate_every, plan.checkpoint_every
        self.extent.packs = plan.held_out

    def _warn_if_nothing_learned(self) -> None:
        for goal in self.learner.goals.values():
            if isinstance(goal, Objective) and (finding := goal.nothing_learned(self.last)):
                log.warning(f"at step {self.progress.step} {finding}")
        loss = next((self.last[name] for name in self.learner.word_losses if name in self.last), 0.0)
        if self.floor and loss > self.floor:
            log.warning(
                f"at step {self.progress.step} the loss {loss:.2f} has not passed the unigram floor "
                f"{self.floor:.2f}: the model has not learned more than word frequencies. Try another train.optim.rate."
            )


def _beginning(config: TrainConfig) -> Progress:
    if config.minutes:
        return Progress(PROVISIONAL_STEPS, shares=[0.0])
    return Progress(config.steps)


def held_out_figures(folder: Path) -> dict[str, float]:
    """The means of a run's last evaluation, as logged: one that is resumed at its end gives the same ones."""
    rows = [row for row in read_rows(folder / "metrics.jsonl") if row.pop("split") == "held-out"]
    return {name: value for name, value in rows[-1].items() if name != "step"} if rows else {}


def floor_step(steps: int) -> int:
    """By this step a healthy run has passed the unigram floor; shorter runs have had no chance to."""
    return max(200, steps // 5)


@torch.no_grad()
def evaluate(learner: Learner, packs: Packs, *, precision: str, extent: Extent) -> dict[str, float]:
    device = next(learner.parameters()).device
    was_training = learner.training
    learner.eval()
    forward = in_precision(learner, precision)
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    number, began = packs.num_packs(0), time.perf_counter()
    places = [Place(0, index) for index in range(extent.packs or number)]
    for place, batch in load(packs, places, workers=0):
        reseed("evaluation", place.index)  # a generator's samples are the same each time
        for name, count in learner.counts(batch).items():
            counts[name] = counts.get(name, 0) + count
        loss = forward(batch.to(device))
        for name, total in {**loss.sums, **loss.tallies}.items():
            sums[name] = sums.get(name, torch.zeros((), device=device)) + total.double()
        if time.perf_counter() - began > extent.seconds and place.index + 1 < len(places):
            extent.packs = place.index + 1
            break
    extent.share = (extent.packs or number) / number
    learner.train(was_training)
    return means(sums, counts)


def means(sums: dict[str, Tensor], counts: dict[str, int]) -> dict[str, float]:
    """Losses a count, accuracies from tallies named `<count>_correct`, and shares: the tally `x` of `x_of`."""

    def whole(name: str) -> float:
        return float(sums[f"{name}_of"]) if f"{name}_of" in sums else counts[name.removesuffix("_correct")]

    return {
        name.replace("_correct", "_accuracy"): float(total) / max(1, whole(name))
        for name, total in sorted(sums.items())  # sums that come from a saved state are in no other order
        if not name.endswith("_of")
    }
