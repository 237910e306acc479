"""Where pieces of work run: in worker processes of this machine, or on a Ray cluster.

In: functions of modules and their arguments. Out: results, in the order of submission. `local` is how every command
works by itself and has no engine; other names are rows of the table. Nothing here imports ray before it is used.
"""

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import cast

from firth.engines.engine import Engine
from firth.errors import BadConfig

LOCAL = "local"
TABLE = {"ray": "firth.engines.ray_cluster:RayCluster"}
"""Name -> a context manager that gives an `Engine`."""


def open_engine(name: str, *, workers: int) -> "AbstractContextManager[Engine | None]":
    """The engine of this name; None for `local`."""
    if name == LOCAL:
        return nullcontext()
    if name not in TABLE:
        known = ", ".join([LOCAL, *TABLE])
        raise BadConfig(f"There is no engine '{name}' (known: {known}).")
    if workers < 1:
        raise BadConfig(f"`engine='{name}'` needs at least 1 worker; processes is {workers}.")
    module, _, attribute = TABLE[name].partition(":")
    opened = getattr(import_module(module), attribute)(workers)
    return cast("AbstractContextManager[Engine | None]", opened)
