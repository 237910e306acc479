"""The metrics of a pre-training run in; one plain sentence, remarks and good-or-not out.

The held-out loss is compared with the unigram floor: the entropy of the token counts, which a model reaches that knows
only how often each token occurs.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from firth.objectives import trained_objectives, word_losses

_LITTLE = 0.5
"""Nats below the floor under which we would not say that a model has learned."""
_NOTHING = 0.05
"""Nats below the floor up to which a model has learned nothing."""
_RISE = 0.05
"""Nats above its best at which a held-out loss counts as rising."""

MetricsRow = Mapping[str, float | str | None]
"""One line of metrics.jsonl."""


class Judgement(NamedTuple):
    """What a run's metrics say about the model."""

    sentence: str
    remarks: list[str]
    good: bool


def judge(metrics: Sequence[MetricsRow], unigram_floor: float | None) -> Judgement:
    """Judges a run by its last held-out loss over the vocabulary."""
    titles = word_losses()
    broken_step = _diverged_at(metrics, titles)
    if broken_step is not None:
        return Judgement(f"The run broke down: at step {broken_step} its loss was no longer a number.", [], False)

    name = _judged_loss(metrics, titles)
    held_out = [row for row in metrics if row.get("split") == "held-out"]
    losses = _losses(held_out, name)
    if not losses:
        return Judgement("Nothing was held out, so this page cannot say whether the model has learned.", [], False)

    _, last_loss = losses[-1]
    sentence, good = _against_floor(last_loss, unigram_floor)
    # A remark may be empty.
    remarks = [
        _perplexity(last_loss, unigram_floor, titles[name]),
        _accuracies(held_out),
        _rising(losses),
    ]
    return Judgement(sentence, [remark for remark in remarks if remark], good)


def _diverged_at(metrics: Sequence[MetricsRow], titles: Mapping[str, str]) -> str | None:
    """The first step with a loss that is NaN or infinite, or None."""
    for row in metrics:
        for name in titles:
            loss = row.get(name)
            if isinstance(loss, int | float) and not math.isfinite(loss):
                return str(row.get("step"))
    return None


def _judged_loss(metrics: Sequence[MetricsRow], titles: Mapping[str, str]) -> str:
    """The first loss over the vocabulary that the run has."""
    for name in titles:
        if any(name in row for row in metrics):
            return name
    # Without any loss the caller finds nothing held out.
    return next(iter(titles))


def _losses(rows: Sequence[MetricsRow], name: str) -> list[tuple[str, float]]:
    """(step, loss) of every row that has this loss."""
    losses = []
    for row in rows:
        loss = row.get(name)
        if isinstance(loss, int | float):
            losses.append((str(row.get("step")), loss))
    return losses


def _against_floor(loss: float, floor: float | None) -> tuple[str, bool]:
    """The sentence of the page, and whether it is a good one."""
    if floor is None:
        return f"Held-out loss is {loss:.2f} nats; without a unigram floor there is nothing to hold it against.", False
    gain = floor - loss
    if gain >= _LITTLE:
        return f"The model has learned: held-out loss {loss:.2f} is {gain:.2f} nats below the unigram floor.", True
    if gain > _NOTHING:
        sentence = (
            f"The model has learned little: held-out loss {loss:.2f} is only {gain:.2f} nats below the unigram floor."
        )
    else:
        sentence = (
            f"The model has not learned: held-out loss {loss:.2f} is no better than the unigram floor of {floor:.2f}, "
            "which counting tokens reaches."
        )
    return sentence, False


def _perplexity(loss: float, floor: float | None, target: str) -> str:
    """Perplexity in plain words; `target` is what the loss predicts."""
    comparison = ""
    if floor is not None and floor > loss:
        comparison = f", where token counts alone leave {_choices(floor)}"
    return f"At a {target} it is left with {_choices(loss)} equally likely choices{comparison}."


def _choices(loss: float) -> str:
    # The cap keeps exp() finite.
    perplexity = math.exp(min(loss, 30))
    if perplexity >= 10:
        return f"{perplexity:,.0f}"
    return f"{perplexity:.1f}"


def _accuracies(held_out: Sequence[MetricsRow]) -> str:
    """The last accuracies of all goals as one sentence; empty if there are none."""
    statements = []
    guessed = []
    for name, target in word_losses().items():
        accuracy = _last_value(held_out, f"{name}_accuracy")
        if accuracy is not None:
            guessed.append(f"{accuracy:.0%} of {plural(target)}")
    if guessed:
        statements.append(f"guesses {' and '.join(guessed)} right")

    figures = _last_figures(held_out)
    for objective in trained_objectives():
        finding = objective.finding(figures)
        if finding:
            statements.append(finding)
    if not statements:
        return ""
    return f"It {' and '.join(statements)}."


def _last_value(rows: Sequence[MetricsRow], key: str) -> float | None:
    for row in reversed(rows):
        value = row.get(key)
        if isinstance(value, int | float):
            return value
    return None


def _last_figures(rows: Sequence[MetricsRow]) -> dict[str, float]:
    """For every metric its last value."""
    figures: dict[str, float] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, int | float):
                figures[name] = value
    return figures


def plural(target: str) -> str:
    """The plural of what a loss over the vocabulary predicts: `token before` -> `tokens before`."""
    return re.sub("token|word", r"\g<0>s", target)


def _rising(losses: Sequence[tuple[str, float]]) -> str:
    """A remark if the held-out loss has risen since its best; empty otherwise."""
    best_step, best_loss = losses[0]
    for step, loss in losses:
        if loss < best_loss:
            best_step = step
            best_loss = loss
    _, last_loss = losses[-1]
    if last_loss - best_loss < _RISE:
        return ""
    return (
        f"Held-out loss was lowest at step {best_step} ({best_loss:.2f}) and has risen since: "
        "the model is learning by heart."
    )
