"""What a run writes while it goes: metrics.jsonl (the same bytes for the same run) and timing.jsonl (rates)."""

import json
import os
from functools import cached_property
from pathlib import Path
from typing import Any


class Journal:
    """Appends rows to a run's logs; a resumed run first cuts them back to where its state was saved."""

    FILES = ("metrics.jsonl", "timing.jsonl")

    def __init__(self, folder: Path, *, lengths: dict[str, int] | None = None) -> None:
        self.folder = folder
        for name in self.FILES:
            path = folder / name
            path.touch()
            os.truncate(path, min((lengths or {}).get(name, 0), path.stat().st_size))

    @cached_property
    def _board(self) -> Any:
        """TensorBoard's own log, where it is installed and there are curves to show."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
        return SummaryWriter(str(self.folder / "tensorboard"))  # type: ignore[no-untyped-call]

    def metrics(self, step: int, split: str, values: dict[str, float]) -> None:
        self._append("metrics.jsonl", {"step": step, "split": split, **{k: _short(v) for k, v in values.items()}})
        for name, value in values.items():
            if self._board:
                self._board.add_scalar(f"{split}/{name}", value, step)

    def timing(self, step: int, values: dict[str, float]) -> None:
        self._append("timing.jsonl", {"step": step, **{k: _short(v) for k, v in values.items()}})

    def close(self) -> None:
        if self._board:
            self._board.close()

    def lengths(self) -> dict[str, int]:
        return {name: (self.folder / name).stat().st_size for name in self.FILES}

    def _append(self, name: str, row: dict[str, Any]) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def _short(value: float) -> float:
    return float(f"{value:.7g}")
