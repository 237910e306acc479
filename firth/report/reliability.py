"""A classifier's calibration in, the parts of a report out: reliability diagrams and a table of abstain thresholds.

A diagram has a bar for each interval of confidence, as high as the share of its answers that is right. A calibrated
model's bars end on the diagonal. The width of a bar grows with its number of answers.
"""

from collections.abc import Sequence

from firth.report.markup import Html, tag
from firth.report.page import figure, grid, table
from firth.report.svg import svg, text
from firth.tasks.calibration import CalibrationSummary, ReliabilityRow, ThresholdRow

SIDE = 240.0
"""Pixels of a diagram's side."""
LEFT = 46.0
TOP = 26.0
BOTTOM = 44.0


def calibration_parts(summary: CalibrationSummary, picked_on: str) -> list[str]:
    """The diagrams before and after the temperature, and the thresholds for wanted precisions."""
    shown = summary["diagram_of"]
    before = summary["before"][shown]
    after = summary["after"][shown]
    lead = (
        f"The scores were divided by {summary['temperature']:.2f}, the temperature that fits {picked_on} best. On "
        f"{shown} the expected calibration error was {before:.3f} before and is {after:.3f} now."
    )
    charts = [
        figure(reliability_diagram(summary["diagram_before"]), f"As trained: error {before:.3f}."),
        figure(reliability_diagram(summary["diagram"]), f"With the temperature: error {after:.3f}."),
    ]
    parts: list[str] = [lead, grid(*charts)]
    if summary["thresholds"]:
        parts.append(
            "Abstain below a threshold to reach a wanted precision. Thresholds were found on dev; a test file shows "
            "whether they hold."
        )
        parts.append(_threshold_table(summary["thresholds"]))
    return parts


def _threshold_table(rows: Sequence[ThresholdRow]) -> Html:
    parts = list(rows[0]["answered"])
    columns = ["wanted precision", "answer above"]
    for part in parts:
        columns += [f"answered of {part}", f"precision on {part}"]
    cells: list[list[object]] = []
    for row in rows:
        cell: list[object] = [row["wanted"], row["above"]]
        for part in parts:
            answered = row["answered"][part]
            precision = row["precision"][part]
            written = "-" if precision is None else f"{precision:.4f}"
            cell += [f"{answered:.1%}", written]
        cells.append(cell)
    return table(columns, cells)


def reliability_diagram(bins: Sequence[ReliabilityRow]) -> Html:
    """Accuracy by confidence, with the diagonal of a calibrated model."""
    most = max([each["count"] for each in bins] + [1])
    bottom = TOP + SIDE
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = bottom - share * SIDE
        x = LEFT + share * SIDE
        parts.append(tag("line", class_="rule", x1=LEFT, x2=LEFT + SIDE, y1=y, y2=y))
        parts.append(text(LEFT - 7, y + 4, f"{share:.0%}", anchor="end"))
        parts.append(text(x, bottom + 17, f"{share:.0%}", anchor="middle"))
    spoken = []
    for each in bins:
        accuracy = each["accuracy"]
        if not each["count"] or accuracy is None:
            continue
        described = f"{each['count']:,} answers, mean confidence {each['confidence']:.1%}, right {accuracy:.1%}"
        bar = _bar(each, accuracy, share=each["count"] / most)
        parts.append(tag("g", tag("title", described), bar))
        spoken.append(described)
    parts.append(tag("line", class_="reference", x1=LEFT, y1=bottom, x2=LEFT + SIDE, y2=TOP))
    parts.append(text(LEFT + SIDE / 2, bottom + 36, "confidence", class_="axis", anchor="middle"))
    parts.append(text(LEFT, TOP - 10, "share that is right", class_="axis"))
    width = LEFT + SIDE + 20
    height = TOP + SIDE + BOTTOM
    return svg(f"reliability diagram: {'; '.join(spoken)}", width, height, *parts)


def _bar(row: ReliabilityRow, accuracy: float, *, share: float) -> Html:
    """The bar of a bin; `share` is its number of answers, compared with the bin that has the most."""
    slot = (row["high"] - row["low"]) * SIDE
    # Even a bin with few answers stays visible.
    width = slot * (0.25 + 0.75 * share**0.5)
    height = max(accuracy * SIDE, 1.5)
    middle = LEFT + (row["low"] + row["high"]) / 2 * SIDE
    top = TOP + SIDE - height
    return tag("rect", class_="bar", x=middle - width / 2, y=top, width=width, height=height)
