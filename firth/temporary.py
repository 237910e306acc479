"""Temporary files and folders beside what they will become, and the removal of those that a killed process left.

A process holds a lock on what it makes here. The kernel lets go of it when the process dies, however it dies, so
whoever gets the lock knows that nobody needs the file or folder any more. Some network file systems keep locks to one
machine, so what another machine made (its name says so) must also be unchanged for an hour. On a file system without
locks nothing is removed.
"""

import fcntl
import hashlib
import logging
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path

from firth.lock import try_lock

log = logging.getLogger(__name__)

MARK = "firth-"
"""Part of the names of what is made here: other hidden files are not ours to remove."""
RANDOM = r"[a-z0-9_]{8}"
"""What the module tempfile puts at the end of a name."""
MACHINE = r"(?:[0-9a-f]{8}-)?"
"""Which machine made it, before the random end."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""On Linux, what no other machine has, and this one only until it is started again."""
LEAST_AGE = 3600.0
"""Seconds for which something of another machine must not have changed before it counts as abandoned."""


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """An empty file in the folder of `path`, to be renamed to it; it is removed if it was not."""

    def make() -> Path:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path) + _this_machine())
        os.close(handle)
        return Path(name)

    with _owned(path, make) as temporary:
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """An empty folder in the folder of `path`, to be renamed to it; it is removed if it was not."""

    def make() -> Path:
        return Path(tempfile.mkdtemp(dir=path.parent, prefix=_prefix(path) + _this_machine()))

    with _owned(path, make) as temporary:
        try:
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def remove_abandoned(path: Path) -> None:
    """Removes the temporary files and folders of dead processes that were to become `path`."""
    pattern = re.compile(re.escape(_prefix(path)) + MACHINE + RANDOM)
    try:
        found = [entry for entry in path.parent.iterdir() if pattern.fullmatch(entry.name)]
    except OSError:
        # A folder that is not there, or cannot be read, has none.
        return
    for entry in found:
        is_own = entry.name.startswith(_prefix(path) + _this_machine())
        if (is_own or _is_old(entry)) and _remove_if_abandoned(entry):
            log.info(f"{entry} was left by a command that was killed, and is removed.")


def _remove_if_abandoned(entry: Path) -> bool:
    """Removes a temporary file or folder unless a process works on it; returns whether it did."""
    with suppress(OSError):
        descriptor = os.open(entry, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # While this process holds the lock, no other can take what it removes for its own.
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        finally:
            os.close(descriptor)
        return True
    return False


@cache
def _this_machine() -> str:
    """What names of things that this machine makes have in them."""
    try:
        machine = BOOT_ID.read_text()
    except OSError:
        machine = platform.node()
    return hashlib.sha256(machine.encode()).hexdigest()[:8] + "-"


def _is_old(entry: Path) -> bool:
    """Whether a file, or a folder and all that is in it, has not changed for an hour."""
    try:
        newest = max(path.lstat().st_mtime for path in chain([entry], entry.rglob("*")))
    except OSError:
        # Something in it has just been renamed or removed.
        return False
    return time.time() - newest > LEAST_AGE


def _prefix(path: Path) -> str:
    return f".{path.name}.{MARK}"


@contextmanager
def _owned(path: Path, make: Callable[[], Path]) -> Iterator[Path]:
    """What `make` makes, locked by this process. Errors of making it name `path`, which the user knows."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary, descriptor = _make_and_lock(make)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        yield temporary
    finally:
        os.close(descriptor)


def _make_and_lock(make: Callable[[], Path]) -> tuple[Path, int]:
    """A new file or folder, and the descriptor that holds its lock."""
    while True:
        temporary = make()
        descriptor = _open_and_lock(temporary)
        if descriptor is not None:
            return temporary, descriptor


def _open_and_lock(temporary: Path) -> int | None:
    """The descriptor that holds its lock; None if another process has taken it for abandoned before it was locked."""
    try:
        descriptor = os.open(temporary, os.O_RDONLY)
    except FileNotFoundError:
        return None
    if try_lock(descriptor) and temporary.exists():
        return descriptor
    os.close(descriptor)
    return None
