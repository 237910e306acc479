"""Progress for the user: lines and a progress bar on standard error. There is no bar if that is not a terminal."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

PATIENCE = 2.0
"""Seconds before a bar appears: shorter work needs none."""


class Advance(Protocol):
    """Moves a progress bar; `done` is the work done so far, in the unit of `total`."""

    def __call__(self, done: float, note: str = ..., total: float | None = ...) -> None: ...


def say(text: str) -> None:
    """Prints one line to standard error, for a terminal or a log."""
    print(text, file=sys.stderr, flush=True)


def _ignore(done: float, note: str = "", total: float | None = None) -> None:
    """Moves no bar."""


@contextmanager
def bar(label: str, total: float | None, *, unit: str = "") -> Iterator[Advance]:
    """Yields `advance(done, note, total)`, which moves a progress bar. Without a terminal it does nothing."""
    if not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rate]} {task.fields[note]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = progress.add_task(label, total=total, rate="", note="")
    start_time = time.monotonic()
    is_shown = False
    first_done: float | None = None  # a resumed run does not begin at zero

    def advance(done: float, note: str = "", total: float | None = total) -> None:
        nonlocal is_shown, first_done
        if first_done is None:
            first_done = done
        seconds = time.monotonic() - start_time
        if not is_shown and seconds > PATIENCE:
            progress.start()
            is_shown = True
        if is_shown:
            rate = f"{(done - first_done) / seconds:,.1f} {unit}/s"
            progress.update(task, completed=done, total=total, rate=rate, note=note)

    try:
        yield advance
    finally:
        if is_shown:
            progress.stop()
