"""What a person sees while waiting: lines and a progress bar on standard error, quiet when nobody is watching."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 2.0
"""Seconds before a bar appears: shorter work needs none."""


def say(text: str) -> None:
    """One line for the person at the terminal or reading the log."""
    print(text, file=sys.stderr, flush=True)


def _nothing(done: float, note: str = "", total: float | None = None) -> None:
    """A bar nobody watches."""


@contextmanager
def bar(label: str, total: float | None, *, unit: str = "") -> Iterator[Callable[..., None]]:
    """Yields `advance(done, note, total)`; `done` is absolute. Draws nothing unless standard error is a terminal."""
    if not sys.stderr.isatty():
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rate]} {task.fields[note]}"))
    progress = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    task = progress.add_task(label, total=total, rate="", note="")
    began, shown = time.monotonic(), False
    first: float | None = None  # a resumed run does not begin at zero

    def advance(done: float, note: str = "", total: float | None = total) -> None:
        nonlocal shown, first
        first = done if first is None else first
        seconds = time.monotonic() - began
        if not shown and seconds > PATIENCE:
            progress.start()
            shown = True
        if shown:
            rate = f"{(done - first) / seconds:,.1f} {unit}/s"
            progress.update(task, completed=done, total=total, rate=rate, note=note)

    try:
        yield advance
    finally:
        if shown:
            progress.stop()
