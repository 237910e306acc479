"""The entry point: the name of a study -> its rows and its page in a folder. A second call resumes the study."""

import datetime
import logging
import platform
from dataclasses import asdict
from pathlib import Path

from firth import study as studies
from firth.config import check_limits, from_dict, resolve
from firth.files import read_json, write_bytes, write_json
from firth.lock import Lock
from firth.study.design import Study
from firth.study.pictures import pictures
from firth.study.presenting import Made, as_html, as_markdown, verdicts
from firth.study.running import ROWS, read_rows, run_study, write_rows
from firth.study.sets import Sources
from firth.study.store import Store

log = logging.getLogger(__name__)

PAGE = "page.html"
MARKDOWN = "page.md"
MADE = "made.json"
LOCK = "study.lock"


def run(name: str, *, out: str | Path, minutes: float | None = None, data: str | Path | None = None) -> Path:
    """Runs one study as far as the time allows, and returns its page. `data` is a folder with public sets."""
    check_limits(minutes=minutes)
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
    finally:
        lock.release(keep_file=False)
    own_folder = folder / name
    own_folder.mkdir(exist_ok=True)
    write_rows(rows, own_folder / ROWS)
    write_json(own_folder / MADE, asdict(_made(name, data)))
    for sentence in verdicts(study, rows, "en"):
        log.info(sentence)
    return write_page(study, own_folder)


def run_all(*, out: str | Path, minutes: float | None = None, data: str | Path | None = None) -> list[Path]:
    """Runs all studies, each with the same share of the time."""
    share = None if minutes is None else minutes / len(studies.TABLE)
    return [run(name, out=out, minutes=share, data=data) for name in studies.TABLE]


def write_page(study: Study, folder: Path) -> Path:
    """The page and the pictures of the rows in a folder."""
    rows = read_rows(folder / ROWS)
    made = from_dict(Made, read_json(folder / MADE))
    for picture in pictures(study, rows):
        write_bytes(folder / picture.file_name, picture.standalone().encode())
    write_bytes(folder / MARKDOWN, as_markdown(study, rows, made=made).encode())
    write_bytes(folder / PAGE, as_html(study, rows, made=made).encode())
    return folder / PAGE


def _made(name: str, data: str | Path | None) -> Made:
    """The command, the machine and the date."""
    import torch

    command = f"firth study {name}"
    if data is not None:
        command += " --data $FIRTH_DATA"
    threads = torch.get_num_threads()
    machine = f"{threads} CPU thread{'s' if threads > 1 else ''}"
    if torch.cuda.is_available():
        machine = torch.cuda.get_device_name()
    return Made(
        command=command,
        machine=f"{machine}, {platform.machine()}",
        software=f"Python {platform.python_version()}, torch {torch.__version__}",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )
