"""Run folders for a page that watches them: which runs there are, and the rows written since the last request."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from firth.errors import FirthError
from firth.files import JsonObject, read_json
from firth.finetuning.picking import RESULT
from firth.run_folder import RunFolder
from firth.run_source import PretrainingSource, SolvingSource, read_source
from firth.serving.responses import not_found
from firth.serving.schemas import RunRowsResponse, RunSummary
from firth.train.journal import METRICS

MAX_BYTES = 1_000_000
"""Bytes of rows in one response; the next request gets the next ones."""
MAX_RUNS = 500
MAX_DEPTH = 3
"""Levels of folders that are searched for runs: a folder, its runs, and their seeds."""


@dataclass(frozen=True)
class _RunFacts:
    """What the page shows of a run apart from its metrics."""

    unigram_floor: float | None = None
    """The loss of a model that knows only how frequent each token is."""
    steps: int | None = None


@dataclass(frozen=True)
class Runs:
    """The runs in a folder, in its subfolders, and in theirs (the seeds of a fine-tuning)."""

    root: Path

    def summaries(self) -> Sequence[RunSummary]:
        """All runs, the most recently updated first."""
        summaries = []
        for name, path in self._metrics_files().items():
            # A run may have been removed since it was found.
            with suppress(OSError):
                summaries.append(_summary(name, path))
        return sorted(summaries, key=lambda summary: -summary["updated"])

    def rows(self, name: str, after: int) -> RunRowsResponse:
        """The whole lines after byte `after`.

        A run that was resumed may have shortened its file; then the rows begin at the start.
        """
        try:
            return _read_rows(name, self._metrics_files()[name], after)
        except (KeyError, OSError):
            raise not_found("There is no such run; GET /runs lists them.") from None

    def _metrics_files(self) -> Mapping[str, Path]:
        """The metrics of each run by name. A client's name is only looked up here; no path is built from it."""
        found: dict[str, Path] = {}
        folders = [self.root]
        for _ in range(MAX_DEPTH):
            subfolders = []
            for folder in folders:
                path = folder / METRICS
                if path.is_file():
                    found[self._run_name(folder)] = path
                subfolders += _subfolders(folder)
            folders = subfolders
        return dict(islice(found.items(), MAX_RUNS))

    def _run_name(self, folder: Path) -> str:
        if folder == self.root:
            return self.root.resolve().name
        return str(folder.relative_to(self.root))


def _read_rows(name: str, path: Path, after: int) -> RunRowsResponse:
    restarted = after > path.stat().st_size
    start = after
    if restarted:
        start = 0
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(MAX_BYTES)
    # The last line may not be complete yet.
    complete = data[: data.rfind(b"\n") + 1]
    rows = []
    for line in complete.splitlines():
        row = _parse_row(line)
        if row is not None:
            rows.append(row)
    summary = _summary(name, path)
    return RunRowsResponse(
        run=name,
        rows=rows,
        next=start + len(complete),
        restarted=restarted,
        state=summary["state"],
        floor=summary["floor"],
    )


def _summary(name: str, path: Path) -> RunSummary:
    """A run's state and figures; `path` is its metrics file."""
    status = path.stat()
    folder = path.parent
    facts = _read_facts(folder)
    return RunSummary(
        name=name,
        state=_state(folder),
        updated=status.st_mtime,
        floor=facts.unigram_floor,
        steps=facts.steps,
        bytes=status.st_size,
    )


def _state(folder: Path) -> Literal["stopped", "running", "finished"]:
    """A run's state; that of a seed without figures of its own is the state of its fine-tuning."""
    if (folder / RESULT).exists():
        return "finished"
    for run in (folder, folder.parent):
        # A record that is damaged says nothing about the run.
        with suppress(FirthError):
            state = RunFolder.state(run)
            if state != "missing":
                return state
    return "stopped"


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        # Removed since it was found, or not readable for this user.
        return []


def _read_facts(run: Path) -> _RunFacts:
    """The figures of a finished run; of an unfinished one, the floor of the text it trains on."""
    try:
        if (run / "firth.json").exists():
            info = dict(read_json(run / "firth.json"))
            steps = info.get("steps")
            if not isinstance(steps, int):
                steps = None
            return _RunFacts(_float_or_none(info.get("unigram_floor")), steps)
        source = read_source(run)
        if not isinstance(source, PretrainingSource | SolvingSource):
            return _RunFacts()
        shards = read_json(Path(source.data) / "shards.json")
        return _RunFacts(_float_or_none(shards["health"]["entropy_nats"]))
    except (FirthError, OSError, KeyError, TypeError, ValueError):
        return _RunFacts()


def _float_or_none(value: object) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    return None


def _parse_row(line: bytes) -> JsonObject | None:
    """A row of metrics; None for a line that is not a JSON object."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    return value
