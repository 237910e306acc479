"""The numbers and examples of a pre-training run in, its HTML page out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from firth.objectives import trained_objectives, word_losses
from firth.report.axes import Points
from firth.report.charts import bars, histogram, lines
from firth.report.heatmaps import heatmap, heatmaps
from firth.report.judgement import MetricsRow, judge, plural
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
from firth.types import ShareFigure

MASK = "[MASK]"
_MOST_TOKENS = 32
"""An attention map of a longer sentence is cut to its first tokens."""
_MOST_ROWS = 40
"""A longer table of measurements shows rows at equal distances."""

Ranked = Sequence[tuple[str, Sequence[tuple[str, float]]]]
"""Texts, each with (answer, score) pairs, best first."""


@dataclass(frozen=True)
class PretrainingReport:
    """Everything a page about a pre-training run can show; what is left out is not shown."""

    title: str
    facts: Mapping[str, object] = field(default_factory=dict)
    """Name and value of the key facts: recipe, size, parameters, steps ..."""
    metrics: Sequence[MetricsRow] = ()
    """The rows of metrics.jsonl; losses in nats, any key but `step` may be missing."""
    unigram_floor: float | None = None
    """Entropy of the token counts in nats: the loss of a model that knows only how frequent each token is."""
    health: Mapping[str, object] = field(default_factory=dict)
    """What `prepare` found in the text: numbers, histograms of lengths (upper edge -> count), `warnings`."""
    fills: Ranked = ()
    """Texts with [MASK], each with (token, probability), most likely first."""
    neighbours: Ranked = ()
    """Sentences, each with (other sentence, cosine), nearest first."""
    attention: tuple[Sequence[str], ArrayLike] | None = None
    """The tokens of one sentence and its weights: layers x heads x L x L."""
    has_losses: bool = True
    """Whether there are losses to judge the run by; what is solved without gradients has none."""


def render(run: PretrainingReport) -> str:
    """The page as HTML."""
    head = []
    if run.has_losses:
        judgement = judge(run.metrics, run.unigram_floor)
        # The verdict comes first: it is what most readers want to know.
        head.append(verdict_box(judgement.sentence, judgement.remarks, good=judgement.good))
    if run.facts:
        head.append(tiles(run.facts))
    makers = [_data, _fills, _neighbours, _attention]
    if run.has_losses:
        makers = [_loss, _accuracy, _optimiser, *makers]
    sections = []
    for make in makers:
        made = make(run)
        if made is not None:
            sections.append(made)
    return page(run.title, sections, kind="firth · pre-training report", head=head)


def points(metrics: Sequence[MetricsRow], key: str, split: str | None = None) -> Points:
    """(step, value) of every row that has this key."""
    found = []
    for row in metrics:
        if split is not None and row.get("split") != split:
            continue
        step = row.get("step")
        value = row.get(key)
        if isinstance(step, int | float) and isinstance(value, int | float):
            found.append((float(step), float(value)))
    return found


def _splits(run: PretrainingReport, key: str) -> dict[str, Points]:
    """The curve of a metric for each split that has it."""
    curves = {}
    for split in ("train", "held-out"):
        curve = points(run.metrics, key, split)
        if curve:
            curves[split] = curve
    return curves


def _word_loss_names() -> dict[str, str]:
    """Every loss over the vocabulary, and its name on the page."""
    return {name: f"{target.replace(' ', '-')} loss" for name, target in word_losses().items()}


def _shares() -> dict[str, ShareFigure]:
    """Every accuracy, recall and precision that a metrics row may have."""
    shares = {}
    for name, target in word_losses().items():
        shares[f"{name}_accuracy"] = ShareFigure(f"{plural(target).capitalize()} guessed right")
    for objective in trained_objectives():
        shares.update(objective.shares)
    return shares


def _loss(run: PretrainingReport) -> Section | None:
    by_loss = {}
    for name, loss_name in _word_loss_names().items():
        splits = _splits(run, name)
        if splits:
            by_loss[loss_name] = splits
    if not by_loss:
        return None
    curves, label = _loss_curves(by_loss, is_generator=bool(_splits(run, "replaced_token")))
    references = {}
    caption = "Lower is better. The faint line is every record of the training loss, the strong one its running mean."
    if run.unigram_floor is not None:
        references["unigram floor"] = run.unigram_floor
        caption += " The dashed line is what knowing only how often each token occurs would give."

    # Drawn twice, because text in an SVG shrinks with it: once for wide screens, once for phones.
    def draw(width: int, height: int) -> Html:
        return lines(
            curves,
            x_label="step",
            y_label=f"{label} (nats)",
            references=references,
            smooth=True,
            width=width,
            height=height,
        )

    chart = figure(draw(880, 380), caption, narrow=draw(360, 300))
    return section("Loss", chart, _held_out_table(run))


def _loss_curves(by_loss: Mapping[str, Mapping[str, Points]], *, is_generator: bool) -> tuple[dict[str, Points], str]:
    """Loss name -> split -> points as named curves, and what their y axis is called."""
    curves = {}
    if len(by_loss) > 1:
        for loss_name, splits in by_loss.items():
            for split, curve in splits.items():
                curves[f"{split}, {loss_name}"] = curve
        return curves, "Loss over words"
    [(loss_name, splits)] = by_loss.items()
    curves.update(splits)
    label = loss_name.capitalize()
    if is_generator:
        # ELECTRA: the masked-LM loss is that of its small generator.
        label = label.replace("M", "Generator's m", 1)
    return curves, label


def _held_out_table(run: PretrainingReport) -> str:
    rows = [row for row in run.metrics if row.get("split") == "held-out"]
    rows = _evenly_spaced(rows)
    labels = _word_loss_names()
    for objective in trained_objectives():
        for name in objective.other_losses:
            labels[name] = f"{name.replace('_', '-')} loss"
    for name, share in _shares().items():
        labels[name] = share.label.lower()
    measured: set[str] = set()
    for row in rows:
        measured |= row.keys()
    names = [name for name in labels if name in measured]
    if not names:
        return ""
    columns = ["step"]
    columns += [labels[name] for name in names]
    cells = []
    for row in rows:
        values = [row.get(name) for name in names]
        cells.append([row.get("step"), *values])
    return fold("The held-out measurements as a table", table(columns, cells))


def _evenly_spaced(rows: Sequence[MetricsRow]) -> list[MetricsRow]:
    """At most 40 rows at equal distances, the first and the last among them."""
    if not rows:
        return []
    places = np.linspace(0, len(rows) - 1, _MOST_ROWS)
    nearest = np.unique(places.round().astype(int))
    return [rows[place] for place in nearest]


def _accuracy(run: PretrainingReport) -> Section | None:
    charts = []
    for key, share in _shares().items():
        curves = _splits(run, key)
        if not curves:
            continue
        references = {}
        if share.chance is not None:
            references["chance"] = share.chance
        svg = lines(
            curves,
            x_label="step",
            y_label=share.label,
            references=references,
            percent=True,
            smooth=True,
        )
        charts.append(figure(svg))
    if not charts:
        return None
    return section("Accuracy", grid(*charts))


def _optimiser(run: PretrainingReport) -> Section | None:
    charts = []
    for key, label, smooth in (("rate", "Learning rate", False), ("gradient_norm", "Gradient norm", True)):
        curve = points(run.metrics, key)
        if curve:
            svg = lines({label: curve}, x_label="step", y_label=label, smooth=smooth, height=220)
            charts.append(figure(svg))
    if not charts:
        return None
    return section("Optimiser", grid(*charts))


def _data(run: PretrainingReport) -> Section | None:
    """The health of the text: its warnings, its numbers, histograms of its lengths."""
    if not run.health:
        return None
    parts: list[str] = []
    warnings = run.health.get("warnings") or ()
    # A list of JSON strings.
    assert isinstance(warnings, Sequence)
    for warning in warnings:
        parts.append(notice(str(warning)))
    if not parts:
        parts.append("Preparation found nothing to warn about.")
    facts = {}
    histograms = []
    for name, value in run.health.items():
        if name == "language_tokens":
            assert isinstance(value, Mapping)
            facts.update({f"tokens of {language}": show(count) for language, count in value.items()})
        elif isinstance(value, Mapping) and value:
            edges, counts = _doubling_bins(value)
            x_label = f"{name.replace('_', ' ')} (tokens)"
            histograms.append(figure(histogram(edges, counts, x_label=x_label)))
        # Zeros say nothing, and what was read before cleaning is not what the model sees.
        elif isinstance(value, int | float) and value and not name.endswith("_read"):
            fact, text = _health_fact(name, value)
            facts[fact] = text
    if facts:
        parts.append(tiles(facts))
    if histograms:
        parts.append(grid(*histograms))
    return section("Data", *parts)


def _health_fact(name: str, value: float) -> tuple[str, str]:
    """The name and the value of a number as a tile shows them."""
    if name.startswith("filled") or name.endswith(("_rate", "_efficiency")):
        return name, f"{value * 100:.3g}%"
    if name.endswith("_nats"):
        return name.removesuffix("_nats"), f"{value:.2f} nats"
    return name, show(value)


def _doubling_bins(counts: Mapping[str, int]) -> tuple[list[float], list[int]]:
    """Edges and counts of a histogram whose upper edges double; its empty bins were left out."""
    known_edges = [int(edge) for edge in counts]
    upper_edges = [min(known_edges)]
    while upper_edges[-1] < max(known_edges):
        upper_edges.append(upper_edges[-1] * 2)
    first_edge = upper_edges[0] // 2
    bin_counts = [counts.get(str(edge), 0) for edge in upper_edges]
    return [first_edge, *upper_edges], bin_counts


def _fills(run: PretrainingReport) -> Section | None:
    if not run.fills:
        return None
    cards = []
    for text, ranked in run.fills:
        cards.append(card(_with_gaps(text), bars(ranked)))
    lead = "What the model puts in the gap, with the probability it gives each token."
    return section("Filling gaps", lead, grid(*cards))


def _with_gaps(text: str) -> Html:
    """A text in which every [MASK] is highlighted."""
    first, *rest = text.split(MASK)
    parts = [first]
    for piece in rest:
        parts.append(tag("mark", MASK))
        parts.append(piece)
    return tag("p", *parts, class_="said", dir="auto")


def _neighbours(run: PretrainingReport) -> Section | None:
    if not run.neighbours:
        return None
    cards = []
    for text, ranked in run.neighbours:
        rows = []
        for other, cosine in ranked:
            # The stylesheet draws the share as a bar below the number.
            share = min(max(cosine, 0), 1)
            score = tag("b", f"{cosine:.2f}", style=f"--share:{share:.0%}")
            rows.append(tag("li", score, tag("span", other, dir="auto")))
        sentence = tag("p", text, class_="said", dir="auto")
        cards.append(card(sentence, tag("ul", *rows, class_="near")))
    lead = "The sentences the model puts nearest to each one, by the cosine between their vectors."
    return section("Similar sentences", lead, grid(*cards))


def _attention(run: PretrainingReport) -> Section | None:
    if run.attention is None:
        return None
    all_tokens, all_weights = run.attention
    tokens = list(all_tokens)[:_MOST_TOKENS]
    # Layers x heads x L x L, cut to the tokens that are drawn.
    num_tokens = len(tokens)
    weights = np.asarray(all_weights, dtype=float)[:, :, :num_tokens, :num_tokens]
    layer, head = most_focused_head(weights, tokens)
    chosen = weights[layer, head]
    caption = (
        "Each row is a token and shows how it spreads its attention; "
        f"the strongest colour stands for {chosen.max():.2f}."
        " Of all heads this one looks most firmly at single words that are not its neighbours."
    )
    if len(all_tokens) > _MOST_TOKENS:
        caption += f" Only the first {_MOST_TOKENS} tokens are drawn."
    large = figure(
        heatmap(tokens, chosen, x_label="looked at", y_label="looking"),
        caption,
        heading=f"Layer {layer + 1}, head {head + 1}",
        roll=True,
    )
    small = figure(
        heatmaps(list(weights), row_label="layer", column_label="head", chosen=(layer, head)),
        "Every head on the same sentence and one scale; the framed one is shown large above.",
        heading="All layers and heads",
    )
    return section("Attention", large, small)


def most_focused_head(weights: np.ndarray, tokens: Sequence[str]) -> tuple[int, int]:
    """(layer, head) with the most attention on single words; special tokens, itself and neighbours do not count.

    `weights` are layers x heads x L x L, `tokens` the L tokens.
    """
    is_word_L = np.array([not _is_special(token) for token in tokens])
    place_L = np.arange(len(tokens))
    distance_LL = np.abs(np.subtract.outer(place_L, place_L))
    counts_LL = is_word_L[:, None] & is_word_L & (distance_LL > 1)
    weights = np.nan_to_num(weights)
    is_highest = weights == weights.max(axis=-1, keepdims=True)
    # For each token the weight of the word it looks at most, 0 where that one does not count; then the mean of a head.
    focus = np.where(counts_LL & is_highest, weights, 0).max(axis=-1)
    strength = focus.mean(axis=-1)
    best = int(strength.argmax())
    layer, head = np.unravel_index(best, strength.shape)
    return int(layer), int(head)


def _is_special(token: str) -> bool:
    return token.startswith("[") and token.endswith("]") and len(token) > 2
