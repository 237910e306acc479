"""The numbers and examples of a pre-training run in, its HTML page out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from firth.objectives import word_losses
from firth.report.axes import Points
from firth.report.charts import bars, heatmap, heatmaps, histogram, lines
from firth.report.judgement import judge, plural
from firth.report.markup import Html, tag
from firth.report.page import (
    Section,
    card,
    figure,
    fold,
    grid,
    notice,
    page,
    section,
    show,
    table,
    tiles,
)
from firth.report.page import verdict as verdict_box

MASK = "[MASK]"
_MOST_TOKENS = 32
_MOST_ROWS = 40
_ACCURACIES: dict[str, tuple[str, dict[str, float]]] = {
    "replaced_token_recall": ("Replaced tokens found (recall)", {}),
    "replaced_token_precision": ("Tokens rightly called replaced (precision)", {}),
    "next_sentence_accuracy": ("Sentence pairs told right", {"chance": 0.5}),
    "sentence_order_accuracy": ("Orders of sentences told right", {"chance": 0.5}),
}
"""Shares of a run's rows besides the words guessed right, with what they are called and what guessing reaches."""
_OTHER_LOSSES = ("replaced_token", "next_sentence", "sentence_order")

Ranked = Sequence[tuple[str, Sequence[tuple[str, float]]]]


@dataclass(frozen=True)
class PretrainingReport:
    """All a page about a pre-training run can tell; what is left out is not shown."""

    title: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Name and value of the key facts: recipe, size, parameters, steps ..."""
    metrics: Sequence[Mapping[str, Any]] = ()
    """The rows of metrics.jsonl; losses in nats, any key but `step` may be missing."""
    unigram_floor: float | None = None
    """Nats a model needs that knows only how frequent each token is."""
    health: Mapping[str, Any] = field(default_factory=dict)
    """What `prepare` found in the text: numbers, histograms of lengths (upper edge -> count), `warnings`."""
    fills: Ranked = ()
    """Texts with [MASK], each with (token, probability), likeliest first."""
    neighbours: Ranked = ()
    """Sentences, each with (other sentence, cosine), nearest first."""
    attention: tuple[Sequence[str], Any] | None = None
    """The tokens of one sentence and its weights: layers x heads x L x L."""


def render(run: PretrainingReport) -> str:
    sentence, remarks, good = judge(run.metrics, run.unigram_floor)
    head = [verdict_box(sentence, remarks, good=good), *([tiles(run.facts)] if run.facts else [])]
    makers = (_loss, _accuracy, _optimiser, _data, _fills, _neighbours, _attention)
    sections = [made for make in makers if (made := make(run))]
    return page(run.title, sections, kind="firth · pre-training report", head=head)


def points(metrics: Sequence[Mapping[str, Any]], key: str, split: str | None = None) -> Points:
    """(step, value) of every row that has this key."""
    rows = (row for row in metrics if split is None or row.get("split") == split)
    return [(float(row["step"]), float(row[key])) for row in rows if _is_number(row.get("step"), row.get(key))]


def _is_number(*values: Any) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _splits(run: PretrainingReport, key: str) -> dict[str, Points]:
    curves = {split: points(run.metrics, key, split) for split in ("train", "held-out")}
    return {split: curve for split, curve in curves.items() if curve}


def _losses() -> dict[str, str]:
    return {name: f"{what.replace(' ', '-')} loss" for name, what in word_losses().items()}


def _accuracies() -> dict[str, tuple[str, dict[str, float]]]:
    words = {name: f"{plural(what).capitalize()} guessed right" for name, what in word_losses().items()}
    return {f"{name}_accuracy": (label, dict[str, float]()) for name, label in words.items()} | _ACCURACIES


def _loss(run: PretrainingReport) -> Section | None:
    found = {what: curves for name, what in _losses().items() if (curves := _splits(run, name))}
    if not found:
        return None
    floor = {} if run.unigram_floor is None else {"unigram floor": run.unigram_floor}
    many = len(found) > 1
    curves = {f"{split}, {what}" if many else split: c for what, each in found.items() for split, c in each.items()}
    whose = "Generator's m" if _splits(run, "replaced_token") else "M"
    label = "Loss over words" if many else next(iter(found)).capitalize().replace("M", whose, 1)

    def draw(width: int, height: int) -> Html:
        return lines(
            curves, x_label="step", y_label=f"{label} (nats)", references=floor, smooth=True, width=width,
            height=height,
        )  # fmt: skip

    caption = "Lower is better. The faint line is every record of the training loss, the strong one its running mean."
    if floor:
        caption += " The dashed line is what knowing only how often each token occurs would give."
    return section("Loss", figure(draw(880, 380), caption, narrow=draw(360, 300)), _held_out_table(run))


def _held_out_table(run: PretrainingReport) -> str:
    rows = [row for row in run.metrics if row.get("split") == "held-out"]
    rows = [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, _MOST_ROWS).round().astype(int))] if rows else []
    others = {name: f"{name.replace('_', '-')} loss" for name in _OTHER_LOSSES}
    labels = _losses() | others | {name: label.lower() for name, (label, _) in _accuracies().items()}
    names = [name for name in labels if any(name in row for row in rows)]
    if not names:
        return ""
    cells = [[row.get(name) for name in ("step", *names)] for row in rows]
    return fold("The held-out measurements as a table", table(["step", *map(labels.__getitem__, names)], cells))


def _accuracy(run: PretrainingReport) -> Section | None:
    charts = []
    for key, (label, references) in _accuracies().items():
        if curves := _splits(run, key):
            svg = lines(curves, x_label="step", y_label=label, references=references, percent=True, smooth=True)
            charts.append(figure(svg))
    return section("Accuracy", grid(*charts)) if charts else None


def _optimiser(run: PretrainingReport) -> Section | None:
    charts = []
    for key, label, smooth in (("rate", "Learning rate", False), ("gradient_norm", "Gradient norm", True)):
        if curve := points(run.metrics, key):
            charts.append(figure(lines({label: curve}, x_label="step", y_label=label, smooth=smooth, height=220)))
    return section("Optimiser", grid(*charts)) if charts else None


def _data(run: PretrainingReport) -> Section | None:
    if not run.health:
        return None
    numbers = {name: value for name, value in run.health.items() if _is_number(value) and not name.endswith("_read")}
    facts = dict(_health_fact(name, value) for name, value in numbers.items() if value)
    notices = [notice(str(warning)) for warning in run.health.get("warnings") or ()]
    fine = "" if notices else "Preparation found nothing to warn about."
    shapes = [
        figure(histogram(*_doubling(counts), x_label=f"{name.replace('_', ' ')} (tokens)"))
        for name, counts in run.health.items()
        if isinstance(counts, Mapping) and counts
    ]
    return section("Data", fine, *notices, tiles(facts) if facts else "", grid(*shapes) if shapes else "")


def _health_fact(name: str, value: float) -> tuple[str, str]:
    if name.startswith("filled") or name.endswith(("_rate", "_efficiency")):
        return name, f"{value * 100:.3g}%"
    return (name.removesuffix("_nats"), f"{value:.2f} nats") if name.endswith("_nats") else (name, show(value))


def _doubling(counts: Mapping[str, int]) -> tuple[list[float], list[int]]:
    """Edges and counts of a histogram whose upper edges double; empty bins were left out of it."""
    edges = [min(map(int, counts))]
    while edges[-1] < max(map(int, counts)):
        edges.append(edges[-1] * 2)
    return [edges[0] // 2, *edges], [counts.get(str(edge), 0) for edge in edges]


def _fills(run: PretrainingReport) -> Section | None:
    if not run.fills:
        return None
    cards = [card(_with_blanks(text), bars(list(ranked))) for text, ranked in run.fills]
    lead = "What the model puts in the gap, with the probability it gives each token."
    return section("Filling gaps", lead, grid(*cards))


def _with_blanks(text: str) -> Html:
    first, *rest = text.split(MASK)
    blanks = [part for piece in rest for part in (tag("mark", MASK), piece)]
    return tag("p", first, *blanks, class_="said", dir="auto")


def _neighbours(run: PretrainingReport) -> Section | None:
    if not run.neighbours:
        return None
    cards = []
    for text, ranked in run.neighbours:
        rows = [
            tag(
                "li",
                tag("b", f"{cosine:.2f}", style=f"--share:{min(max(cosine, 0), 1):.0%}"),
                tag("span", other, dir="auto"),
            )
            for other, cosine in ranked
        ]
        cards.append(card(tag("p", text, class_="said", dir="auto"), tag("ul", *rows, class_="near")))
    lead = "The sentences the model puts nearest to each one, by the cosine between their vectors."
    return section("Similar sentences", lead, grid(*cards))


def _attention(run: PretrainingReport) -> Section | None:
    if run.attention is None:
        return None
    tokens, weights = list(run.attention[0])[:_MOST_TOKENS], np.asarray(run.attention[1], dtype=float)
    weights = weights[:, :, : len(tokens), : len(tokens)]
    layer, head = firmest_head(weights, tokens)
    cropped = "" if len(run.attention[0]) <= _MOST_TOKENS else f" Only the first {_MOST_TOKENS} tokens are drawn."
    large = figure(
        heatmap(tokens, weights[layer, head], x_label="looked at", y_label="looking"),
        "Each row is a token and shows how it spreads its attention; "
        f"the strongest colour stands for {weights[layer, head].max():.2f}."
        f" Of all heads this one looks most firmly at single words that are not its neighbours.{cropped}",
        heading=f"Layer {layer + 1}, head {head + 1}",
        roll=True,
    )
    small = figure(
        heatmaps(list(weights), row_label="layer", column_label="head", chosen=(layer, head)),
        "Every head on the same sentence and one scale; the framed one is shown large above.",
        heading="All layers and heads",
    )
    return section("Attention", large, small)


def firmest_head(weights: np.ndarray, tokens: Sequence[str]) -> tuple[int, int]:
    """(layer, head) that looks hardest at single words: special tokens, itself and neighbours do not count."""
    plain = np.array([not (token.startswith("[") and token.endswith("]") and len(token) > 2) for token in tokens])
    distant = np.abs(np.subtract.outer(np.arange(len(tokens)), np.arange(len(tokens)))) > 1
    weights = np.nan_to_num(weights)
    highest = weights == weights.max(axis=-1, keepdims=True)
    strength = np.where(plain[:, None] & plain & distant & highest, weights, 0).max(axis=-1).mean(axis=-1)
    layer, head = np.unravel_index(int(strength.argmax()), strength.shape)
    return int(layer), int(head)
