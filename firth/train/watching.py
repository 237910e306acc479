"""A rank that waits in vain: after SIGTERM, a process whose main thread does not come back says so and ends.

torchrun sends SIGTERM to all ranks once one has died. A rank in the middle of a step then waits for the dead one, in
a library where no Python handler runs. Python writes the number of each signal to a pipe at once, so a thread of its
own can watch it.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

GRACE = 20.0
"""Seconds that a run may take to save its state after SIGTERM; torchrun kills it after 30."""
SENTENCE = (
    "firth: A process of the run was lost or hangs, and another one waited for it in vain; resume the run from its "
    "last saved state."
)


@contextmanager
def end_if_stuck(speaks: Callable[[], bool], *, grace: float | None = None) -> Iterator[None]:
    """Inside, a process that is still there some seconds after SIGTERM ends; it prints a sentence if `speaks` allows.

    Only the main thread can do this; elsewhere nothing is watched.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    done = threading.Event()
    seconds = GRACE if grace is None else grace
    watcher = threading.Thread(target=_watch, args=(receiver, done, speaks, seconds), daemon=True)
    before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(before)
        sender.close()  # ends the watcher's reading
        watcher.join()
        receiver.close()


def _watch(receiver: socket.socket, done: threading.Event, speaks: Callable[[], bool], seconds: float) -> None:
    """Waits for SIGTERM, then for the end of the work, at most so many seconds."""
    while True:
        numbers = receiver.recv(1)
        if not numbers:
            return
        if numbers[0] == signal.SIGTERM:
            break
    if done.wait(seconds):
        return
    if speaks():
        print(SENTENCE, file=sys.stderr, flush=True)
    os._exit(1)
