"""The entry: a study by name -> its rows and its page in a folder; run again, it goes on where it stopped."""

import datetime
import logging
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from firth import study as studies
from firth.config import resolve
from firth.errors import BadConfig
from firth.files import write_bytes
from firth.lock import Lock
from firth.study.design import Study
from firth.study.presenting import as_html, as_markdown
from firth.study.running import ROWS, Score, run_study, write_rows
from firth.study.sets import Sources
from firth.study.store import Store
from firth.study.verdicts import judge, verdict

log = logging.getLogger(__name__)

PAGE = "page.html"
MARKDOWN = "page.md"
LOCK = "study.lock"


def run(name: str, *, out: str | Path, minutes: float | None = None, data: str | Path | None = None) -> Path:
    """Runs one study as far as the time allows, and returns its page. `data` is a folder with public sets."""
    if minutes is not None and minutes <= 0:
        raise BadConfig("`minutes=` must be above 0.")
    study: Study = resolve(studies.TABLE, name, "study")
    folder = Path(out)
    # Runs that several studies need are kept in one place.
    store = Store(folder / "runs")
    sources = Sources(folder / "files", None if data is None else Path(data))
    folder.mkdir(parents=True, exist_ok=True)
    lock = Lock(folder / LOCK)
    lock.acquire()
    try:
        rows = run_study(study, sources, store, minutes=minutes)
        return _write(study, rows, folder / name, minutes=minutes)
    finally:
        lock.release(keep_file=False)


def run_all(*, out: str | Path, minutes: float | None = None, data: str | Path | None = None) -> list[Path]:
    """Runs all studies, each with the same share of the time."""
    share = None if minutes is None else minutes / len(studies.TABLE)
    return [run(name, out=out, minutes=share, data=data) for name in studies.TABLE]


def _write(study: Study, rows: Sequence[Score], folder: Path, *, minutes: float | None) -> Path:
    """The rows and the page of a study."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(rows, folder / ROWS)
    made = _made(study.name, minutes)
    write_bytes(folder / PAGE, as_html(study, rows, made=made).encode())
    write_bytes(folder / MARKDOWN, as_markdown(study, rows, made=made).encode())
    tests = judge(study, rows)
    for claim in study.claims:
        log.info(verdict(claim, tests))
    return folder / PAGE


def _made(name: str, minutes: float | None) -> str:
    """The command, the machine and the date."""
    import torch

    command = f"firth study {name}"
    limit = f"at most {minutes:g} minutes a call" if minutes else "no time limit"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    software = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"`{command}`, {limit}, {device}, {platform.machine()}, {software}, {today}."
