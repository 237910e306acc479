"""The loop: goals and batches in, trained weights out. It knows nothing of language.

A step's loss is the sum over its micro-batches divided by the counts of the whole step, so cutting a step into
micro-batches never changes its gradient. Chance on the device is reseeded from (seed, step, micro-batch).
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor, nn

from firth import chance
from firth.data.loader import Place
from firth.errors import BadConfig
from firth.nn.blocks import recompute_blocks
from firth.tensors import Batch, Encoder, Goal, Loss
from firth.train.optim import scheduled_rate
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
    settled: int = 0
    """With a time limit, the step after which the number of steps was settled; 0 before."""
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
    """Trains until `progress.steps`; `on_step` logs, evaluates and saves, and may change the number of steps."""
    device = next(learner.parameters()).device
    if config.recompute:
        recompute_blocks(learner)
    forward = compiled(in_precision(learner, config.precision), config, device)
    learner.train()
    while progress.step < progress.steps:
        if device.type == "cuda":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        began = time.perf_counter()
        micro_batches = list(islice(batches, config.accumulate))
        progress.waited += time.perf_counter() - began
        _accumulate(forward, learner, [batch for _, batch in micro_batches], config, progress, device)
        norm = nn.utils.clip_grad_norm_(learner.parameters(), config.optim.clip or float("inf"))
        for group in optimizer.param_groups:
            group["lr"] = rate_at(progress.step, progress, config) * group.get("scale", 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        last = micro_batches[-1][0]
        progress.place = Place(last.epoch, last.index + 1)
        progress.step += 1
        on_step(progress, norm)


def rate_at(step: int, progress: Progress, config: TrainConfig) -> float:
    """The learning rate of a step; with a time limit by the share of the time that is used up."""
    if config.minutes <= 0:
        return scheduled_rate(step, progress.steps, config.optim)
    shares = progress.shares
    if 0 < progress.settled <= step:
        begun = shares[-1]
        share = begun + (1 - begun) * (step - progress.settled) / (progress.steps - progress.settled)
    else:
        share = shares[min(step, len(shares) - 1)] if shares else 0.0
    return scheduled_rate(share * SCHEDULE_STEPS, SCHEDULE_STEPS, config.optim)


def in_precision(learner: Learner, precision: str) -> Callable[[Batch], Loss]:
    """The learner's forward pass in this precision. In bf16 it sees rounded copies of its fp32 weights.

    So every activation is bf16 while weights, their gradients and the optimizer stay fp32; autocast would keep the
    residual stream in fp32 and move twice the bytes.
    """
    if not in_half(precision, next(learner.parameters()).device):
        return learner

    def forward(batch: Batch) -> Loss:
        rounded = {name: p.bfloat16() for name, p in learner.named_parameters()}
        loss: Loss = torch.func.functional_call(learner, rounded, (batch,))
        return loss

    return forward


def in_half(precision: str, device: torch.device) -> bool:
    return precision == "bf16" or (precision == "auto" and device.type == "cuda")


def compiled(forward: Callable[[Batch], Loss], config: TrainConfig, device: torch.device) -> Callable[[Batch], Loss]:
    """The forward pass compiled where shapes are static: on a GPU in half precision."""
    half = in_half(config.precision, device)
    static = device.type == "cuda" and half
    if config.compile == "yes" and not static:
        raise BadConfig("train.compile=yes needs a GPU and bf16: elsewhere sequences are grouped by length.")
    compiling = static and config.compile != "no"
    if config.recompute and half and not compiling:
        raise BadConfig("train.recompute in bf16 needs torch.compile; set train.precision=fp32 or train.compile=auto.")
    if not compiling:
        return forward
    # A recorded graph spares the host the launching of every kernel, without which small models wait for the host.
    # Gradients that are added up over micro-batches would outlive the recording's memory.
    options: dict[str, str | int | bool | Callable[..., object]] = {
        "triton.cudagraphs": config.graphs and config.accumulate == 1
    }
    return torch.compile(forward, dynamic=False, fullgraph=True, options=options)


def chosen_device(name: str | None) -> torch.device:
    """The device a person named, or the GPU where there is one."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise BadConfig(f"There is no device '{name}' (known: cpu, cuda).") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadConfig("This machine has no GPU that torch can use; leave out --device or use cpu.")
    return device


def reseed(*parts: int | str) -> None:
    """Sets the device's chance to a key's."""
    torch.manual_seed(int(chance.key(*parts)) & (2**63 - 1))


def _accumulate(
    forward: Callable[[Batch], Loss],
    learner: Learner,
    batches: list[Batch],
    config: TrainConfig,
    progress: Progress,
    device: torch.device,
) -> None:
    """Adds up the gradient of the step's true mean."""
    all_counts = [learner.counts(batch) for batch in batches]
    counts = {name: sum(c.get(name, 0) for c in all_counts) for each in all_counts for name in each}
    for micro, batch in enumerate(batches):
        reseed(config.seed, "step", progress.step, micro)
        loss = forward(batch.to(device))
        torch.stack([total / max(counts[name], 1) for name, total in loss.sums.items()]).sum().backward()  # type: ignore[no-untyped-call]
        progress.tokens += batch.num_tokens
        for name, total in {**loss.sums, **loss.tallies}.items():
            total = total.detach().double()
            progress.sums[name] = progress.sums[name] + total if name in progress.sums else total
    for name, count in counts.items():
        progress.counts[name] = progress.counts.get(name, 0) + count


__all__ = ["Learner", "Progress", "TrainConfig", "in_precision", "rate_at", "reseed", "train"]
