"""The plan that a user asks for: names and numbers in, an estimate and what it was made from out (`firth.plan`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firth.arguments import checked
from firth.errors import BadConfig
from firth.lineage import Recipe
from firth.planning import machines as known_machines
from firth.planning import texts
from firth.planning.estimate import Estimate, estimate
from firth.planning.machines import Cluster
from firth.planning.texts import TextSize
from firth.pretraining.planning import PretrainRequest, resolve_config

TABLE_BYTES = (1e9, 1e10, 1e11, 1e12)
TABLE_DEVICES = (1, 8, 64, 1000)
MACHINE_DEVICES = 8
"""Of the machines in the table, at most."""
MAX_EPOCHS = 1e9


@dataclass(frozen=True)
class PlannedRun:
    """A plan with what it was made from."""

    recipe: Recipe
    cluster: Cluster
    text: TextSize
    estimate: Estimate

    def table(self, sizes: Sequence[float] = TABLE_BYTES, devices: Sequence[int] = TABLE_DEVICES) -> list["TableRow"]:
        """One pass over texts of these sizes on these numbers of devices, in machines of up to eight."""
        bytes_per_token = self.text.num_bytes / self.text.tokens
        rows: list[TableRow] = []
        for num_bytes in sizes:
            text = TextSize(num_bytes, num_bytes / bytes_per_token, self.text.counted)
            for count in devices:
                in_machine = _devices_of_machine(count)
                larger = replace(self.cluster, devices=in_machine, machines=count // in_machine)
                rows.append(TableRow(num_bytes, count, estimate(self.recipe, text, larger, epochs=1.0)))
        return rows


@dataclass(frozen=True)
class TableRow:
    """One pass over a text on a number of devices."""

    num_bytes: float
    devices: int
    estimate: Estimate


def _devices_of_machine(count: int) -> int:
    """How many devices each machine has, so that machines of one kind have `count` in all."""
    return max(size for size in range(1, MACHINE_DEVICES + 1) if count % size == 0)


@checked
def plan(
    *,
    text: str | Path | Sequence[str | Path] = (),
    text_size: str | None = None,
    recipe: str = "bert",
    size: str = "base",
    vocab_size: int = 30_000,
    steps: int | None = None,
    epochs: float | None = None,
    gpu: str = "H200",
    gpus: int = 1,
    machines: int = 1,
    network: float = 100.0,
    price: float = 0.0,
    probe: bool = False,
    changes: Iterable[str] = (),
) -> PlannedRun:
    """What a pre-training run will take: hours, memory, disk, price, and what limits it.

    `text` is the text itself, prepared text, or a sample of `text_size`. `gpu` is the kind of GPU, or cpu; `probe=True`
    measures this machine first and plans with it.
    """
    if steps is not None and epochs is not None:
        raise BadConfig("Give one of `steps=` and `epochs=`, not both.")
    # Written so that NaN is refused too.
    has_epochs = epochs is None or 0 < epochs <= MAX_EPOCHS
    has_steps = steps is None or steps >= 1
    if vocab_size < 1 or not has_steps or not has_epochs:
        raise BadConfig("`steps=`, `epochs=` and `vocab_size=` must be above zero, and the epochs at most a billion.")
    request = PretrainRequest(recipe=recipe, size=size, changes=tuple(changes))
    named = resolve_config(request, None, start=None, vocab_size=vocab_size)
    paths = [text] if isinstance(text, str | Path) else text
    size_of_text = texts.measure([Path(path) for path in paths], texts.parse_size(text_size))
    if probe:
        # It imports torch.
        from firth.planning.probe import probe as measured_device

        device = measured_device(named)
    else:
        device = known_machines.find(gpu, precision=named.train.precision)
    cluster = Cluster(device, machines=machines, devices=gpus, network=network, price=price)
    result = estimate(named, size_of_text, cluster, steps=steps, epochs=epochs)
    return PlannedRun(named, cluster, size_of_text, result)
