"""The trials of a search for settings in, its one HTML page out."""

from pathlib import Path

from firth.finetuning.tuning.halving import RUNGS, UNDEFINED, share_of, written_figure
from firth.finetuning.tuning.running import TrialRow, TuningSummary, read_summary
from firth.report.markup import Html
from firth.report.page import Section, figure, page, section, table, tiles
from firth.report.page import verdict as verdict_box
from firth.report.parallel_coordinates import parallel_coordinates

SHOWN = {
    "method": "method",
    "rate": "rate",
    "epochs": "epochs",
    "batch_size": "batch",
    "layer_decay": "layer decay",
    "warmup_rate": "warm-up",
    "reinit_layers": "new layers",
}
"""The settings that are axes of the chart, and what they are called there."""


def gather(run: Path) -> str:
    """The page of a finished search."""
    return render(read_summary(run))


def render(summary: TuningSummary) -> str:
    best = summary["best"]
    facts = {
        "Task": summary["task"],
        "Trials": len(summary["trials"]),
        "Minutes": round(summary["seconds"] / 60, 2),
        summary["metric"]: written_figure(best["figure"]),
    }
    return page(
        f"Settings for {summary['task']}",
        [_coordinates(summary), _trials(summary)],
        kind="firth · search for settings",
        head=[_verdict(summary), tiles(facts)],
    )


def _verdict(summary: TuningSummary) -> Html:
    best = summary["best"]
    usual = [trial for trial in summary["trials"] if trial["number"] == 0]
    usual_figure = max(usual, key=lambda trial: trial["rung"])["figure"]
    changes = " ".join(summary["changes"])
    sentence = f"{summary['metric']} {written_figure(best['figure'])} with {changes}."
    remarks = [
        f"The usual settings reached {written_figure(usual_figure)}.",
        f"Both were measured on {summary['picked_on']}, on which the best was picked: a test file would show less.",
    ]
    if best["rung"] < RUNGS - 1:
        remarks.append("No setting was tried with all its epochs: the time was too short.")
    return verdict_box(sentence, remarks, good=best["rung"] == RUNGS - 1)


def _coordinates(summary: TuningSummary) -> Section:
    """A line for each setting, with the figure of its longest trial."""
    longest: dict[int, TrialRow] = {}
    for trial in sorted(summary["trials"], key=lambda trial: trial["rung"]):
        # A trial that diverged has no place on the last axis.
        if trial["figure"] > UNDEFINED:
            longest[trial["number"]] = trial
    if not longest:
        return section("Settings and figures", "No trial has a figure.")
    rows = []
    for trial in longest.values():
        row: dict[str, object] = {}
        for key, title in SHOWN.items():
            row[title] = trial["settings"][key]
        row[summary["metric"]] = round(trial["figure"], 4)
        rows.append(row)
    best = list(longest).index(summary["best"]["number"])
    caption = "A line is a setting; the best one is the thick line. The last axis is the figure of its longest trial."
    return section("Settings and figures", figure(parallel_coordinates(rows, best=best), caption, roll=True))


def _trials(summary: TuningSummary) -> Section:
    # The epochs have a column of their own.
    settings = [key for key in SHOWN if key != "epochs"]
    titles = [SHOWN[key] for key in settings]
    rows = []
    best_first = sorted(summary["trials"], key=_by_rung_and_figure)
    for trial in best_first:
        share = f"{share_of(trial['rung']):.0%}"
        cells = [trial["settings"][key] for key in settings]
        figure_cell: object = trial["figure"]
        if trial["figure"] <= UNDEFINED:
            figure_cell = written_figure(trial["figure"])
        rows.append([trial["number"], share, trial["epochs"], *cells, figure_cell, trial["seconds"]])
    columns = ["trial", "of its epochs", "epochs", *titles, summary["metric"], "seconds"]
    return section("All trials", table(columns, rows))


def _by_rung_and_figure(trial: TrialRow) -> tuple[float, float]:
    """Longer trials before shorter ones, then higher figures before lower ones."""
    return -trial["rung"], -trial["figure"]
