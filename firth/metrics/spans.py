"""Chains of tags: entities, token accuracy, and words as the SIGHAN bakeoffs count them."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from firth.errors import BadInput
from firth.metrics.names import Row, Table, accuracy, mean, row_of, same_length, table_of

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
    return table_of(names, *([count[name] for name in names] for count in (right, guessed, wanted)))


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
    same_length(gold, predicted)
    known, hits, num_guessed = [], [], 0
    for number, (wanted, guessed) in enumerate(zip(gold, predicted, strict=True), 1):
        if "".join(wanted) != "".join(guessed):
            raise BadInput(f"Sentence {number}: the predicted words do not spell the gold text; predict it again.")
        spans = _spans(guessed)
        num_guessed += len(guessed)
        known += [word in vocabulary for word in wanted]
        hits += [span in spans for span in _spans(wanted)]
    hit, iv = np.array(hits, bool), np.array(known, bool)
    return Segmentation(row_of(hit.sum(), num_guessed, len(hit)), mean(~iv), mean(hit[~iv]), mean(hit[iv]))


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


def _same_sentences(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> None:
    same_length(gold, predicted)
    for number, (wanted, guessed) in enumerate(zip(gold, predicted, strict=True), 1):
        if len(wanted) != len(guessed):
            raise BadInput(f"Sentence {number} has {len(wanted)} tokens but {len(guessed)} predicted tags.")
