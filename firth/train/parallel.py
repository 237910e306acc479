"""How a learner runs: on which device, in which precision, compiled or not, and as which of several ranks.

In: a learner and its settings. Out: a forward pass for the loop. The loop and the run only ask a `World` for sums over
ranks, for the batches of one rank, for what rank 0 decided, and which rank writes files. `launch.py` starts a world,
`sharding.py` divides a learner's weights among its ranks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from torch import Tensor, nn

from firth import rng
from firth.cpu import this_cpu
from firth.errors import BadConfig, FirthError
from firth.tensors import Batch, Loss
from firth.train.settings import BUCKET_BYTES, TrainConfig

if TYPE_CHECKING:
    from firth.train.loop import Learner

Forward = Callable[[Batch], Loss]
Precision = Literal["fp32", "bf16"]
Item = TypeVar("Item")
Number = TypeVar("Number", int, float)

LOST_RANK_MARKS = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket")
"""Parts of the messages that torch raises if another rank cannot be reached."""


@dataclass(frozen=True)
class World:
    """The processes that train together: one, unless torch.distributed was initialised."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints messages."""
        return self.rank == 0

    def total(self, values: Mapping[str, Number]) -> dict[str, Number]:
        """Numbers summed over all ranks, by name. A rank may lack names that others have: its batch has other goals."""
        if self.size == 1:
            return dict(values)
        totals: dict[str, Number] = {}
        for rank_values in self.gathered(dict(values)):
            for name, value in rank_values.items():
                totals[name] = totals[name] + value if name in totals else value
        return totals

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Leaves the sum of all ranks' gradients in the parameters.

        A parameter without a gradient on any rank keeps none, so that the optimizer skips it.
        """
        if self.size == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if not trained:
            return
        # On the CPU, so that nothing waits for the device.
        flags = [parameter.grad is not None for parameter in trained]
        has_gradient_P = torch.tensor(flags, dtype=torch.int32)
        torch.distributed.all_reduce(has_gradient_P)
        gradients: list[Tensor] = []
        for parameter, num_ranks in zip(trained, has_gradient_P.tolist(), strict=True):
            if not num_ranks:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        for bucket in _buckets(gradients):
            _add_over_ranks(bucket)

    def gathered(self, value: Item) -> list[Item]:
        """The values of all ranks, in their order."""
        if self.size == 1:
            return [value]
        values: list[Item] = [value] * self.size
        torch.distributed.all_gather_object(values, value)
        return values

    def greatest(self, number: int) -> int:
        """The greatest of all ranks' numbers."""
        if self.size == 1:
            return number
        number_1 = torch.tensor([number])
        torch.distributed.all_reduce(number_1, op=torch.distributed.ReduceOp.MAX)
        return int(number_1)

    def from_main(self, value: Item) -> Item:
        """The value that rank 0 gives, on all ranks: what depends on clocks and signals is decided once."""
        if self.size == 1:
            return value
        values = [value]
        torch.distributed.broadcast_object_list(values, src=0)
        return values[0]

    def on_main(self, work: Callable[[], object]) -> None:
        """Rank 0 does the work while the others wait. If it fails, all ranks raise its error instead of waiting on."""
        if self.size == 1:
            work()
            return
        if self.is_main:
            try:
                work()
            except Exception as error:
                is_ours = isinstance(error, FirthError)
                told = error if is_ours else FirthError(f"Rank 0 failed: {error}")
                self.from_main(told)
                raise
        failure = self.from_main(None)
        if failure is not None:
            raise failure

    def wait(self) -> None:
        """Returns once all ranks have come here, so that they can read what rank 0 wrote before."""
        self.greatest(0)  # a barrier of torch's would wait for the GPU's work, too

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Rank 0 does the work inside first, so that the others find the files that it leaves."""
        if not self.is_main:
            self.wait()
        yield
        if self.is_main:
            self.wait()

    def share(self, items: Iterable[Item]) -> Iterator[Item]:
        """Every size-th item, from the rank-th on: together the ranks see each item once."""
        return islice(items, self.rank, None, self.size)


def current_world() -> World:
    """The ranks of this process group; one rank if there is none."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return World()
    return World(torch.distributed.get_rank(), torch.distributed.get_world_size())


def is_lost_rank(error: BaseException | None) -> bool:
    """Whether an error of torch says that another rank died or cannot be reached."""
    if isinstance(error, torch.distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in LOST_RANK_MARKS)


def with_micro_batches(config: TrainConfig) -> TrainConfig:
    """The config of a new run, with at least one micro-batch of each step for each rank."""
    world = current_world()
    if config.accumulate == 1:
        return replace(config, accumulate=world.size)
    return config


def micro_batches_of_rank(config: TrainConfig) -> int:
    """How many of a step's micro-batches each rank computes; raises if ranks cannot share them equally."""
    world = current_world()
    if config.accumulate % world.size:
        raise BadConfig(
            f"A step has {config.accumulate} micro-batches (train.accumulate), which {world.size} ranks cannot share "
            "equally; start another number of ranks."
        )
    return config.accumulate // world.size


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients of one type together, in their order, up to the size of a bucket."""
    bucket: list[Tensor] = []
    num_bytes = 0
    for gradient in gradients:
        is_full = num_bytes + gradient.nbytes > BUCKET_BYTES
        if bucket and (is_full or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
            num_bytes = 0
        bucket.append(gradient)
        num_bytes += gradient.nbytes
    if bucket:
        yield bucket


def _add_over_ranks(bucket: list[Tensor]) -> None:
    """Leaves the sums over all ranks in the tensors, by one message."""
    flat_N = torch.cat([gradient.reshape(-1) for gradient in bucket])
    torch.distributed.all_reduce(flat_N)
    sizes = [gradient.numel() for gradient in bucket]
    for gradient, total in zip(bucket, torch.split(flat_N, sizes), strict=True):
        gradient.copy_(total.view_as(gradient))


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
    if learner.is_sharded:
        from firth.train.sharding import sharded_forward  # which imports this module

        return sharded_forward(learner, config)
    device = next(learner.parameters()).device
    return compiled(in_precision(learner, chosen_precision(config, device)), config, device)


def chosen_precision(config: TrainConfig, device: torch.device) -> Precision:
    """What `train.precision` is on this device: bf16 where it is faster."""
    if config.precision != "auto":
        return config.precision
    if device.type == "cuda":
        return "bf16"
    # Without torch.compile, a block that is computed again would see the fp32 weights.
    if device.type != "cpu" or config.recompute:
        return "fp32"
    return "bf16" if this_cpu().trains_in_bf16 else "fp32"


def in_precision(learner: "Learner", precision: Precision) -> Forward:
    """The learner's forward pass in this precision. In bf16 it sees rounded copies of its fp32 weights.

    Every activation is then bf16 while weights, their gradients and the optimizer stay fp32. Autocast would keep the
    residual stream in fp32 and move twice the bytes.
    """
    if precision == "fp32":
        return learner

    def forward(batch: Batch) -> Loss:
        rounded = {name: _rounded(parameter) for name, parameter in learner.named_parameters()}
        loss: Loss = torch.func.functional_call(learner, rounded, (batch,))
        return loss

    return forward


def _rounded(parameter: nn.Parameter) -> Tensor:
    """A parameter in bf16; whole numbers and booleans, such as the keys of a table, stay exact."""
    return parameter.bfloat16() if parameter.is_floating_point() else parameter


def compiled(forward: Forward, config: TrainConfig, device: torch.device) -> Forward:
    """The forward pass compiled if shapes are static: on a GPU in half precision."""
    if not is_compiled(config, device):
        return forward
    # A recorded CUDA graph replaces the launch of every kernel. Without it small models wait for the host.
    options: dict[str, str | int | bool | Callable[..., object]] = {"triton.cudagraphs": config.graphs}
    return torch.compile(forward, dynamic=False, fullgraph=True, options=options)


def is_compiled(config: TrainConfig, device: torch.device) -> bool:
    """Whether the forward pass is compiled; raises if the config wants what the device cannot do."""
    is_half = chosen_precision(config, device) == "bf16"
    has_static_shapes = device.type == "cuda" and is_half
    if config.compile == "yes" and not has_static_shapes:
        raise BadConfig("train.compile=yes needs a GPU and bf16: elsewhere sequences are grouped by length.")
    compiles = has_static_shapes and config.compile != "no"
    if config.recompute and is_half and not compiles:
        raise BadConfig("train.recompute in bf16 needs torch.compile; set train.precision=fp32 or train.compile=auto.")
    return compiles


def reseed(*parts: int | str) -> None:
    """Sets torch's random number generators from a key."""
    torch.manual_seed(int(rng.key(*parts)) & (2**63 - 1))
