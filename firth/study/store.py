"""Runs stored by their key: a finished run is not repeated, a failed one is retried by the next call, and an
interrupted one is resumed.

STORE/KEY/run.json describes the run, STORE/KEY/out is its folder, and STORE/KEY/result.json, written last, has its
figures or the error message.
"""

import logging
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from firth.config import from_dict
from firth.errors import FirthError, Interrupted
from firth.files import read_json, write_json
from firth.run_folder import is_begun
from firth.starts import quiet
from firth.study.design import Experiment
from firth.study.steps import TABLE

log = logging.getLogger(__name__)

RUN = "run.json"
OUT = "out"
RESULT = "result.json"


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    seconds: float
    """Of the process that finished it; earlier ones that were interrupted are not counted."""
    figures: Mapping[str, float | None] = field(default_factory=dict)
    """The first one is the main one; None where one is undefined."""
    failed: str = ""
    """The error message; empty if the run succeeded."""

    @property
    def defined(self) -> dict[str, float]:
        """The figures without undefined ones, such as the correlation with a constant."""
        found = {}
        for name, value in self.figures.items():
            if value is not None and math.isfinite(value):
                found[name] = value
        return found


class Store:
    """The folder of all runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._failed: set[str] = set()
        """The keys of runs that failed in this process. Those that failed in an earlier one are retried."""

    def out(self, run: Experiment) -> Path:
        """The folder that a run writes to."""
        return self.folder / run.key / OUT

    def find(self, run: Experiment) -> Result | None:
        """The result of a finished run; None for one that failed in an earlier process."""
        path = self.folder / run.key / RESULT
        if not path.exists():
            return None
        result = from_dict(Result, read_json(path))
        if result.failed and run.key not in self._failed:
            return None
        return result

    def do(self, run: Experiment) -> Result:
        """Executes a run and those it needs, or returns the results of an earlier process."""
        known = self.find(run)
        if known is not None:
            return known
        for needed in run.needs.values():
            result = self.do(needed)
            if result.failed:
                return self._keep(run, Result(0.0, failed=result.failed))
        out = self.out(run)
        out.parent.mkdir(parents=True, exist_ok=True)
        has_failed = (out.parent / RESULT).exists()
        if out.exists() and (has_failed or not is_begun(out)):
            # Left by a step that failed or cannot be resumed: it starts again.
            shutil.rmtree(out)
        # Without a result, the next process resumes this run if it is interrupted.
        (out.parent / RESULT).unlink(missing_ok=True)
        write_json(out.parent / RUN, {"step": run.step, "settings": dict(run.settings)})
        needs = {name: self.out(needed) for name, needed in run.needs.items()}
        started = time.monotonic()
        try:
            # The study logs which run it executes; the log of the run itself is in its folder.
            with quiet(logging.ERROR):
                figures = TABLE[run.step](out, **run.settings, **run.files, **needs)
        except Interrupted:
            raise
        except FirthError as error:
            log.warning(f"{run.step} {dict(run.settings)}: {error}")
            return self._keep(run, Result(time.monotonic() - started, failed=str(error)))
        return self._keep(run, Result(time.monotonic() - started, figures))

    def _keep(self, run: Experiment, result: Result) -> Result:
        folder = self.folder / run.key
        folder.mkdir(parents=True, exist_ok=True)
        if result.failed:
            self._failed.add(run.key)
        write_json(folder / RESULT, asdict(result))
        return result

    def missing(self, run: Experiment) -> Iterator[Experiment]:
        """The runs still to be executed for this one, needed ones first, each once."""
        seen: set[str] = set()
        yield from self._missing(run, seen)

    def _missing(self, run: Experiment, seen: set[str]) -> Iterator[Experiment]:
        if run.key in seen or self.find(run) is not None:
            return
        seen.add(run.key)
        for needed in run.needs.values():
            yield from self._missing(needed, seen)
        yield run
