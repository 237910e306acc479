"""Rows of the compression benches in, Markdown tables out: one for each model and data set."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bench.compression_plans import ON_CPU, ORIGINAL, PLANS
from firth import rng

DRAWS = 1000
INTERVAL = (2.5, 97.5)
INFINITE = float("inf")
TARGETS = (
    (2.0, INFINITE, 0.99, "2 times as fast at 0.99 of the score"),
    (4.0, INFINITE, 0.97, "4 times as fast at 0.97 of the score"),
    (0.0, 3.0, 0.95, "at most 3 MB at 0.95 of the score"),
)
"""The least speed, the most megabytes, the least share of the score, and all that in words."""
Row = Mapping[str, Any]


class TableRow:
    """A plan's figures: means over its seeds."""

    def __init__(self, plan: str, runs: Sequence[Row], originals: Mapping[int, Row], speed: Row) -> None:
        self.plan = plan
        self.scores = [run["score"] for run in runs]
        self.megabytes = float(np.mean([run["bytes"] for run in runs])) / 1e6
        self.parameters = float(np.mean([run["parameters"] for run in runs])) / 1e6
        self.speedup = float(speed.get("speedup", np.nan))
        self.single = float(speed.get("single", np.nan))
        shares = [run["score"] / originals[run["seed"]]["score"] for run in runs if run["seed"] in originals]
        self.kept = float(np.mean(shares)) if shares else float("nan")

    def cells(self, difference: str) -> list[str]:
        spread = f" ± {100 * np.std(self.scores, ddof=1):.1f}" if len(self.scores) > 1 else ""
        return [
            self.plan,
            f"{self.parameters:.1f}",
            f"{self.megabytes:.1f}",
            _times(self.speedup),
            _times(self.single),
            f"{100 * np.mean(self.scores):.1f}{spread}",
            f"{self.kept:.3f}",
            difference,
            str(len(self.scores)),
        ]


HEADER = (
    "method", "M parameters", "MB", "speed, batches", "speed, single", "score", "of the original's",
    "teacher's gain (95 % interval)", "seeds",
)  # fmt: skip


def lines(rows: Sequence[Row], speeds: Sequence[Row]) -> Iterator[str]:
    """All tables, with what failed and which targets were reached below each."""
    for model, name in sorted({(row["model"], row["set"]) for row in rows}):
        own = [row for row in rows if (row["model"], row["set"]) == (model, name)]
        own_speeds = [row for row in speeds if (row["model"], row["set"]) == (model, name)]
        yield from table(model, name, own, own_speeds)
        yield ""


def table(model: str, name: str, rows: Sequence[Row], speeds: Sequence[Row]) -> Iterator[str]:
    by_plan = {row["plan"]: row for row in speeds if "plan" in row}
    runs: dict[str, dict[int, Row]] = {}
    for row in rows:
        if "score" in row:
            runs.setdefault(row["plan"], {})[row["seed"]] = row
    originals = runs.get(ORIGINAL, {})
    if not originals:
        yield f"{name}, {model}: no original was fine-tuned."
        return
    metric = next(iter(originals.values()))["metric"]
    yield f"**{name}**, {model} ({metric} in hundredths)"
    yield ""
    yield "| " + " | ".join(HEADER) + " |"
    yield "|" + "---|" * len(HEADER)
    shown: list[TableRow] = []
    for plan in (ORIGINAL, *PLANS, *(plan.name for plan in ON_CPU)):
        speed = {"speedup": 1.0, "single": 1.0} if plan == ORIGINAL else by_plan.get(plan, {})
        seeds = runs.get(plan) or _measured_here(speed)
        if not seeds:
            continue
        # What is made on the CPU is made of an original in 8 bits.
        compared = {1: {"score": speed["original_score"]}} if "original_score" in speed else originals
        shown.append(TableRow(plan, list(seeds.values()), compared, speed))
        against = PLANS[plan].against if plan in PLANS else ""
        gain = difference(seeds, runs.get(against, {}), originals) if against else ""
        yield "| " + " | ".join(shown[-1].cells(gain)) + " |"
    yield ""
    yield from _sentences(shown, rows, speeds)


def _measured_here(speed: Row) -> dict[int, Row]:
    """A plan that was made on the CPU, from the original of the first seed; empty for any other."""
    if "score" not in speed:
        return {}
    return {1: {"bytes": 0, "parameters": 0, **speed, "seed": 1}}


def _sentences(shown: Sequence[TableRow], rows: Sequence[Row], speeds: Sequence[Row]) -> Iterator[str]:
    for speedup, megabytes, kept, words in TARGETS:
        found = []
        for row in shown:
            is_small_or_fast = (not speedup or row.speedup >= speedup) and row.megabytes <= megabytes
            if is_small_or_fast and row.kept >= kept:
                found.append(row.plan)
        yield f"{words}: {'; '.join(found) or 'none'}."
    reasons: dict[str, str] = {}
    for run in (*rows, *speeds):
        reason = run.get("refused") or run.get("failed")
        if reason and "plan" in run:
            reasons[run["plan"]] = str(reason).strip().splitlines()[-1]
    for plan, reason in reasons.items():
        yield f"Not made: {plan}: {reason}"


def difference(runs: Mapping[int, Row], alone: Mapping[int, Row], originals: Mapping[int, Row]) -> str:
    """The mean difference of two plans over the seeds that both have, and its interval."""
    seeds = sorted(runs.keys() & alone.keys())
    if not seeds:
        return ""
    gold = _labels(next(iter(originals.values()))["gold"])
    measure = MEASURES[next(iter(runs.values()))["metric"]]
    pairs = [(_labels(runs[seed]["answers"]), _labels(alone[seed]["answers"])) for seed in seeds]
    key = rng.key("seeds and rows")
    values = []
    for draw in range(DRAWS):
        rows = rng.below(key, len(gold), np.arange(len(gold)), draw)
        drawn_seeds = rng.below(key, len(pairs), np.arange(len(pairs)), draw, 1)
        drawn = [pairs[number] for number in drawn_seeds]
        values.append(np.mean([measure(a[rows], gold[rows]) - measure(b[rows], gold[rows]) for a, b in drawn]))
    low, high = 100 * np.percentile(values, INTERVAL)
    mean = 100 * np.mean([measure(a, gold) - measure(b, gold) for a, b in pairs])
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def _labels(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8) - ord("0")


def accuracy(answers: np.ndarray, gold: np.ndarray) -> float:
    return float((answers == gold).mean())


def f1(answers: np.ndarray, gold: np.ndarray) -> float:
    """F1 of the label 1."""
    hits = ((answers == 1) & (gold == 1)).sum()
    total = (answers == 1).sum() + (gold == 1).sum()
    return float(2 * hits / total) if total else 0.0


MEASURES: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {"accuracy": accuracy, "f1": f1}


def _times(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.2f} ×"
