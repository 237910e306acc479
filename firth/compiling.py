"""Loops that numba compiles: kept on disk for the next process, and not confused by Ctrl-C. numba is not imported."""

import signal
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Timer, current_thread, main_thread
from types import FrameType
from typing import Any

_AGAIN = 0.05


def kept_on_disk(function: Any) -> Any:
    """A compiled function that the next process need not compile again, where numba finds a folder to keep it in."""
    with suppress(RuntimeError):  # neither beside the file nor in the person's own cache
        function.enable_caching()
    return function


@contextmanager
def interrupted_late(unless: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Ctrl-C waits while numba compiles: what is raised where LLVM calls back into Python would be lost.

    It waits for modules that come in, too, but not where `unless` says that nothing would be left behind half done.
    """
    before = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or not callable(before):
        yield  # other threads hear no signals, nor does a process that ignores them
        return
    usual = before

    def heard(number: int, frame: FrameType | None) -> None:
        caller = frame
        while caller is not None:
            room = caller.f_globals.get("__name__", "").partition(".")[0]
            coming_in = caller.f_code.co_filename == "<frozen importlib._bootstrap>" and not unless()
            if coming_in or room in ("numba", "llvmlite"):
                Timer(_AGAIN, interrupt_main).start()
                return
            caller = caller.f_back
        usual(number, frame)

    signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
