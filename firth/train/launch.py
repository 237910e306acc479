"""Several processes that torchrun started: how they join each other, and which of them speaks.

In: the environment that torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT); with srun alone, the
job script sets these but LOCAL_RANK, for which srun has SLURM_LOCALID. Out: a process group, which
`parallel.current_world` describes. A process that was started alone does nothing of this. Torch is imported only by
processes that join.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from firth.console import counted
from firth.errors import BadConfig, LostRank
from firth.train.watching import end_if_stuck

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
STORE_TIMEOUT = timedelta(seconds=10)
"""For how long a process that ends with an error tries to find out whether another one has spoken."""
FIRST_RANK_SECONDS = 10.0
"""For how long a process with an error leaves the report to the first rank, as long as the two have not joined."""

_claims: "Store | None" = None
"""Where ranks note that one of them has reported an error."""


def is_launched() -> bool:
    """Whether torchrun, or something like it, started this process."""
    return all(name in os.environ for name in VARIABLES)


def launched_rank() -> int:
    return int(os.environ["RANK"]) if is_launched() else 0


def launched_size() -> int:
    return int(os.environ["WORLD_SIZE"]) if is_launched() else 1


def is_restart() -> bool:
    """Whether torchrun (--max-restarts) started the processes again after one of them had died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def joined_ranks() -> Iterator[None]:
    """Inside, the processes that torchrun started are one group; a process that was started alone is alone."""
    if not is_launched():
        yield
        return
    import torch

    if torch.distributed.is_initialized():  # the caller has joined them
        yield
        return
    _join()
    try:
        with end_if_stuck(speaks_first):
            yield
    except LostRank:
        # torchrun ends the survivors by SIGTERM; this one has to say what happened first.
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise  # the group is broken, and leaving it would wait for the others
    except BaseException:
        torch.distributed.destroy_process_group()
        raise
    torch.distributed.destroy_process_group()


def _join() -> None:
    """Makes this process one of the group and chooses its GPU."""
    import torch

    backend = "gloo"
    if torch.cuda.is_available():
        _choose_gpu()
        # Numbers and decisions go over the CPU, so that they do not wait for the GPU's work.
        backend = "cpu:gloo,cuda:nccl"
    try:
        torch.distributed.init_process_group(backend)
        _open_claims()
    except torch.distributed.DistError as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        why = str(error).splitlines()[0]
        raise LostRank(f"The processes of torchrun did not find each other at {place} ({why}).") from None


def _choose_gpu() -> None:
    import torch

    torch.cuda.set_device(gpu_number(torch.cuda.device_count()))


def gpu_number(num_gpus: int) -> int:
    """Which of the GPUs that this process sees is its own: torchrun, or srun, numbers the processes of a machine."""
    from_torchrun = os.environ.get("LOCAL_RANK")
    from_srun = os.environ.get("SLURM_LOCALID", "0")
    if from_torchrun is None and num_gpus == 1:
        # `srun --gpus-per-task 1` shows each process only its own GPU.
        return 0
    number = int(from_srun if from_torchrun is None else from_torchrun)
    if number >= num_gpus:
        raise BadConfig(f"This machine has {counted(num_gpus, 'GPU')}; start no more than so many processes on it.")
    return number


def _open_claims() -> None:
    """Connects to the store by which the ranks found each other. torchrun keeps it, so it outlives each of them."""
    global _claims
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    host = os.environ["MASTER_ADDR"]
    port = int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port, is_master=False, timeout=STORE_TIMEOUT)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    _claims = PrefixStore(f"firth, attempt {attempt}", store)


def speaks_first() -> bool:
    """Whether this process is the first of its group to report an error.

    Errors of one cause come to all ranks, or make the others lose a rank: the first report says what happened.
    """
    if _claims is None:
        if launched_rank() > 0:
            # At the first process that ends, torchrun ends the others. So the one that speaks has to end first.
            time.sleep(FIRST_RANK_SECONDS)
        return True
    try:
        num_reports: int = _claims.add("errors", 1)
        return num_reports == 1
    except RuntimeError:  # the store is gone with the process that kept it
        return True
