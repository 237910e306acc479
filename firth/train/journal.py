"""The logs of a run: metrics.jsonl (the same bytes for the same run) and timing.jsonl (seconds and rates).

In: the figures of a step. Out: one JSON object a line. With several ranks only rank 0 writes.
"""

import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

METRICS = "metrics.jsonl"
TIMING = "timing.jsonl"
Row = dict[str, Any]
"""A line of a log as it is read back: `step` and `split` of the metrics, then figures by name."""


class Journal:
    """Appends rows to a run's logs; a resumed run first cuts them back to where its state was saved."""

    FILES = (METRICS, TIMING)

    def __init__(self, folder: Path, *, lengths: Mapping[str, int] | None = None, writes: bool = True) -> None:
        """`lengths` are the sizes of the logs, in bytes, when the state was saved; without them the logs begin empty.

        `writes` is False for all ranks but one.
        """
        self.folder = folder
        self.writes = writes
        if not writes:
            return
        # Rows after the saved state are written again, byte for byte.
        saved_lengths = lengths or {}
        for name in self.FILES:
            path = folder / name
            path.touch()
            length = saved_lengths.get(name, 0)
            os.truncate(path, min(length, path.stat().st_size))

    @cached_property
    def _tensorboard(self) -> "SummaryWriter | None":
        """TensorBoard's log, if it is installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
        return SummaryWriter(str(self.folder / "tensorboard"))  # type: ignore[no-untyped-call]

    def metrics(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Logs losses and scores; `split` is "train" or "held-out"."""
        if not self.writes:
            return
        self._append(METRICS, {"step": step, "split": split, **_rounded(values)})
        if self._tensorboard is None:
            return
        for name, value in values.items():
            self._tensorboard.add_scalar(f"{split}/{name}", value, step)  # type: ignore[no-untyped-call]

    def timing(self, step: int, values: Mapping[str, float]) -> None:
        """Logs seconds and rates, which differ from run to run."""
        if self.writes:
            self._append(TIMING, {"step": step, **_rounded(values)})

    def close(self) -> None:
        """Closes TensorBoard's log, if a row was written to it."""
        writer = vars(self).get("_tensorboard")
        if writer is not None:
            writer.close()

    def lengths(self) -> dict[str, int]:
        """The sizes of the logs in bytes."""
        if not self.writes:
            return {}
        return {name: (self.folder / name).stat().st_size for name in self.FILES}

    def _append(self, name: str, row: Row) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()  # so that a page can watch the run


def read_rows(path: Path) -> list[Row]:
    """The rows of a log; none if there is no such file."""
    if not path.exists():
        return []
    # The last line may not be complete: the run is writing it, or the disk was full.
    complete, _, _ = path.read_text("utf-8").rpartition("\n")
    return [json.loads(line) for line in complete.splitlines()]


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    """The values with seven digits, which is what fp32 has."""
    rounded: dict[str, float] = {}
    for name, value in values.items():
        rounded[name] = float(f"{value:.7g}")
    return rounded
