"""A whole plan: text, a recipe and a cluster in; hours, memory, disk, transfers, the bottleneck and warnings out."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from firth.lineage import Recipe
from firth.planning import cost
from firth.planning.communication import HIDDEN_SHARE, Mode, exposed_seconds, ring_bandwidth, sent_bytes
from firth.planning.cost import Work, memory_bytes, step_seconds, work_of
from firth.planning.machines import CPU, Cluster, Device
from firth.planning.texts import TextSize
from firth.train.settings import TRAINING_BYTES, USABLE_SHARE

SHARD_BYTES = 2.5
"""Prepared text on disk, of a token: its id, and where words and sentences begin."""
STATE_FILE_BYTES = 12
"""Of a parameter in a saved state: the weight and two moments."""
PREPARED_PER_SECOND = 2.7e6
"""Bytes of text that one process prepares in a second, measured on one core."""
PREPARING_PROCESSES = 2
SECONDS_PER_HOUR = 3600
LOADED_PER_SECOND = 7.5e6
"""Tokens that one process packs and masks in a second, measured on one core."""
USABLE_MEMORY = 0.92
"""Of a device's memory: the rest is CUDA's own and lost between blocks."""
EPOCHS_ENOUGH = 40
"""More passes over a text than this teach little that is new (Muennighoff et al. 2023)."""
LEAST_STEPS = 200
"""A run with fewer steps has hardly passed its warm-up."""


@dataclass(frozen=True)
class Estimate:
    """What a run will take. Bytes are bytes, times are what their names say."""

    tokens: float
    """Of the text."""
    epochs: float
    steps: int
    tokens_per_step: int
    """Over all devices."""
    tokens_per_second: float
    """Over all devices."""
    hours: float
    device_hours: float
    price: float | None
    """Of the whole run; None if the price of an hour is not known."""
    preparing_hours: float
    """By `PREPARING_PROCESSES` processes."""
    parameters: float
    memory: float
    """Of one device."""
    fits: bool
    parallel: Mode | None
    """None for one device."""
    disk: float
    """Prepared text, states and the model."""
    sent_per_step: float
    """By each device."""
    waiting_share: float
    """Of the time that a device waits for others."""
    bottleneck: str
    warnings: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = field(default=())


def estimate(
    recipe: Recipe,
    text: TextSize,
    cluster: Cluster,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    length: float | None = None,
) -> Estimate:
    """The plan of a pre-training run. Without steps and epochs it has the recipe's own number of steps."""
    work = work_of(recipe, length=length)
    mode = _mode(recipe, work, cluster)
    step = _step(recipe, work, cluster, mode)
    if epochs is not None:
        steps = max(1, round(epochs * text.tokens / step.tokens))
    num_steps = steps or recipe.train.steps
    hours = _hours(num_steps, step, cluster.device)
    device_hours = hours * cluster.size
    memory = memory_bytes(work, cluster.device, shares=_shares(mode, cluster))
    price = None
    if cluster.price:
        price = device_hours * cluster.price
    sent_per_step = 0.0
    if mode:
        micro_batches = _micro_batches(recipe, cluster)
        sent_per_step = sent_bytes(work.parameters, cluster, mode, micro_batches=micro_batches)
    result = Estimate(
        tokens=text.tokens,
        epochs=num_steps * step.tokens / text.tokens,
        steps=num_steps,
        tokens_per_step=step.tokens,
        tokens_per_second=step.tokens / step.seconds,
        hours=hours,
        device_hours=device_hours,
        price=price,
        preparing_hours=_preparing_hours(text),
        parameters=work.parameters,
        memory=memory,
        fits=memory < USABLE_MEMORY * cluster.device.memory,
        parallel=mode,
        disk=_disk(recipe, work, text),
        sent_per_step=sent_per_step,
        waiting_share=step.waiting / step.seconds,
        bottleneck=_bottleneck(work, cluster, step),
    )
    warnings = tuple(_warnings(result, recipe, cluster))
    return replace(result, warnings=warnings, assumptions=tuple(_assumptions(result, text, cluster)))


@dataclass(frozen=True)
class _PlannedStep:
    """A step of all devices together."""

    tokens: int
    computing: float
    """Seconds in which a device computes."""
    waiting: float
    """Seconds in which it waits for others."""

    @property
    def seconds(self) -> float:
        return self.computing + self.waiting


def _step(recipe: Recipe, work: Work, cluster: Cluster, mode: Mode | None) -> _PlannedStep:
    micro_batches = _micro_batches(recipe, cluster)
    computing = step_seconds(work, cluster.device, micro_batches=micro_batches, shares=_shares(mode, cluster))
    waiting = 0.0
    if mode:
        waiting = exposed_seconds(work.parameters, cluster, mode, computing=computing, micro_batches=micro_batches)
    return _PlannedStep(work.tokens * micro_batches * cluster.size, computing, waiting)


def _hours(num_steps: int, step: _PlannedStep, device: Device) -> float:
    """Of the whole run, with its evaluations, its states and its start."""
    seconds_of_steps = num_steps * step.seconds * (1 + cost.EVALUATION_SHARE)
    start = cost.START_SECONDS["cpu" if device.name == CPU else "gpu"]
    return (seconds_of_steps + start) / SECONDS_PER_HOUR


def _preparing_hours(text: TextSize) -> float:
    bytes_per_second = PREPARING_PROCESSES * PREPARED_PER_SECOND
    return text.num_bytes / bytes_per_second / SECONDS_PER_HOUR


def _micro_batches(recipe: Recipe, cluster: Cluster) -> int:
    """Micro-batches of a step on each device, as `train.accumulate` counts those of all."""
    return max(1, round(recipe.train.accumulate / cluster.size))


def _mode(recipe: Recipe, work: Work, cluster: Cluster) -> Mode | None:
    """How several devices share the work, as `train.parallel=auto` chooses."""
    if cluster.size == 1:
        return None
    if recipe.train.parallel != "auto":
        return recipe.train.parallel
    is_whole = recipe.train.optim.optimizer == "muon" or cluster.device.name == CPU
    fits = TRAINING_BYTES * work.parameters < USABLE_SHARE * cluster.device.memory
    return "ddp" if is_whole or fits else "fsdp"


def _shares(mode: Mode | None, cluster: Cluster) -> int:
    return cluster.size if mode == "fsdp" else 1


def _disk(recipe: Recipe, work: Work, text: TextSize) -> float:
    # A new state is complete before the oldest is deleted.
    states = (recipe.train.keep + 1) * STATE_FILE_BYTES * work.parameters
    model = 4 * work.parameters
    return SHARD_BYTES * text.tokens + states + model


def _bottleneck(work: Work, cluster: Cluster, step: _PlannedStep) -> str:
    """What takes most of a step's time."""
    if step.waiting > step.computing:
        return "the network between machines" if cluster.machines > 1 else "the links between GPUs"
    device = cluster.device
    # At the measured rate of large products, which is the least they can take.
    products = work.tokens * work.flops / device.flops / device.speed
    return "matrix products" if products > step_seconds(work, device) / 2 else "memory bandwidth"


def _warnings(result: Estimate, recipe: Recipe, cluster: Cluster) -> Iterator[str]:
    """What the user should know before paying."""
    device = cluster.device
    if not result.fits:
        remedies = ["lower batches.tokens (and raise train.accumulate)"]
        if not recipe.train.recompute:
            remedies.append("train.recompute=true")
        if result.parallel == "ddp" and recipe.train.optim.optimizer != "muon":
            remedies.append("train.parallel=fsdp")
        yield (
            f"It does not fit: {result.memory / 1e9:.1f} GB of {device.memory / 1e9:.0f} GB "
            f"a device; try {', '.join(remedies)}."
        )
    accumulate = recipe.train.accumulate
    if accumulate > 1 and accumulate % cluster.size:
        yield (
            f"A step has {accumulate} micro-batches (train.accumulate), which {cluster.size} devices cannot share "
            f"equally; the run would stop. The plan has {result.tokens_per_step // recipe.batches.tokens}."
        )
    if recipe.train.parallel == "fsdp" and recipe.train.optim.optimizer == "muon" and cluster.size > 1:
        yield "Muon needs whole matrices, so the run would refuse train.parallel=fsdp; use train.parallel=ddp."
    if result.waiting_share > 0.3:
        yield (
            f"Devices wait for each other {result.waiting_share:.0%} of the time; fewer of them, or more micro-batches "
            "a step (train.accumulate), cost less."
        )
    if result.epochs > EPOCHS_ENOUGH:
        yield f"The run reads the text {result.epochs:.0f} times; more text would teach more."
    if result.steps < LEAST_STEPS:
        yield f"The run has only {result.steps} steps; smaller ones (batches.tokens) would learn more."
    per_device = result.tokens_per_second / cluster.size
    workers_needed = per_device / LOADED_PER_SECOND
    if device.name != CPU and recipe.batches.workers < workers_needed:
        yield f"Set batches.workers={max(2, round(2 * workers_needed))}, or the GPU waits for batches."


def _assumptions(result: Estimate, text: TextSize, cluster: Cluster) -> Iterator[str]:
    device = cluster.device
    yield f"Tokens: {text.counted}."
    if device.source == "measured":
        yield f"The speed of one device is from measured runs ({device.name}); docs/results.md has how close they were."
    elif device.source == "probe":
        yield f"The speed of one device was measured here: {device.speed:.2f} times what the cost model predicts."
    else:
        yield f"The {device.name} was not measured: its data sheet, and the share of it that an H200 reaches."
    yield f"Evaluations and states take {cost.EVALUATION_SHARE:.0%} of the time."
    if cluster.size > 1:
        gigabytes = ring_bandwidth(cluster) / 1e9
        yield (
            f"Several devices are a projection: a ring at {gigabytes:.1f} GB/s. Nothing that ddp sends is hidden "
            f"behind computing; what fsdp sends is, for up to {HIDDEN_SHARE:.0%} of the time of computing."
        )
