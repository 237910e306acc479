"""Scores as pure functions: names, numbers and texts in; figures from 0 to 1 (correlations from -1 to 1) out.

Labels are compared by name. What is undefined follows the reference implementations: a precision, recall, F1 or
Matthews coefficient with nothing to divide by is 0; a correlation with a constant, an AUC without both classes and a
mean over nothing are nan.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from firth.errors import BadInput

nan = float("nan")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table of scores; `support` counts the gold items."""

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, slots=True)
class Table:
    """A row for each label, the row of all decisions together, and the plain mean of the labels' rows."""

    rows: Mapping[str, Row]
    micro: Row
    macro: Row


def as_rows(table: Table) -> dict[str, Any]:
    """A table for reports: label, precision, recall, F1, support."""
    return {"per_label": [[name, row.precision, row.recall, row.f1, row.support] for name, row in table.rows.items()]}


# Labels


def accuracy(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """The share of labels with the right name."""
    _same_length(gold, predicted)
    return _mean([str(g) == str(p) for g, p in zip(gold, predicted, strict=True)])


def confusion(gold: Sequence[Any], predicted: Sequence[Any], *, labels: Sequence[str] = ()) -> tuple[list[str], Any]:
    """Label names, and counts with a row for each gold and a column for each predicted label."""
    _same_length(gold, predicted)
    names = list(labels) or sorted({*map(str, gold), *map(str, predicted)})
    index = {name: i for i, name in enumerate(names)}
    counts_TT = np.zeros((len(names), len(names)), np.int64)
    try:
        pairs = [(index[str(g)], index[str(p)]) for g, p in zip(gold, predicted, strict=True)]
    except KeyError as missing:
        raise BadInput(f"Label {missing} is not among the known labels ({', '.join(names)}).") from None
    np.add.at(counts_TT, tuple(np.array(pairs, np.int64).reshape(-1, 2).T), 1)
    return names, counts_TT


def f1(gold: Sequence[Any], predicted: Sequence[Any], *, labels: Sequence[str] = ()) -> Table:
    """One label an example: `.macro.f1`, `.micro.f1`, and `.rows[positive].f1` for the binary one."""
    names, counts_TT = confusion(gold, predicted, labels=labels)
    return _table(names, counts_TT.diagonal(), counts_TT.sum(0), counts_TT.sum(1))


def multilabel_f1(gold: Sequence[Set[str]], predicted: Sequence[Set[str]], *, labels: Sequence[str] = ()) -> Table:
    """Any number of labels an example; `labels` adds those that nobody used to the macro mean."""
    _same_length(gold, predicted)
    right = Counter(name for g, p in zip(gold, predicted, strict=True) for name in g & p)
    guessed, wanted = (Counter(name for names in side for name in names) for side in (predicted, gold))
    names = sorted({*labels, *guessed, *wanted})
    return _table(names, *([count[name] for name in names] for count in (right, guessed, wanted)))


def exact_match(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """The share of examples whose whole answer (a set of labels, a list of tags) is right."""
    _same_length(gold, predicted)
    return _mean([g == p for g, p in zip(gold, predicted, strict=True)])


def matthews(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Matthews correlation, for two labels or more (Gorodkin 2004, R_K)."""
    counts_TT = confusion(gold, predicted)[1].astype(np.float64)
    wanted, guessed, total = counts_TT.sum(1), counts_TT.sum(0), counts_TT.sum()
    covariance = counts_TT.trace() * total - wanted @ guessed
    spread = (total**2 - wanted @ wanted) * (total**2 - guessed @ guessed)
    return float(covariance / np.sqrt(spread)) if spread else 0.0


# Numbers


def pearson(x: Any, y: Any) -> float:
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    _same_length(a, b)
    if len(a) < 2 or (a == a[0]).all() or (b == b[0]).all():
        return nan
    a, b = a - a.mean(), b - b.mean()
    return float(np.clip((a / np.linalg.norm(a)) @ (b / np.linalg.norm(b)), -1, 1))


def spearman(x: Any, y: Any) -> float:
    """Pearson correlation of the ranks; ties share their mean rank."""
    return pearson(_ranks(x), _ranks(y))


def roc_auc(positive: Any, scores: Any) -> float:
    """How likely a positive example scores above a negative one; a tie counts half (Mann-Whitney)."""
    is_positive, ranks = np.asarray(positive, bool), _ranks(scores)
    _same_length(is_positive, ranks)
    num = int(is_positive.sum())
    pairs = num * (len(ranks) - num)
    return float((ranks[is_positive].sum() - num * (num + 1) / 2) / pairs) if pairs else nan


def best_accuracy(positive: Any, scores: Any) -> tuple[float, float]:
    """The best accuracy of `score >= threshold`, and the threshold (the middle of the gap; lowest of equals)."""
    return _best(positive, scores, lambda right, guessed, wanted, n: (n - guessed - wanted + 2 * right) / n)


def best_f1(positive: Any, scores: Any) -> tuple[float, float]:
    """The best F1 of `score >= threshold`, and the threshold."""
    return _best(positive, scores, lambda right, guessed, wanted, n: 2 * right / np.maximum(guessed + wanted, 1))


# Rankings


def recall_at(ranked: Any, relevant: Sequence[Collection[Hashable]], *, k: int) -> float:
    """The mean share of relevant items among the first k; queries to which nothing is relevant do not count."""
    _same_length(ranked, relevant)
    return _mean([len({*row[:k]} & {*good}) / len({*good}) for row, good in _answerable(ranked, relevant)])


def mean_reciprocal_rank(ranked: Any, relevant: Sequence[Collection[Hashable]]) -> float:
    """The mean of 1 / rank of the first relevant item (0 when it is not in the list)."""
    _same_length(ranked, relevant)
    rows = _answerable(ranked, relevant)
    return _mean([next((1 / rank for rank, item in enumerate(row, 1) if item in good), 0.0) for row, good in rows])


# Tags

PREFIXES = {"BIO": "BIO", "BIOES": "BIOES", "BMES": "BMESO", "IO": "IO"}


def split_tag(tag: str) -> tuple[str, str]:
    """`B-PER` is (B, PER); bare tags, as of word segmentation, have the empty type."""
    prefix, _, kind = tag.partition("-")
    return prefix, kind


def entities(tags: Sequence[str], scheme: str) -> list[tuple[str, int, int]]:
    """(type, start, end) of the well-formed entities; a broken one (a lone I, a B without its E) is none."""
    if scheme == "IO":
        return _runs(tags)
    found, open_at, open_kind = [], -1, ""
    must_close = scheme != "BIO"
    for i, tag in enumerate([*tags, "O"]):
        prefix, kind = _checked(tag, scheme)
        goes_on = open_at >= 0 and prefix in "IME" and kind == open_kind
        if open_at >= 0 and (prefix == "E" if goes_on else not must_close):
            found.append((open_kind, open_at, i + goes_on))
        if prefix == "S":
            found.append((kind, i, i + 1))
        if prefix == "B":
            open_at, open_kind = i, kind
        elif not goes_on or prefix == "E":
            open_at = -1
    return found


def entity_f1(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, scheme: str) -> Table:
    """An entity is right when its type and both ends are (conlleval; seqeval's strict mode)."""
    _same_sentences(gold, predicted)
    sides = [{(i, *e) for i, tags in enumerate(side) for e in entities(tags, scheme)} for side in (gold, predicted)]
    wanted, guessed, right = (Counter(e[1] for e in side) for side in (*sides, sides[0] & sides[1]))
    names = sorted({*wanted, *guessed})
    return _table(names, *([count[name] for name in names] for count in (right, guessed, wanted)))


def token_accuracy(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    _same_sentences(gold, predicted)
    return accuracy([tag for tags in gold for tag in tags], [tag for tags in predicted for tag in tags])


@dataclass(frozen=True, slots=True)
class Segmentation:
    """Word segmentation as the SIGHAN bakeoffs report it; a recall over no words is nan."""

    words: Row
    oov_rate: float
    oov_recall: float
    iv_recall: float


def segmentation(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, vocabulary: Collection[str]
) -> Segmentation:
    """A word is right when both its ends are; `vocabulary` holds the words of the training text."""
    _same_length(gold, predicted)
    known, hits, num_guessed = [], [], 0
    for number, (wanted, guessed) in enumerate(zip(gold, predicted, strict=True), 1):
        if "".join(wanted) != "".join(guessed):
            raise BadInput(f"Sentence {number}: the predicted words do not spell the gold text; predict it again.")
        spans = _spans(guessed)
        num_guessed += len(guessed)
        known += [word in vocabulary for word in wanted]
        hits += [span in spans for span in _spans(wanted)]
    hit, iv = np.array(hits, bool), np.array(known, bool)
    return Segmentation(_row(hit.sum(), num_guessed, len(hit)), _mean(~iv), _mean(hit[~iv]), _mean(hit[iv]))


# Answers


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
    return {group + name: _mean(each[name][chosen]) for group, chosen in groups.items() for name in each}


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
    return {"em": _mean(em), "f1": _mean(f)}


# Parts


def _table(names: Sequence[str], right: Any, guessed: Any, wanted: Any) -> Table:
    rows = [_row(*counts) for counts in zip(right, guessed, wanted, strict=True)]
    micro = _row(sum(right), sum(guessed), sum(wanted))
    means = np.mean([(row.precision, row.recall, row.f1) for row in rows] or [(0.0, 0.0, 0.0)], 0).tolist()
    return Table(dict(zip(names, rows, strict=True)), micro, Row(means[0], means[1], means[2], micro.support))


def _row(right: int, guessed: int, wanted: int) -> Row:
    def share(part: float, whole: float) -> float:
        return float(part / whole) if whole else 0.0

    return Row(share(right, guessed), share(right, wanted), share(2 * right, guessed + wanted), int(wanted))


def _ranks(values: Any) -> np.ndarray:
    array = np.asarray(values, np.float64)
    _, group, sizes = np.unique(array, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(sizes) - (sizes - 1) / 2
    return np.where(np.isnan(array), nan, mean_ranks[group])


def _best(positive: Any, scores: Any, measure: Callable[..., Any]) -> tuple[float, float]:
    is_positive, values = np.asarray(positive, bool), np.asarray(scores, np.float64)
    _same_length(is_positive, values)
    if not len(values):
        return nan, nan
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    above, below = ordered[:-1], ordered[1:]
    middles = np.where((middle := below + (above - below) / 2) > below, middle, above)
    thresholds = np.concatenate([[ordered[0] + 1], middles, ordered[-1:]])
    right = np.concatenate([[0], np.cumsum(is_positive[order])])
    figures = measure(right, np.arange(len(values) + 1), right[-1], len(values)).astype(np.float64)
    figures[1:-1][above == below] = -1  # a threshold cannot part equal scores
    best = len(figures) - 1 - int(figures[::-1].argmax())
    return float(figures[best]), float(thresholds[best])


def _answerable(ranked: Any, relevant: Sequence[Collection[Hashable]]) -> list[tuple[Any, Any]]:
    return [
        (row.tolist() if isinstance(row, np.ndarray) else row, good)
        for row, good in zip(ranked, relevant, strict=True)
        if good
    ]


def _checked(tag: str, scheme: str) -> tuple[str, str]:
    if scheme not in PREFIXES:
        raise BadInput(f"'{scheme}' marks no entities; choose one of {', '.join(PREFIXES)}.")
    prefix, kind = split_tag(tag)
    if len(prefix) != 1 or prefix not in PREFIXES[scheme]:
        raise BadInput(f"Tag '{tag}' does not belong to {scheme}; its tags begin with {', '.join(PREFIXES[scheme])}.")
    return prefix, kind


def _runs(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    parts = [_checked(tag, "IO") for tag in tags]
    starts = [i for i, part in enumerate(parts) if not i or part != parts[i - 1]]
    spans = zip(starts, [*starts[1:], len(parts)], strict=True)
    return [(parts[start][1], start, end) for start, end in spans if parts[start][0] == "I"]


def _spans(words: Iterable[str]) -> dict[tuple[int, int], None]:
    ends = np.cumsum([len(word) for word in words], dtype=np.int64).tolist()
    return dict.fromkeys(zip([0, *ends[:-1]], ends, strict=True)) if ends else {}


def _best_gold(golds: Sequence[Sequence[str]], predicted: Sequence[str], pair: Callable[..., Any]) -> Any:
    _same_length(golds, predicted)
    rows = zip(golds, predicted, strict=True)
    figures = [np.max([pair(gold, text) for gold in texts or [""]], 0) for texts, text in rows]
    return np.array(figures, np.float64).reshape(-1, 2).T


def _squad_pair(gold: str, predicted: str) -> tuple[float, float]:
    g, p = squad_text(gold), squad_text(predicted)
    wanted, guessed = Counter(g.split()), Counter(p.split())
    if not wanted or not guessed:
        return float(g == p), float(g == p)
    return float(g == p), _row((wanted & guessed).total(), guessed.total(), wanted.total()).f1


def _cmrc_pair(gold: str, predicted: str) -> tuple[float, float]:
    g, p = ("".join(c for c in t.lower().strip() if c not in CMRC_PUNCTUATION) for t in (gold, predicted))
    wanted, guessed = _CMRC_TOKEN.findall(g), _CMRC_TOKEN.findall(p)
    return float(g == p), _row(_longest_run(wanted, guessed), len(guessed), len(wanted)).f1


def _longest_run(a: Sequence[str], b: Sequence[str]) -> int:
    best, lengths = 0, [0] * (len(b) + 1)
    for item in a:
        lengths = [0, *(before + 1 if item == other else 0 for before, other in zip(lengths, b, strict=False))]
        best = max(best, *lengths)
    return best


def _mean(values: Any) -> float:
    return float(np.mean(values)) if len(values) else nan


def _same_length(gold: Any, predicted: Any) -> None:
    if len(gold) != len(predicted):
        raise BadInput(f"There are {len(predicted)} predictions for {len(gold)} examples; predict the same file again.")


def _same_sentences(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> None:
    _same_length(gold, predicted)
    for number, (wanted, guessed) in enumerate(zip(gold, predicted, strict=True), 1):
        if len(wanted) != len(guessed):
            raise BadInput(f"Sentence {number} has {len(wanted)} tokens but {len(guessed)} predicted tags.")
