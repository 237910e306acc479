"""Temporary files and folders beside what they will become, and the removal of those that a killed process left.

A process holds a lock on what it makes here. The kernel lets go of it when the process dies, however it dies, so
whoever gets the lock knows that nobody needs the file or folder any more. On a file system without locks nothing is
removed.
"""

import fcntl
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from firth.lock import try_lock

log = logging.getLogger(__name__)

MARK = "firth-"
"""Part of the names of what is made here: other hidden files are not ours to remove."""
RANDOM = r"[a-z0-9_]{8}"
"""What the module tempfile puts at the end of a name."""


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """An empty file in the folder of `path`, to be renamed to it; it is removed if it was not."""

    def make() -> Path:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path))
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
        return Path(tempfile.mkdtemp(dir=path.parent, prefix=_prefix(path)))

    with _owned(path, make) as temporary:
        try:
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def remove_abandoned(path: Path) -> None:
    """Removes the temporary files and folders of dead processes that were to become `path`."""
    pattern = re.compile(re.escape(_prefix(path)) + RANDOM)
    try:
        found = [entry for entry in path.parent.iterdir() if pattern.fullmatch(entry.name)]
    except OSError:
        # A folder that is not there, or cannot be read, has none.
        return
    for entry in found:
        if _remove_if_abandoned(entry):
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
