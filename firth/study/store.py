"""Runs kept by their key: a run that was done is not done again, one that failed is tried again the next time, and one
that was cut off continues.

STORE/KEY/run.json says what the run is, STORE/KEY/out is its folder, and STORE/KEY/result.json, written last, has its
figures or the sentence of its failure.
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
    """What came of a run."""

    seconds: float
    """Of the process that finished it; earlier ones that were cut off are not counted."""
    figures: Mapping[str, float | None] = field(default_factory=dict)
    """The first one is that which the run is judged by; None where one is undefined."""
    failed: str = ""
    """The sentence of a failure."""

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
        """The keys of runs that failed now. Those that failed at an earlier time are tried again."""

    def out(self, run: Experiment) -> Path:
        """The folder that a run writes."""
        return self.folder / run.key / OUT

    def find(self, run: Experiment) -> Result | None:
        """The result of a run that was done; None for one that failed at an earlier time."""
        path = self.folder / run.key / RESULT
        if not path.exists():
            return None
        result = from_dict(Result, read_json(path))
        if result.failed and run.key not in self._failed:
            return None
        return result

    def do(self, run: Experiment) -> Result:
        """Does a run and those it needs, or gives the results of an earlier time."""
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
            # Left by a step that failed or cannot go on: it begins again.
            shutil.rmtree(out)
        # If this time is cut off, the next one goes on.
        (out.parent / RESULT).unlink(missing_ok=True)
        write_json(out.parent / RUN, {"step": run.step, "settings": dict(run.settings)})
        needs = {name: self.out(needed) for name, needed in run.needs.items()}
        begun = time.monotonic()
        try:
            # A study says which run it does; what the run says is in its folder.
            with quiet(logging.ERROR):
                figures = TABLE[run.step](out, **run.settings, **run.files, **needs)
        except Interrupted:
            raise
        except FirthError as error:
            log.warning(f"{run.step} {dict(run.settings)}: {error}")
            return self._keep(run, Result(time.monotonic() - begun, failed=str(error)))
        return self._keep(run, Result(time.monotonic() - begun, figures))

    def _keep(self, run: Experiment, result: Result) -> Result:
        folder = self.folder / run.key
        folder.mkdir(parents=True, exist_ok=True)
        if result.failed:
            self._failed.add(run.key)
        write_json(folder / RESULT, asdict(result))
        return result

    def missing(self, run: Experiment) -> Iterator[Experiment]:
        """The runs that have to be done for this one, needed ones first, each once."""
        seen: set[str] = set()
        yield from self._missing(run, seen)

    def _missing(self, run: Experiment, seen: set[str]) -> Iterator[Experiment]:
        if run.key in seen or self.find(run) is not None:
            return
        seen.add(run.key)
        for needed in run.needs.values():
            yield from self._missing(needed, seen)
        yield run
