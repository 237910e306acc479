"""Answers as texts: SQuAD's and CMRC's rules, and the threshold for saying nothing."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from firth.metrics.names import mean, nan, row_of, same_length


def squad_text(text: str) -> str:
    """SQuAD's normal form: lower case, no ASCII punctuation, no articles, single spaces."""
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(?:a|an|the)\b", " ", bare).split())


def squad(golds: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
    """EM and F1 against the best gold answer, as in SQuAD 1.1 and 2.0 (where no gold answer means: say nothing).

    With `has_` and `no_` the same over questions with and without an answer, when there are both. Version 1.1's own
    script differs only where a gold answer is nothing but articles and punctuation (3 of its 10,570 dev questions)."""
    each = dict(zip(("em", "f1"), squad_each(golds, predicted), strict=True))
    has = np.array([any(texts) for texts in golds], bool)
    groups = {"": has | True, "has_": has, "no_": ~has} if has.any() and not has.all() else {"": has | True}
    return {group + name: mean(each[name][chosen]) for group, chosen in groups.items() for name in each}


def squad_each(golds: Sequence[Sequence[str]], predicted: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """EM and F1 of every question."""
    em, f = _best_gold([[*filter(squad_text, texts)] for texts in golds], predicted, _squad_pair)
    return em, f


def null_threshold(no_answer: Any, scores: Any, *, answerable: Any, answered: Any) -> tuple[float, float]:
    """The best mean score when a question is left unanswered if its `no_answer` lies above a threshold; and that.

    `scores` are a question's EM or F1 with its answer given, `answered` whether the answer is not empty (SQuAD 2.0)."""
    doubt, gains = np.asarray(no_answer, np.float64), np.asarray(scores, np.float64)
    has = np.asarray(answerable, bool)
    if not len(doubt):
        return nan, nan
    change = np.where(has, gains, -np.asarray(answered, np.float64))
    order = np.argsort(doubt, kind="stable")
    totals = (~has).sum() + np.concatenate([[0.0], np.cumsum(change[order])])
    edges = np.concatenate([[doubt.min() - 1], doubt[order]])
    totals[:-1][edges[:-1] == edges[1:]] = -np.inf  # equal doubts fall on the same side
    best = int(totals.argmax())
    return float(totals[best] / len(doubt)), float(edges[best])


CMRC_PUNCTUATION = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_CMRC_TOKEN = re.compile(  # a Chinese character, the last full stop; or a word; or a clitic, a mark
    r"""[\u4e00-\u9fa5]|\.(?=\s*$)"""
    r"""|(?:[^\s\u4e00-\u9fa5!"#$%&()',;<>?@\[\]{|}.–—]|\.(?!\s*$)|(?<=\d),(?=\d))+"""
    r"""|'[a-z]*|\S"""
)


def cmrc(golds: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
    """EM and F1 of CMRC 2018: Chinese by character, the rest by word; overlap is the longest common run.

    The official script cuts the rest with nltk; our rule gives as many words for 99.9 % of the set's own answers."""
    em, f = _best_gold(golds, predicted, _cmrc_pair)
    return {"em": mean(em), "f1": mean(f)}


def _best_gold(golds: Sequence[Sequence[str]], predicted: Sequence[str], pair: Callable[..., Any]) -> Any:
    same_length(golds, predicted)
    rows = zip(golds, predicted, strict=True)
    figures = [np.max([pair(gold, text) for gold in texts or [""]], 0) for texts, text in rows]
    return np.array(figures, np.float64).reshape(-1, 2).T


def _squad_pair(gold: str, predicted: str) -> tuple[float, float]:
    g, p = squad_text(gold), squad_text(predicted)
    wanted, guessed = Counter(g.split()), Counter(p.split())
    if not wanted or not guessed:
        return float(g == p), float(g == p)
    return float(g == p), row_of((wanted & guessed).total(), guessed.total(), wanted.total()).f1


def _cmrc_pair(gold: str, predicted: str) -> tuple[float, float]:
    g, p = ("".join(c for c in t.lower().strip() if c not in CMRC_PUNCTUATION) for t in (gold, predicted))
    wanted, guessed = _CMRC_TOKEN.findall(g), _CMRC_TOKEN.findall(p)
    return float(g == p), row_of(_longest_run(wanted, guessed), len(guessed), len(wanted)).f1


def _longest_run(a: Sequence[str], b: Sequence[str]) -> int:
    best, lengths = 0, [0] * (len(b) + 1)
    for item in a:
        lengths = [0, *(before + 1 if item == other else 0 for before, other in zip(lengths, b, strict=False))]
        best = max(best, *lengths)
    return best
