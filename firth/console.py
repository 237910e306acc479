"""What a user sees on standard error while the package works: its log messages, and progress bars.

Modules log to `logging.getLogger(__name__)`. A Python program configures logging as it likes, and sees nothing if it
does not. The command line works inside `shown()`, which prints messages and draws bars; a program may do the same.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

PATIENCE = 2.0
"""Seconds before a bar appears: shorter work needs none."""
PLAIN_SECONDS = 30.0
"""Seconds between two plain lines about progress, if standard error is a file."""
BAR_WIDTH = 20
"""Characters of a progress bar."""
_shows_bars = False


class Advance(Protocol):
    """Moves a progress bar; `done` is the work done so far, in the unit of `total`."""

    def __call__(self, done: float, note: str = ..., total: float | None = ...) -> None: ...


class _StandardError(logging.Handler):
    """Prints each message as one line; warnings begin with `Warning: `."""

    def __init__(self, translate: Callable[[str], str]) -> None:
        super().__init__(logging.INFO)
        self.translate = translate

    def emit(self, record: logging.LogRecord) -> None:
        text = self.translate(record.getMessage())
        if record.levelno == logging.WARNING:
            text = f"Warning: {text}"
        # Looked up at every message: a progress bar replaces it meanwhile.
        print(text, file=sys.stderr, flush=True)


@contextmanager
def shown(translate: Callable[[str], str] = str) -> Iterator[None]:
    """Inside, the package's messages and progress bars appear on standard error.

    `translate` changes the text of a message: the command line names its options instead of arguments.
    """
    global _shows_bars
    logger = logging.getLogger("firth")
    handler = _StandardError(translate)
    level_before = logger.level
    bars_before = _shows_bars
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    _shows_bars = True
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level_before)
        _shows_bars = bars_before


def _ignore(done: float, note: str = "", total: float | None = None) -> None:
    """Moves no bar."""


def counted(count: int, noun: str) -> str:
    """Such as `1 row` and `1,200 rows`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def say_now(text: str) -> None:
    """Prints a line from a signal handler, which must not use the buffers that the program may be writing."""
    if _shows_bars:
        with suppress(OSError, ValueError):  # a standard error that has no file
            os.write(sys.stderr.fileno(), f"{text}\n".encode())


@contextmanager
def bar(label: str, total: float | None, *, unit: str = "") -> Iterator[Advance]:
    """Yields `advance(done, note, total)`, which moves a progress bar. If standard error is not a terminal, it prints a
    plain line now and then. Outside `shown` it does nothing."""
    if not _shows_bars:
        yield _ignore
        return
    if not sys.stderr.isatty():
        yield _plain_progress(label, total, unit)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    # In a narrow window only the note is cut.
    rest_of_line = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=BAR_WIDTH),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", table_column=rest_of_line),
        console=Console(stderr=True),
        transient=True,
        expand=True,
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


def _plain_progress(label: str, total: float | None, unit: str) -> Advance:
    """Moves no bar, but prints a line every half minute: how much is done, the note, and the time left."""
    start_time = time.monotonic()
    last_time = start_time
    first_done: float | None = None

    def advance(done: float, note: str = "", total: float | None = total) -> None:
        nonlocal last_time, first_done
        now = time.monotonic()
        if first_done is None:
            first_done = done
        if now - last_time < PLAIN_SECONDS:
            return
        last_time = now
        of_all = f" of {total:,.0f}" if total else ""
        parts = [f"{done:,.0f}{of_all} {unit}", note]
        if total and done > first_done:
            seconds_left = (now - start_time) * (total - done) / (done - first_done)
            parts.append(f"{_duration(seconds_left)} left")
        text = ", ".join(part for part in parts if part)
        print(f"{label}: {text}", file=sys.stderr, flush=True)

    return advance


def _duration(seconds: float) -> str:
    """Such as `40 s`, `12 min`, `2 h 5 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
