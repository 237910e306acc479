"""Rows that the benches measure, shown as one table; and the peak of a process's memory."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """What was measured once a round, for firth and, in the same rounds, for a peer."""

    what: str
    unit: str = ""
    ours: Sequence[float] = ()
    peer: str = ""
    theirs: Sequence[float] = ()
    bar: str = ""
    """What is asked of the ratio."""
    note: str = ""

    @property
    def ratios(self) -> list[float]:
        return [mine / other for mine, other in zip(self.ours, self.theirs, strict=True)] if self.theirs else []

    def cells(self) -> list[str]:
        firth = f"{_mean(self.ours)} {self.unit}" if self.ours else ""
        peer = f"{self.peer} {_mean(self.theirs)}" if self.theirs else self.peer
        ratio = f"{sum(self.ratios) / len(self.ratios):.2f}" if self.ratios else ""
        found = self.ratios or self.ours
        spread = f"{_figure(min(found))}–{_figure(max(found))}" if len(found) > 1 else ""
        return [self.what, firth, peer, ratio, spread, self.bar, self.note]


def show(rows: Sequence[Row]) -> None:
    heads = ["what", "firth", "peer", "ratio", "spread of the rounds", "asked", "note"]
    cells = [heads, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(heads))]
    cells.insert(1, ["-" * width for width in widths])
    for line in cells:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |")


def say(text: str) -> None:
    """Progress, beside the table."""
    print(text, file=sys.stderr, flush=True)


def peak_memory() -> int:
    """The most MB this program had at once, since it began or since `forget_peak`; `getrusage` adds the parent's."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) // 1024 if found else 0


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _mean(values: Sequence[float]) -> str:
    return _figure(sum(values) / len(values))


def _figure(value: float) -> str:
    """Three digits: 0.456, 12.3, 4,560, 1.23M."""
    if value >= 1e6:
        return f"{value / 1e6:.3g}M"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
