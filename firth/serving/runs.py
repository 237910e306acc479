"""Run folders for a page that watches them: which there are, and the rows that came since the last look."""

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from firth.errors import FirthError
from firth.files import MANIFEST, read_json
from firth.run_folder import FinetuningSource, read_source
from firth.serving.responses import Refusal

METRICS = "metrics.jsonl"
MOST_BYTES = 1_000_000
"""Rows of one answer; the next look brings the next ones."""
MOST_RUNS = 500
QUIET_SECONDS = 120.0
"""After so long without a row an unfinished run counts as stopped."""


@dataclass(frozen=True)
class Runs:
    """The runs in a folder, in its folders, and in theirs (the seeds of a fine-tuning)."""

    root: Path

    def list(self) -> list[dict[str, Any]]:
        rows = list[dict[str, Any]]()
        for name, path in self._found().items():
            with suppress(OSError):  # removed since it was found
                rows.append(self._row(name, path))
        return sorted(rows, key=lambda row: -row["updated"])

    def rows(self, name: str, after: int) -> dict[str, Any]:
        """The whole lines behind byte `after`; a run that was resumed may have cut its file, then from the start."""
        try:
            return self._rows(name, self._found()[name], after)
        except (KeyError, OSError):
            raise Refusal(404, "not_found", "There is no such run; GET /runs lists them.") from None

    def _rows(self, name: str, path: Path, after: int) -> dict[str, Any]:
        restarted = after > path.stat().st_size
        start = 0 if restarted else after
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(MOST_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        row = self._row(name, path)
        return {
            "run": name,
            "rows": [value for line in whole.splitlines() if (value := _object(line)) is not None],
            "next": start + len(whole),
            "restarted": restarted,
            "state": row["state"],
            "floor": row["floor"],
        }

    def _found(self) -> dict[str, Path]:
        """By name, which is only ever looked up here: no path is made of what a client says."""
        found: dict[str, Path] = {}
        level = [self.root]
        for _ in range(3):
            paths = [folder / METRICS for folder in level if (folder / METRICS).is_file()]
            found |= {str(path.parent.relative_to(self.root)): path for path in paths}
            level = [inner for folder in level for inner in _folders(folder)]
        return {
            (self.root.resolve().name if name == "." else name): path for name, path in islice(found.items(), MOST_RUNS)
        }

    def _row(self, name: str, path: Path) -> dict[str, Any]:
        status = path.stat()
        finished = (path.parent / MANIFEST).exists() or (path.parent.parent / MANIFEST).exists()
        live = not finished and time.time() - status.st_mtime < QUIET_SECONDS
        facts = _facts(path.parent)
        return {
            "name": name,
            "state": "finished" if finished else "running" if live else "stopped",
            "updated": status.st_mtime,
            "floor": _number(facts.get("unigram_floor")),
            "steps": facts.get("steps") if isinstance(facts.get("steps"), int) else None,
            "bytes": status.st_size,
        }


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:  # removed since it was found, or not for this user's eyes
        return []


def _facts(run: Path) -> dict[str, Any]:
    """What a finished run says of itself; of one that goes on, the floor of the text it reads."""
    try:
        if (run / "firth.json").exists():
            return dict(read_json(run / "firth.json"))
        source = read_source(run)
        if isinstance(source, FinetuningSource):
            return {}
        shards = Path(source.data) / "shards.json"
        return {"unigram_floor": read_json(shards)["health"]["entropy_nats"]}
    except (FirthError, OSError, KeyError, TypeError, ValueError):
        return {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
