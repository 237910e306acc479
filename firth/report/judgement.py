"""The metrics of a pre-training run in; one plain sentence, remarks and good-or-not out."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from firth.objectives import word_losses

_LITTLE = 0.5
"""Nats below the floor under which we would not say that a model has learned."""
_NOTHING = 0.05
_RISE = 0.05
"""Nats above its best at which a held-out loss counts as rising."""

Judgement = tuple[str, list[str], bool]


def judge(metrics: Sequence[Mapping[str, Any]], unigram_floor: float | None) -> Judgement:
    held_out = [row for row in metrics if row.get("split") == "held-out"]
    titles = word_losses()  # a run is judged by the first it has
    name = next((name for name in titles if any(name in row for row in metrics)), "masked_lm")
    losses = [(row.get("step"), row[name]) for row in held_out if isinstance(row.get(name), int | float)]
    broken = [row.get("step") for row in metrics if not all(math.isfinite(row.get(n) or 0.0) for n in titles)]
    if broken:
        return f"The run broke down: at step {broken[0]} its loss was no longer a number.", [], False
    if not losses:
        return "Nothing was held out, so this page cannot say whether the model has learned.", [], False
    loss = losses[-1][1]
    sentence, good = _against_floor(loss, unigram_floor)
    remarks = [
        _doubt(loss, unigram_floor, titles[name]),
        _accuracies(held_out),
        _rising(losses),
    ]
    return sentence, [remark for remark in remarks if remark], good


def _against_floor(loss: float, floor: float | None) -> tuple[str, bool]:
    if floor is None:
        return f"Held-out loss is {loss:.2f} nats; without a unigram floor there is nothing to hold it against.", False
    gain = floor - loss
    if gain >= _LITTLE:
        return f"The model has learned: held-out loss {loss:.2f} is {gain:.2f} nats below the unigram floor.", True
    if gain > _NOTHING:
        return (
            f"The model has learned little: held-out loss {loss:.2f} is only {gain:.2f} nats below the unigram floor.",
            False,
        )
    return (
        f"The model has not learned: held-out loss {loss:.2f} is no better than the unigram floor of {floor:.2f}, "
        "which counting tokens reaches."
    ), False  # fmt: skip


def _doubt(loss: float, floor: float | None, which: str) -> str:
    """Perplexity in plain words."""
    than = "" if floor is None or floor <= loss else f", where token counts alone leave {_choices(floor)}"
    return f"At a {which} it is left with {_choices(loss)} equally likely choices{than}."


def _choices(loss: float) -> str:
    value = math.exp(min(loss, 30))
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _accuracies(held_out: Sequence[Mapping[str, Any]]) -> str:
    def last(key: str) -> float | None:
        return next((row[key] for row in reversed(held_out) if isinstance(row.get(key), int | float)), None)

    found = {plural(what): last(f"{name}_accuracy") for name, what in word_losses().items()}
    guessed = [f"{share:.0%} of {what}" for what, share in found.items() if share is not None]
    recall, precision = last("replaced_token_recall"), last("replaced_token_precision")
    pairs = next(
        (p for name in ("next_sentence", "sentence_order") if (p := last(f"{name}_accuracy")) is not None), None
    )
    said = [f"guesses {' and '.join(guessed)} right"] if guessed else []
    if recall is not None and precision is not None:
        said.append(f"finds {recall:.0%} of replaced tokens (of those it names, {precision:.0%} are)")
    if pairs is not None:
        told = f"tells {pairs:.0%} of sentence pairs right"
        said.append(f"{told}, hardly more than the 50% of chance" if pairs < 0.55 else f"{told} (chance: 50%)")
    return f"It {' and '.join(said)}." if said else ""


def plural(what: str) -> str:
    """Several of what a loss over the vocabulary predicts: `tokens before`."""
    return re.sub("token|word", r"\g<0>s", what)


def _rising(losses: Sequence[tuple[Any, float]]) -> str:
    step, best = min(losses, key=lambda pair: pair[1])
    if losses[-1][1] - best < _RISE:
        return ""
    return f"Held-out loss was lowest at step {step} ({best:.2f}) and has risen since: the model is learning by heart."
