"""Ctrl-C and SIGTERM: one handler for commands and runs, which raises at once or lets a step finish first."""

import os
import signal
import sys
from _thread import interrupt_main
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Timer
from types import FrameType
from typing import Any

from firth.console import say_now

SIGNALS = (signal.SIGINT, signal.SIGTERM)
COMPILERS = ("numba", "llvmlite")
"""What is raised where LLVM calls back into Python would be lost."""
IMPORTING = "<frozen importlib._bootstrap>"
"""What is raised in the middle of an import can get lost in the module's compiled parts."""
_RETRY_SECONDS = 0.05


class Interrupts:
    """Handles SIGINT and SIGTERM between `__enter__` and `__exit__`.

    A signal raises KeyboardInterrupt, but not inside an import or a compiler: there it waits until they are done.
    Inside `deferred` it only sets `requested`, and a second Ctrl-C raises.
    """

    def __init__(self, signals: Sequence[signal.Signals] = SIGNALS) -> None:
        self.signals = signals
        self.requested = 0
        """The signal that asked the run to stop; 0 for none."""
        self._deferred = False
        self._depth = 0
        self._process = os.getpid()
        self._handlers_before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        self._depth = len(_stack(sys._getframe(1))) - 1  # the caller's frame is checked as well
        for number in self.signals:
            before = signal.getsignal(number)
            if before is None or before is signal.SIG_IGN:
                continue  # not ours to change
            try:
                signal.signal(number, self._on_signal)
            except ValueError:  # not in the main thread, which alone can handle signals
                break
            self._handlers_before[number] = before
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        self._handlers_before.clear()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside, a signal does not raise: the caller checks `requested` between its steps."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            _in_forked_worker(number)
            return
        second_ctrl_c = self.requested and number == signal.SIGINT
        if self._deferred and not second_ctrl_c:
            self.requested = number
            say_now("Stopping after this step; press Ctrl-C again to stop at once.")
            return
        if self._must_not_raise(frame):
            Timer(_RETRY_SECONDS, interrupt_main, [number]).start()
            return
        self.requested = number
        raise KeyboardInterrupt

    def _must_not_raise(self, frame: FrameType | None) -> bool:
        """Whether an import or a compiler is at work in what was called since `__enter__`."""
        frames = _stack(frame)
        for called in frames[: len(frames) - self._depth]:
            package = called.f_globals.get("__name__", "").partition(".")[0]
            if called.f_code.co_filename == IMPORTING or package in COMPILERS:
                return True
        return False


def _in_forked_worker(number: int) -> None:
    """A worker inherits the handler: it leaves Ctrl-C to its parent, and SIGTERM ends it."""
    if number == signal.SIGTERM:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _stack(frame: FrameType | None) -> list[FrameType]:
    """A frame and its callers, innermost first."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames
