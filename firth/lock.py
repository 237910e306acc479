"""A lock file in a folder that one process at a time may work on: a path in, a lock that is held or refused out."""

import errno
import fcntl
import os
import time
from pathlib import Path

from firth.errors import BadInput

LOOK_SECONDS = 0.05
"""More than the time for which `is_held` keeps a lock."""


def try_lock(descriptor: int) -> bool:
    """Locks an open file or folder unless another process has; where the file system has no locks, none has."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems have none
        return True
    return True


class Lock:
    """Keeps a second process out of a folder. The kernel lets go of it when a process dies, however it dies."""

    _descriptors: set[int] = set()
    """Of all locks that this process holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held = False
        self.found_here = False
        """Whether the file was there before: an earlier process left it."""
        self._descriptor: int | None = None

    def acquire(self) -> None:
        self.found_here = self.path.exists()
        while not self.held:
            try:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                # Nobody writes to a folder that cannot be written to. Other errors, such as a full disk, are raised.
                if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                    return
                raise
            if not try_lock(descriptor):
                time.sleep(LOOK_SECONDS)  # perhaps `is_held` was only looking
            if not try_lock(descriptor):
                os.close(descriptor)
                folder = self.path.parent
                raise BadInput(f"Another process is working on {folder}; wait for it to end or choose another `out=`.")
            if self._is_current(descriptor):
                self._descriptor = descriptor
                self._descriptors.add(descriptor)
                self.held = True
            else:
                os.close(descriptor)  # its last owner deleted the file meanwhile

    def release(self, *, keep_file: bool) -> None:
        if self._descriptor is None:
            return
        if not keep_file:
            self.path.unlink(missing_ok=True)  # while it is still locked, so that nobody else's is deleted
        self._descriptors.discard(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = None
        self.held = False

    @staticmethod
    def is_held(path: Path) -> bool:
        """Whether a process works on the folder of this lock file. Creates and changes nothing."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # another process has it; without locks on this file system, the file alone says so
            return True
        finally:
            os.close(descriptor)
        return False

    def _is_current(self, descriptor: int) -> bool:
        """Whether the open file is still the one under this name."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    @classmethod
    def _close_in_child(cls) -> None:
        """A forked worker must not hold the lock after its parent was killed."""
        for descriptor in cls._descriptors:
            os.close(descriptor)
        cls._descriptors.clear()


os.register_at_fork(after_in_child=Lock._close_in_child)
