"""FSDP2: weights, gradients and the optimizer's state divided among ranks (Rajbhandari et al. 2020, "ZeRO", stage 3).

In: a learner. Out: a copy of it of which each rank holds a share; every block is gathered only while it computes, the
embedding and the heads for a whole step. The shares are fp32; in half precision bf16 copies of them are gathered and
gradients are added in fp32. States are written by torch.distributed.checkpoint as safetensors files, one for each
rank, and can be read by any number of ranks. The learner itself stays whole, for evaluations and for the final folder.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from firth.errors import BadConfig
from firth.nn.blocks import Block
from firth.tensors import Batch, Goal, Loss
from firth.train.loop import Learner
from firth.train.parallel import Forward, chosen_precision, current_world, is_compiled
from firth.train.settings import TRAINING_BYTES, USABLE_SHARE, TrainConfig
from firth.train.whole import is_shared, whole


class ShardedLearner(Learner):
    """A learner whose weights are divided among ranks. FSDP2 finds the tensors of its output in tuples and dicts."""

    is_sharded = True

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:  # type: ignore[override]
        loss = super().forward(batch)
        return dict(loss.sums), dict(loss.tallies)

    def loss(self, batch: Batch) -> Loss:
        """The losses of a batch, as those of any learner."""
        sums, tallies = self(batch)
        return Loss(sums, tallies)


def parallel_mode(learner: Learner, config: TrainConfig, *, obstacle: str = "") -> Literal["ddp", "fsdp"]:
    """Whether each rank holds all weights or a share of them; raises if what was asked for is not possible.

    `obstacle` is why a run needs whole weights.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return "ddp"  # one process: nothing is divided
    if config.optim.optimizer == "muon":
        obstacle = "Muon needs whole matrices"
    if config.parallel == "fsdp" and obstacle:
        raise BadConfig(f"train.parallel=fsdp is not possible: {obstacle}; use train.parallel=ddp.")
    if config.parallel == "fsdp":
        return "fsdp"
    if config.parallel == "ddp" or obstacle or current_world().size == 1:
        return "ddp"
    return "ddp" if _fits(learner) else "fsdp"


def _fits(learner: Learner) -> bool:
    """Whether one GPU can hold all that training keeps of the weights; a CPU always can."""
    parameter = next(learner.parameters())
    if parameter.device.type != "cuda":
        return True
    num_parameters = sum(parameter.numel() for parameter in learner.parameters())
    memory = torch.cuda.get_device_properties(parameter.device).total_memory
    return num_parameters * TRAINING_BYTES < memory * USABLE_SHARE


def sharded_copy(learner: Learner, config: TrainConfig) -> ShardedLearner:
    """A copy of which each rank holds a share."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    device = next(learner.parameters()).device
    copied = deepcopy(learner)
    sharded = ShardedLearner(copied.encoder, dict(copied.goals), auxiliary=dict(copied.auxiliary))  # type: ignore[arg-type]
    mesh = init_device_mesh(device.type, (current_world().size,))
    policy = MixedPrecisionPolicy()
    if chosen_precision(config, device) == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in _blocks(sharded):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(sharded, mesh=mesh, mp_policy=policy)
    for part in sharded.modules():
        if isinstance(part, FSDPModule):
            # The losses are divided by the counts of all ranks, so gradients are added and not averaged.
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    return sharded


def _blocks(learner: nn.Module) -> list[Block]:
    """The blocks of a network and its heads, each once."""
    return [part for part in learner.modules() if isinstance(part, Block)]


def sharded_forward(learner: Learner, config: TrainConfig) -> Forward:
    """The forward pass of a sharded learner. Its precision is that of the gathered weights.

    Blocks and losses are compiled one by one, because weights are gathered between them.
    """
    assert isinstance(learner, ShardedLearner)
    device = next(learner.parameters()).device
    if not is_compiled(config, device):
        return learner.loss
    blocks = _blocks(learner)
    # All blocks share one function, and each kind of block counts as a recompilation of it.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 2 * len(blocks))
    for block in blocks:
        # A run in two phases comes here twice, with other shapes.
        block.forward = torch.compile(_uncompiled(block.forward), dynamic=False, fullgraph=True)  # type: ignore[method-assign]
    for goal in learner.goals.values():
        assert isinstance(goal, Goal)
        goal.loss = torch.compile(_uncompiled(goal.loss), dynamic=False, fullgraph=True)  # type: ignore[method-assign]
    return learner.loss


def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a compiled function was made of; the function itself if it is not compiled."""
    original: Callable[..., Any] = getattr(function, "_torchdynamo_orig_callable", function)
    return original


@contextmanager
def whole_weights(learner: Learner, sharded: Learner) -> Iterator[None]:
    """Inside, the whole learner is on the device with the current weights; outside, it waits in the host's memory."""
    if not sharded.is_sharded:
        yield
        return
    copy_whole(sharded, learner)
    yield
    learner.cpu()


@torch.no_grad()
def copy_whole(sharded: Learner, learner: Learner) -> None:
    """Copies the weights of all ranks into the whole learner, on every rank, and puts it on the device."""
    device = next(sharded.parameters()).device
    learner.to(device)
    current = {**dict(sharded.named_parameters()), **dict(sharded.named_buffers())}
    for name, tensor in [*learner.named_parameters(), *learner.named_buffers()]:
        tensor.copy_(whole(current[name]))


def like(tensor: Tensor) -> Tensor:
    """An empty tensor of the same shape, shared in the same way."""
    return torch.empty_like(tensor.detach())


@torch.no_grad()
def copy_share(target: Tensor, source: Tensor) -> None:
    """Copies a whole tensor into one that may be shared: then each rank takes its share."""
    if not is_shared(target):
        target.copy_(source)
        return
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(target, DTensor)
    source = source.to(target.device)
    target.copy_(distribute_tensor(source, target.device_mesh, target.placements, src_data_rank=None))


def save_shares(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors into a folder, each rank its shares; all ranks call this together."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with _first_failure():
        save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))


@contextmanager
def _first_failure() -> Iterator[None]:
    """Raises the error of the first rank that failed: torch raises a collection of them, which is no `Exception`."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        first_rank = min(error.failures)
        failure, _ = error.failures[first_rank]
        raise failure from None


def load_shares(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Reads tensors of these names into these, whole or shared among any number of ranks."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    is_alone = not torch.distributed.is_initialized()
    with warnings.catch_warnings(), _first_failure():
        # That one process reads alone is meant.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=is_alone)


def saved_names(folder: Path) -> set[str]:
    """The names of the tensors in a folder that `save_shares` wrote."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    return set(HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata)
