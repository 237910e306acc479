"""How a learner runs: on which device, in which precision, compiled or not, and as which of several ranks.

In: a learner and its settings. Out: a forward pass for the loop. Data-parallel and sharded wrappers belong here too;
the loop and the run only ask a `World` for sums over ranks, for the batches of one rank, and which rank writes files.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import torch

from firth import rng
from firth.errors import BadConfig
from firth.tensors import Batch, Loss
from firth.train.settings import TrainConfig

if TYPE_CHECKING:
    from firth.train.loop import Learner

Forward = Callable[[Batch], Loss]
Item = TypeVar("Item")


@dataclass(frozen=True)
class World:
    """The processes that train together: one, unless torch.distributed was initialised."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints messages."""
        return self.rank == 0

    def total(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Counts summed over all ranks; every rank must ask with the same names."""
        if self.size == 1:
            return dict(counts)
        names = sorted(counts)
        device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
        sums = torch.tensor([counts[name] for name in names], dtype=torch.int64, device=device)
        torch.distributed.all_reduce(sums)
        return dict(zip(names, sums.tolist(), strict=True))

    def wait(self) -> None:
        """Returns once all ranks have come here, so that they can read what rank 0 wrote before."""
        if self.size > 1:
            torch.distributed.barrier()

    def share(self, items: Iterable[Item]) -> Iterator[Item]:
        """Every size-th item, from the rank-th on: together the ranks see each item once."""
        return islice(items, self.rank, None, self.size)


def current_world() -> World:
    """The ranks of this process group; one rank if there is none."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return World()
    return World(torch.distributed.get_rank(), torch.distributed.get_world_size())


def chosen_device(name: str | None) -> torch.device:
    """The device that was named, or the GPU if there is one."""
    if not name:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadConfig(f"There is no device '{name}' (known: cpu, cuda).") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadConfig("This machine has no GPU that torch can use; leave out `device=` or use cpu.")
    return device


def prepared_forward(learner: "Learner", config: TrainConfig) -> Forward:
    """The learner's forward pass in the precision of the config, compiled if the config and the device allow it."""
    device = next(learner.parameters()).device
    return compiled(in_precision(learner, config.precision), config, device)


def in_precision(learner: "Learner", precision: str) -> Forward:
    """The learner's forward pass in this precision. In bf16 it sees rounded copies of its fp32 weights.

    Every activation is then bf16 while weights, their gradients and the optimizer stay fp32. Autocast would keep the
    residual stream in fp32 and move twice the bytes.
    """
    device = next(learner.parameters()).device
    if not in_half(precision, device):
        return learner

    def forward(batch: Batch) -> Loss:
        rounded = {name: parameter.bfloat16() for name, parameter in learner.named_parameters()}
        loss: Loss = torch.func.functional_call(learner, rounded, (batch,))
        return loss

    return forward


def in_half(precision: str, device: torch.device) -> bool:
    """Whether the forward pass is in half precision."""
    if precision == "auto":
        return device.type == "cuda"
    return precision == "bf16"


def compiled(forward: Forward, config: TrainConfig, device: torch.device) -> Forward:
    """The forward pass compiled if shapes are static: on a GPU in half precision."""
    is_half = in_half(config.precision, device)
    has_static_shapes = device.type == "cuda" and is_half
    if config.compile == "yes" and not has_static_shapes:
        raise BadConfig("train.compile=yes needs a GPU and bf16: elsewhere sequences are grouped by length.")
    is_compiled = has_static_shapes and config.compile != "no"
    if config.recompute and is_half and not is_compiled:
        raise BadConfig("train.recompute in bf16 needs torch.compile; set train.precision=fp32 or train.compile=auto.")
    if not is_compiled:
        return forward
    # A recorded CUDA graph replaces the launch of every kernel. Without it small models wait for the host.
    options: dict[str, str | int | bool | Callable[..., object]] = {"triton.cudagraphs": config.graphs}
    return torch.compile(forward, dynamic=False, fullgraph=True, options=options)


def reseed(*parts: int | str) -> None:
    """Sets torch's random number generators from a key."""
    torch.manual_seed(int(rng.key(*parts)) & (2**63 - 1))
