"""The training loop: goals and batches in, trained weights out. It knows nothing about language.

A step's loss is the sum over its micro-batches divided by the counts of the whole step, so cutting a step into
micro-batches never changes its gradient. The device's random numbers are reseeded from (seed, step, micro-batch).
Several ranks deal the micro-batches of a step among themselves, so their number changes neither data nor dropout.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor, nn

from firth.data.loader import BatchAddress
from firth.nn.blocks import recompute_blocks
from firth.tensors import Batch, Encoder, Goal, Loss
from firth.train.kept_memory import keep_memory
from firth.train.optim import scheduled_rate
from firth.train.parallel import Forward, World, current_world, micro_batches_of_rank, prepared_forward, reseed
from firth.train.settings import TrainConfig
from firth.train.shared_cores import share_cores
from firth.train.whole import whole

PROVISIONAL_STEPS = 5_000
"""With a time limit, the number of steps before the real one is planned."""
SCHEDULE_STEPS = 10_000
"""With a time limit, schedules go by shares of the time, as if the run had this many steps."""


@dataclass
class Progress:
    """How far a run is: all that a resumed run must know besides weights and optimizer."""

    steps: int
    step: int = 0
    planned_at: int = 0
    """With a time limit, the step after which the number of steps was planned; 0 before."""
    shares: list[float] = field(default_factory=list)
    """With a time limit, the share of it that was used up before each of the steps until then, and at its end."""
    place: BatchAddress = field(default_factory=BatchAddress)
    """The first batch not yet used."""
    sums: dict[str, Tensor] = field(default_factory=dict)
    """Losses and tallies of this rank since the last log, on the device."""
    counts: dict[str, int] = field(default_factory=dict)
    """The denominators of the sums, over all ranks."""
    waited: float = 0.0
    """Seconds spent waiting for data since the last log."""
    tokens: int = 0
    """Tokens that this rank read since the last log."""


class Learner(nn.Module):
    """An encoder and the goals it is trained for. All goals share one pass of the encoder.

    `auxiliary` goals learn from every batch, whichever goal it belongs to.
    """

    is_sharded: ClassVar[bool] = False
    """Whether each rank holds a share of the weights only."""

    def __init__(
        self,
        encoder: Encoder,
        goals: Mapping[str, Goal],
        *,
        auxiliary: Mapping[str, Goal] | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.goals = nn.ModuleDict(goals)
        self.auxiliary = nn.ModuleDict(auxiliary or {})
        self.word_losses: list[str] = []
        for goal in goals.values():
            self.word_losses += goal.word_losses

    def forward(self, batch: Batch) -> Loss:
        goals = self._goals(batch)
        losses: list[Loss] = []
        for goal in goals:
            batch, loss = goal.rewrite(batch)
            losses.append(loss)
        needs_layers = any(goal.needs_layers for goal in goals)
        states = self.encoder(batch, layers=True) if needs_layers else self.encoder(batch)
        for goal in goals:
            losses.append(goal.loss(states, batch))
        sums: dict[str, Tensor] = {}
        tallies: dict[str, Tensor] = {}
        for loss in losses:
            sums.update(loss.sums)
            tallies.update(loss.tallies)
        return Loss(sums, tallies)

    def counts(self, batch: Batch) -> dict[str, int]:
        """The denominators of the losses on a batch, by name."""
        counts: dict[str, int] = {}
        for goal in self._goals(batch):
            counts.update(goal.counts(batch))
        return counts

    def _goals(self, batch: Batch) -> list[Goal]:
        """The goal a batch belongs to, or all of them for running text; and the auxiliary ones."""
        chosen = list(self.goals.values())
        if batch.goal:
            chosen = [self.goals[batch.goal]]
        return [*chosen, *self.auxiliary.values()]  # type: ignore[list-item]


@share_cores()
@keep_memory()
def train(
    learner: Learner,
    batches: Iterator[tuple[BatchAddress, Batch]],
    config: TrainConfig,
    *,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    on_step: Callable[[Progress, Tensor], None],
    until: Callable[[], int] | None = None,
) -> None:
    """Trains until `progress.steps`; `on_step` logs, evaluates and saves, and may change the number of steps.

    With several ranks, `batches` are those of this rank. If given, `until` says before which step to return, as far as
    is known now.
    """
    world = current_world()
    num_micro_batches = micro_batches_of_rank(config)
    if config.recompute:
        recompute_blocks(learner)
    forward = prepared_forward(learner, config)
    encoder_weights = [parameter for parameter in learner.encoder.parameters() if parameter.requires_grad]
    # Weights that get no gradient save time, but CUDA graphs and shares of weights cannot change that midway.
    can_freeze = next(learner.parameters()).device.type == "cpu" and not learner.is_sharded
    learner.train()
    while progress.step < progress.steps and (until is None or progress.step < until()):
        began = time.perf_counter()
        micro_batches = list(islice(batches, num_micro_batches))
        # Waiting for data shows in timing.jsonl if workers are too slow.
        progress.waited += time.perf_counter() - began
        heads_alone = _share_done(progress, config) < config.optim.heads_first
        if config.optim.heads_first and can_freeze:
            _let_learn(encoder_weights, not heads_alone)
        _accumulate(forward, learner, [batch for _, batch in micro_batches], config, progress, world)
        if heads_alone:
            _drop_gradients(encoder_weights)
        # The norm is that before clipping; an infinite limit only measures it.
        norm = whole(nn.utils.clip_grad_norm_(learner.parameters(), config.optim.clip or float("inf")))
        rate = rate_at(progress.step, progress, config)
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        last_place = micro_batches[-1][0]
        # The batches of the other ranks come after this one's.
        progress.place = BatchAddress(last_place.epoch, last_place.index + world.size - world.rank)
        progress.step += 1
        on_step(progress, norm)
    if config.optim.heads_first and can_freeze:
        _let_learn(encoder_weights, True)


def rate_at(step: int, progress: Progress, config: TrainConfig) -> float:
    """The learning rate of a step; with a time limit by the share of the time that is used up."""
    if config.minutes <= 0:
        return scheduled_rate(step, progress.steps, config.optim)
    share = _time_share(step, progress)
    return scheduled_rate(share * SCHEDULE_STEPS, SCHEDULE_STEPS, config.optim)


def _share_done(progress: Progress, config: TrainConfig) -> float:
    """The share of the steps that are done, or of the time limit."""
    if config.minutes <= 0:
        return progress.step / progress.steps
    return _time_share(progress.step, progress)


def _let_learn(weights: Sequence[nn.Parameter], learn: bool) -> None:
    """Sets whether these weights get gradients."""
    for weight in weights:
        weight.requires_grad_(learn)


def _drop_gradients(weights: Sequence[nn.Parameter]) -> None:
    """Without a gradient, the optimizer leaves a weight and its memory of it alone."""
    for weight in weights:
        weight.grad = None


def _time_share(step: int, progress: Progress) -> float:
    """The share of the time limit before a step: measured until the steps are planned, then in equal parts."""
    shares = progress.shares
    if 0 < progress.planned_at <= step:
        share_at_plan = shares[-1]
        planned_steps = progress.steps - progress.planned_at
        return share_at_plan + (1 - share_at_plan) * (step - progress.planned_at) / planned_steps
    if not shares:
        return 0.0
    return shares[min(step, len(shares) - 1)]


def _accumulate(
    forward: Forward,
    learner: Learner,
    batches: list[Batch],
    config: TrainConfig,
    progress: Progress,
    world: World,
) -> None:
    """Leaves the gradient of the step's true mean, over all ranks, in the parameters."""
    device = next(learner.parameters()).device
    counts = _step_counts(learner, batches, world)
    kept: dict[nn.Parameter, Tensor] = {}
    for micro, batch in enumerate(batches):
        # Its number among the micro-batches of all ranks.
        number = micro * world.size + world.rank
        reseed(config.seed, "step", progress.step, number)
        if device.type == "cuda":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        loss = forward(batch.to(device))
        # Each sum is divided by the count of the whole step, not of this micro-batch.
        means = [total / max(counts[name], 1) for name, total in loss.sums.items()]
        torch.stack(means).sum().backward()  # type: ignore[no-untyped-call]
        if len(batches) > 1 and not learner.is_sharded:
            _add_gradients(learner, kept)
        progress.tokens += batch.num_tokens + (batch.source.num_tokens if batch.source else 0)
        _add_sums(progress, loss)
    for parameter, gradient in kept.items():
        parameter.grad = gradient
    # The losses are divided by the counts of all ranks, so the gradients of the ranks only have to be added. Sharded
    # weights have done so in each backward pass.
    if not learner.is_sharded:
        world.add_gradients(learner.parameters())
    for name, count in counts.items():
        progress.counts[name] = progress.counts.get(name, 0) + count


def _step_counts(learner: Learner, batches: list[Batch], world: World) -> dict[str, int]:
    """The denominators of a step: over all its micro-batches and all ranks."""
    own_counts: dict[str, int] = {}
    for batch in batches:
        for name, count in learner.counts(batch).items():
            own_counts[name] = own_counts.get(name, 0) + count
    return world.total(own_counts)


def _add_sums(progress: Progress, loss: Loss) -> None:
    """Adds a micro-batch's losses and tallies to those since the last log; nothing waits for the device."""
    for name, total in {**loss.sums, **loss.tallies}.items():
        total = total.detach().double()
        if name in progress.sums:
            total = progress.sums[name] + total
        progress.sums[name] = total


def _add_gradients(learner: Learner, kept: dict[nn.Parameter, Tensor]) -> None:
    """Moves the parameters' gradients into the sums in `kept`.

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


__all__ = ["Learner", "Progress", "TrainConfig", "rate_at", "train"]
