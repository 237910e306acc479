"""The loop: goals and batches in, trained weights out. It knows nothing of language.

A step's loss is the sum over its micro-batches divided by the counts of the whole step, so cutting a step into
micro-batches never changes its gradient. The device's random numbers are reseeded from (seed, step, micro-batch).
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor, nn

from firth.data.loader import Place
from firth.nn.blocks import recompute_blocks
from firth.tensors import Batch, Encoder, Goal, Loss
from firth.train.optim import scheduled_rate
from firth.train.parallel import Forward, World, current_world, prepared_forward, reseed
from firth.train.settings import TrainConfig
from firth.train.shared_cores import share_cores

PROVISIONAL_STEPS = 5_000
"""With a time limit, the number of steps until it is known."""
SCHEDULE_STEPS = 10_000
"""With a time limit, schedules go by shares of the time, as if the run had this many steps."""


@dataclass
class Progress:
    """How far a run is: all of what a resumed run must know besides weights and optimizer."""

    steps: int
    step: int = 0
    planned_at: int = 0
    """With a time limit, the step after which the number of steps was planned_at; 0 before."""
    shares: list[float] = field(default_factory=list)
    """With a time limit, the share of it that was used up before each of the steps until then, and at its end."""
    place: Place = field(default_factory=Place)
    """The first batch not yet used."""
    sums: dict[str, Tensor] = field(default_factory=dict)
    """Losses and tallies since the last log, on the device."""
    counts: dict[str, int] = field(default_factory=dict)
    waited: float = 0.0
    """Seconds spent waiting for data since the last log."""
    tokens: int = 0
    """Tokens read since the last log."""


class Learner(nn.Module):
    """An encoder and the goals it is trained for; goals without a step of their own share one encoder pass.

    Goals `beside` them learn from every batch, whichever goal it belongs to.
    """

    def __init__(
        self, encoder: Encoder, goals: Mapping[str, Goal], *, beside: Mapping[str, Goal] | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.goals, self.beside = nn.ModuleDict(goals), nn.ModuleDict(beside or {})
        self.word_losses = [name for goal in goals.values() for name in goal.word_losses]

    def forward(self, batch: Batch) -> Loss:
        sharing = [goal for goal in self._goals(batch) if type(goal).step is Goal.step]
        own = [goal for goal in self._goals(batch) if type(goal).step is not Goal.step]
        states = self.encoder(batch) if sharing else None
        losses = [goal.loss(states, batch) for goal in sharing if states] + [
            goal.step(self.encoder, batch) for goal in own
        ]
        return Loss(
            {name: total for loss in losses for name, total in loss.sums.items()},
            {name: total for loss in losses for name, total in loss.tallies.items()},
        )

    def counts(self, batch: Batch) -> dict[str, int]:
        return {name: count for goal in self._goals(batch) for name, count in goal.counts(batch).items()}

    def _goals(self, batch: Batch) -> list[Goal]:
        """The goal a batch belongs to; all of them for running text."""
        chosen = [self.goals[batch.goal]] if batch.goal else list(self.goals.values())
        return [*chosen, *self.beside.values()]  # type: ignore[list-item]


@share_cores()
def train(
    learner: Learner,
    batches: Iterator[tuple[Place, Batch]],
    config: TrainConfig,
    *,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    on_step: Callable[[Progress, Tensor], None],
) -> None:
    """Trains until `progress.steps`; `on_step` logs, evaluates and saves, and may change the number of steps.

    With several ranks, `batches` are those of this rank.
    """
    world = current_world()
    if config.recompute:
        recompute_blocks(learner)
    forward = prepared_forward(learner, config)
    learner.train()
    while progress.step < progress.steps:
        began = time.perf_counter()
        micro_batches = list(islice(batches, config.accumulate))
        progress.waited += time.perf_counter() - began
        _accumulate(forward, learner, [batch for _, batch in micro_batches], config, progress, world)
        norm = nn.utils.clip_grad_norm_(learner.parameters(), config.optim.clip or float("inf"))
        rate = rate_at(progress.step, progress, config)
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        last_place = micro_batches[-1][0]
        # The batches of the other ranks come after this one's.
        progress.place = Place(last_place.epoch, last_place.index + world.size - world.rank)
        progress.step += 1
        on_step(progress, norm)


def rate_at(step: int, progress: Progress, config: TrainConfig) -> float:
    """The learning rate of a step; with a time limit by the share of the time that is used up."""
    if config.minutes <= 0:
        return scheduled_rate(step, progress.steps, config.optim)
    shares = progress.shares
    if 0 < progress.planned_at <= step:
        begun = shares[-1]
        share = begun + (1 - begun) * (step - progress.planned_at) / (progress.steps - progress.planned_at)
    else:
        share = shares[min(step, len(shares) - 1)] if shares else 0.0
    return scheduled_rate(share * SCHEDULE_STEPS, SCHEDULE_STEPS, config.optim)


def _accumulate(
    forward: Forward,
    learner: Learner,
    batches: list[Batch],
    config: TrainConfig,
    progress: Progress,
    world: World,
) -> None:
    """Leaves the gradient of the step's true mean in the parameters."""
    device = next(learner.parameters()).device
    own_counts = [learner.counts(batch) for batch in batches]
    names = {name for counts in own_counts for name in counts}
    summed = {name: sum(counts.get(name, 0) for counts in own_counts) for name in sorted(names)}
    counts = world.total(summed)
    kept: dict[nn.Parameter, Tensor] = {}
    for micro, batch in enumerate(batches):
        reseed(config.seed, "step", progress.step, micro, *_rank_key(world))
        if device.type == "cuda":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        loss = forward(batch.to(device))
        means = [total / max(counts[name], 1) for name, total in loss.sums.items()]
        torch.stack(means).sum().backward()  # type: ignore[no-untyped-call]
        if len(batches) > 1:
            _add_gradients(learner, kept)
        progress.tokens += batch.num_tokens
        for name, total in {**loss.sums, **loss.tallies}.items():
            total = total.detach().double()
            progress.sums[name] = progress.sums[name] + total if name in progress.sums else total
    for parameter, gradient in kept.items():
        parameter.grad = gradient
    for name, count in counts.items():
        progress.counts[name] = progress.counts.get(name, 0) + count


def _add_gradients(learner: Learner, kept: dict[nn.Parameter, Tensor]) -> None:
    """Adds the parameters' gradients to those kept, and takes them away.

    A recorded CUDA graph writes its gradients to the same memory in every replay, so they are copied out.
    """
    with_gradient = [parameter for parameter in learner.parameters() if parameter.grad is not None]
    seen = [parameter for parameter in with_gradient if parameter in kept]
    if seen:
        sums = [kept[parameter] for parameter in seen]
        new = [parameter.grad for parameter in seen if parameter.grad is not None]
        torch._foreach_add_(sums, new)
    for parameter in with_gradient:
        if parameter not in kept:
            assert parameter.grad is not None
            kept[parameter] = parameter.grad.clone()
        parameter.grad = None


def _rank_key(world: World) -> tuple[int, ...]:
    """Each rank draws its own dropout; a single one keeps the key it always had."""
    return () if world.size == 1 else (world.rank,)


__all__ = ["Learner", "Progress", "TrainConfig", "rate_at", "train"]
