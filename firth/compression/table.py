"""What a user reads of a compression: the table of the gate as text, and the whole model card."""

from collections.abc import Sequence

from firth.compression.gate import INTERVAL, Comparison, Measured
from firth.compression.strength_search import Wanted

HEADER = ("model", "parameters", "megabytes", "texts/s, batches", "texts/s, single")


def lines(comparison: Comparison) -> list[str]:
    """The table in columns for a terminal, and the sentences below it."""
    rows = _rows(comparison)
    widths = []
    for column in zip(*rows, strict=True):
        widths.append(max(map(len, column)))
    shown = []
    for row in rows:
        # The name is on the left, the numbers on the right of their columns.
        cells = [row[0].ljust(widths[0])]
        for cell, width in zip(row[1:], widths[1:], strict=True):
            cells.append(cell.rjust(width))
        shown.append("  ".join(cells))
    return [*shown, *_sentences(comparison)]


def section(comparison: Comparison, *, title: str, sentences: Sequence[str]) -> str:
    """The part of the model card about the compression, in Markdown, with more sentences."""
    header, *rows = _rows(comparison)
    table = [_markdown(header), "|" + "---|" * len(header)]
    table += [_markdown(row) for row in rows]
    shown_table = "\n".join(table)
    shown_sentences = "\n".join([*_sentences(comparison), *sentences])
    return f"## Compressed by {title}\n\n{shown_table}\n\n{shown_sentences}\n"


def whole_card(text: str, *, section: str, original: str) -> str:
    """The card of a compressed model, from the `text` it was saved with.

    The section about the compression comes first. What is known of the original, by its own card, comes last.
    """
    title, _, _ = text.partition("\n")
    sections = [title, section]
    # A method without training keeps the card of a fine-tuned original; any other card is of the compressed model.
    if not original or text != original:
        sections.append(_as_section("The compressed model", text))
    if original:
        sections.append(_as_section("The original", original))
    body = "\n\n".join(part.strip() for part in sections)
    return f"{body}\n"


def _as_section(heading: str, card: str) -> str:
    """Another card as a section: without its title, its headings one level lower."""
    _, _, body = card.partition("\n")
    lines = []
    for line in body.strip().splitlines():
        if line.startswith("##"):
            line = f"#{line}"
        lines.append(line)
    return f"## {heading}\n\n" + "\n".join(lines)


def searched_sentence(wanted: Wanted, *, reached: bool) -> str:
    """What was asked for and whether it was found."""
    asked = []
    if wanted.keep is not None:
        asked.append(f"at least {wanted.keep:.4g} of the score")
    if wanted.faster is not None:
        asked.append(f"at least {wanted.faster:.4g} times the speed")
    conditions = " and ".join(asked)
    if reached:
        return f"The strength was chosen on these rows for {conditions}."
    return f"No strength was found on these rows with {conditions}; this is the best one."


def _rows(comparison: Comparison) -> list[tuple[str, ...]]:
    header = (*HEADER, comparison.metric)
    return [header, _row(comparison.original), _row(comparison.compressed)]


def _row(measured: Measured) -> tuple[str, ...]:
    return (
        measured.name,
        f"{measured.parameters:,}",
        f"{measured.disk_bytes / 1e6:.2f}",
        f"{measured.speed.batches:,.1f}",
        f"{measured.speed.single:,.1f}",
        f"{measured.score:.4f}",
    )


def _sentences(comparison: Comparison) -> list[str]:
    trial = comparison.trial
    size = comparison.compressed.disk_bytes / comparison.original.disk_bytes
    return [
        f"The model is {comparison.verdict}: {size:.2f} of the bytes, {trial.speedup:.2f} times the speed in batches, "
        f"{comparison.speedup.single:.2f} times for single texts.",
        f"It keeps {trial.kept:.4f} of the score: {comparison.metric} {_signed(comparison.difference)} "
        f"({INTERVAL} % interval {_signed(comparison.low)} to {_signed(comparison.high)}, {comparison.rows:,} rows).",
    ]


def _signed(difference: float) -> str:
    """A difference with its sign; what rounds to zero has that of zero."""
    return f"{round(difference, 4) + 0.0:+.4f}"


def _markdown(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
