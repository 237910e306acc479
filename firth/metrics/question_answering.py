"""Answers as texts: exact match (EM) and F1 by SQuAD's and CMRC's rules, and the threshold for giving no answer."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from firth.metrics.classification import mean, nan, row_of, same_length

_Rule = Callable[[str, str], tuple[float, float]]
"""(gold, predicted) -> EM and F1 of one pair of answers."""


def squad_text(text: str) -> str:
    """SQuAD's normal form: lower case, no ASCII punctuation, no articles, single spaces."""
    kept = [character for character in text.lower() if character not in string.punctuation]
    without_articles = re.sub(r"\b(?:a|an|the)\b", " ", "".join(kept))
    return " ".join(without_articles.split())


def squad(golds: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
    """EM and F1 against the best gold answer, as in SQuAD 1.1 and 2.0 (no gold answer means: unanswerable).

    With `has_` and `no_` the same over questions with and without an answer, when there are both. Version 1.1's own
    script differs only where a gold answer is nothing but articles and punctuation (3 of its 10,570 dev questions).
    """
    em, f1 = squad_each(golds, predicted)
    has_answer = np.array([any(texts) for texts in golds], bool)
    groups = {"": np.ones_like(has_answer)}
    if has_answer.any() and not has_answer.all():
        groups["has_"] = has_answer
        groups["no_"] = ~has_answer
    figures = {}
    for group, chosen in groups.items():
        figures[f"{group}em"] = mean(em[chosen])
        figures[f"{group}f1"] = mean(f1[chosen])
    return figures


def squad_each(golds: Sequence[Sequence[str]], predicted: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """EM and F1 of every question."""
    usable = []
    for texts in golds:
        # An answer of articles and punctuation only is empty in SQuAD's normal form.
        usable.append([text for text in texts if squad_text(text)])
    return _best_gold(usable, predicted, _squad_pair)


def null_threshold(
    no_answer: ArrayLike,
    scores: ArrayLike,
    *,
    answerable: ArrayLike,
    answered: ArrayLike,
) -> tuple[float, float]:
    """The best mean score over all thresholds of `no_answer`, and the best threshold (SQuAD 2.0).

    A question is left unanswered if its `no_answer` lies above the threshold. `scores` are a question's EM or F1 with
    its answer given, `answered` says whether that answer is not empty.
    """
    doubts = np.asarray(no_answer, np.float64)
    gains = np.asarray(scores, np.float64)
    is_answerable = np.asarray(answerable, bool)
    if not len(doubts):
        return nan, nan
    # Start with no answers at all: every unanswerable question scores 1. Then give answers, those with the lowest doubt
    # first. Each one adds its score to an answerable question, and takes the point of an unanswerable one unless it is
    # empty.
    change = np.where(is_answerable, gains, -np.asarray(answered, np.float64))
    order = np.argsort(doubts, kind="stable")
    num_unanswerable = (~is_answerable).sum()
    changes_so_far = np.cumsum(change[order])
    totals = num_unanswerable + np.concatenate([[0.0], changes_so_far])
    below_all = doubts.min() - 1
    thresholds = np.concatenate([[below_all], doubts[order]])
    # Questions with equal doubts are on the same side of every threshold.
    is_tie = thresholds[:-1] == thresholds[1:]
    totals[:-1][is_tie] = -np.inf
    best = int(totals.argmax())
    return float(totals[best] / len(doubts)), float(thresholds[best])


CMRC_PUNCTUATION = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_CMRC_TOKEN = re.compile(
    # A Chinese character, or the full stop at the end of the text.
    r"""[\u4e00-\u9fa5]|\.(?=\s*$)"""
    # A word; full stops and commas belong to it inside a number or an abbreviation.
    r"""|(?:[^\s\u4e00-\u9fa5!"#$%&()',;<>?@\[\]{|}.–—]|\.(?!\s*$)|(?<=\d),(?=\d))+"""
    # A clitic such as 's, or a single punctuation mark.
    r"""|'[a-z]*|\S"""
)


def cmrc(golds: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
    """EM and F1 of CMRC 2018: Chinese by character, the rest by word; overlap is the longest common run.

    The official script cuts the rest with nltk; our rule gives as many words for 99.9 % of the set's own answers.
    """
    em, f1 = _best_gold(golds, predicted, _cmrc_pair)
    return {"em": mean(em), "f1": mean(f1)}


def _best_gold(golds: Sequence[Sequence[str]], predicted: Sequence[str], rule: _Rule) -> tuple[np.ndarray, np.ndarray]:
    """EM and F1 of every question, each against the gold answer that fits best; no gold answer is the empty one."""
    same_length(golds, predicted)
    best_em = []
    best_f1 = []
    for texts, answer in zip(golds, predicted, strict=True):
        pairs = [rule(gold, answer) for gold in texts or [""]]
        best_em.append(max(em for em, _ in pairs))
        best_f1.append(max(f1 for _, f1 in pairs))
    return np.array(best_em, np.float64), np.array(best_f1, np.float64)


def _squad_pair(gold: str, predicted: str) -> tuple[float, float]:
    """EM and F1 over the words of both answers, as bags."""
    gold_text = squad_text(gold)
    predicted_text = squad_text(predicted)
    em = float(gold_text == predicted_text)
    gold_words = Counter(gold_text.split())
    predicted_words = Counter(predicted_text.split())
    if not gold_words or not predicted_words:
        return em, em
    common = gold_words & predicted_words
    return em, row_of(common.total(), predicted_words.total(), gold_words.total()).f1


def _cmrc_pair(gold: str, predicted: str) -> tuple[float, float]:
    """EM and F1 over the longest common run of tokens."""
    gold_text = _cmrc_text(gold)
    predicted_text = _cmrc_text(predicted)
    gold_tokens = _CMRC_TOKEN.findall(gold_text)
    predicted_tokens = _CMRC_TOKEN.findall(predicted_text)
    overlap = _longest_run(gold_tokens, predicted_tokens)
    em = float(gold_text == predicted_text)
    return em, row_of(overlap, len(predicted_tokens), len(gold_tokens)).f1


def _cmrc_text(text: str) -> str:
    """CMRC's normal form: lower case, without its list of punctuation marks."""
    kept = [character for character in text.lower().strip() if character not in CMRC_PUNCTUATION]
    return "".join(kept)


def _longest_run(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common substring, by dynamic programming over two rows."""
    longest = 0
    # before[j] is the length of the common run that ends before item j of `second`.
    before = [0] * (len(second) + 1)
    for item in first:
        current = [0]
        for j, other in enumerate(second):
            length = 0
            if item == other:
                length = before[j] + 1
            current.append(length)
        longest = max(longest, *current)
        before = current
    return longest
