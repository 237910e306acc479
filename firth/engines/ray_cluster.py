"""Work on a Ray cluster: the one that RAY_ADDRESS names, or a local one that is started for the command.

Ray sends arguments and results between machines and computes again what a lost process or machine had computed.
"""

import logging
import os
import socket
from collections.abc import Callable
from textwrap import shorten
from typing import TypeVar, cast

from firth.engines.engine import Handle, known_values
from firth.errors import BadConfig, FirthError, Unsupported, absent

try:
    import ray
    from ray.exceptions import OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError
except ImportError as error:
    raise absent(error.name, extra="ray", user="`engine='ray'`") from None

T = TypeVar("T")
First = TypeVar("First")
Second = TypeVar("Second")

RETRIES = 5
"""How often a piece of work is computed again after its process died."""
STORE_BYTES = 1 << 30
"""Memory of a local cluster for arguments and results; what is more goes to disk."""
ONE_THREAD = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""The environment of a worker. Ray itself gives the libraries of matrix products one thread for each of its cores."""
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # sends nothing to its makers
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or it warns of a change to come
    "RAY_worker_niceness": "0",  # its workers give way to no other program, as those of one machine do not
}
"""Settings of a local cluster, unless the environment has others."""
LOCAL = "local"
ANSWER_SECONDS = 20.0
"""For how long a cluster may take to accept a connection."""
MAX_REASON = 300
"""Characters of what Ray says about a cluster that cannot be reached."""


class RayCluster:
    """An `Engine` whose workers are processes of Ray; inside `with`, the cluster is connected."""

    def __init__(self, workers: int) -> None:
        self.num_workers = workers
        self.is_ours = False
        remote = ray.remote(_call)
        self.task = remote.options(max_retries=RETRIES)
        self.task_of_two = remote.options(max_retries=RETRIES, num_returns=2)

    def __enter__(self) -> "RayCluster":
        if not ray.is_initialized():
            _connect(self.num_workers)
            self.is_ours = True
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_ours:
            ray.shutdown()

    def share(self, value: T) -> Handle[T]:
        return Handle(ray.put(value))

    def submit(self, function: Callable[..., T], *arguments: object) -> Handle[T]:
        # Ray replaces its own references by their values where a function is called.
        return Handle(self.task.remote(function, *known_values(arguments)))

    def submit_pair(
        self,
        function: Callable[..., tuple[First, Second]],
        *arguments: object,
    ) -> tuple[Handle[First], Handle[Second]]:
        first, second = self.task_of_two.remote(function, *known_values(arguments))
        return Handle(first), Handle(second)

    def result(self, handle: Handle[T]) -> T:
        try:
            return cast(T, ray.get(handle.value))
        except RayTaskError as error:
            # A sentence for the user, or a file that this worker cannot read: what one process would raise.
            if isinstance(error.cause, FirthError | OSError):
                raise error.cause from None
            raise
        except (WorkerCrashedError, OutOfMemoryError):
            raise Unsupported(
                f"A Ray worker ended {RETRIES + 1} times on the same piece of work, perhaps because memory ran out; "
                "use fewer processes."
            ) from None
        except RayError as error:
            reason = str(error).partition("\n")[0]
            raise Unsupported(f"The Ray cluster lost a piece of work: {reason}") from None


def _connect(num_workers: int) -> None:
    """Connects to the cluster of RAY_ADDRESS, or starts a local one with one core for each worker."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray").setLevel(logging.ERROR)
    address = os.environ.get("RAY_ADDRESS") or LOCAL
    try:
        if address == LOCAL:
            ray.init(
                address=LOCAL,
                num_cpus=num_workers,
                include_dashboard=False,
                object_store_memory=STORE_BYTES,
                log_to_driver=False,
                configure_logging=False,
            )
        else:
            _check_answers(address)
            ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RayError, RuntimeError, ValueError) as error:
        # A RuntimeError says in several lines which versions of Python and Ray do not fit, or what did not start.
        reason = shorten(str(error), MAX_REASON, placeholder=" ...")
        raise BadConfig(f"The Ray cluster {address} cannot be reached: {reason}") from None


def _check_answers(address: str) -> None:
    """Raises ConnectionError if nobody answers at HOST:PORT: Ray itself would try for a quarter of an hour."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"{error}.") from None


def _call(function: Callable[..., T], *arguments: object) -> T:
    """Runs in a worker of Ray."""
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)
    return function(*arguments)
