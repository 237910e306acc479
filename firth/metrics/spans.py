"""Chains of tags: entities, token accuracy, and word segmentation as the SIGHAN bakeoffs score it."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from firth.errors import BadInput
from firth.metrics.classification import Row, Table, accuracy, count_table, mean, row_of, same_length

PREFIXES = {"BIO": "BIO", "BIOES": "BIOES", "BMES": "BMESO", "IO": "IO"}
"""The letters a scheme's tags begin with."""

Entity = tuple[str, int, int]
"""(type, start, end): the tokens from start up to but not including end."""


def split_tag(tag: str) -> tuple[str, str]:
    """`B-PER` is (B, PER); bare tags, as of word segmentation, have the empty type."""
    prefix, _, kind = tag.partition("-")
    return prefix, kind


def entities(tags: Sequence[str], scheme: str) -> list[Entity]:
    """The well-formed entities; a broken one (a lone I, a B without its E) is none."""
    if scheme == "IO":
        return _runs(tags)
    found: list[Entity] = []
    open_at = -1
    open_kind = ""
    must_close = scheme != "BIO"
    # A last O ends an entity that is still open.
    for i, tag in enumerate([*tags, "O"]):
        prefix, kind = _checked(tag, scheme)
        # 1. Does this tag continue or close the open entity?
        is_open = open_at >= 0
        continues = is_open and prefix in "IME" and kind == open_kind
        if continues and prefix == "E":
            found.append((open_kind, open_at, i + 1))
        elif is_open and not continues and not must_close:
            found.append((open_kind, open_at, i))
        # 2. Does it make an entity of one token, or open a new one?
        if prefix == "S":
            found.append((kind, i, i + 1))
        if prefix == "B":
            open_at = i
            open_kind = kind
        elif not continues or prefix == "E":
            open_at = -1
    return found


def entity_f1(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, scheme: str) -> Table:
    """An entity is right when its type and both ends are (conlleval; seqeval's strict mode)."""
    _same_sentences(gold, predicted)
    num_right: Counter[str] = Counter()
    num_predicted: Counter[str] = Counter()
    num_gold: Counter[str] = Counter()
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_entities = set(entities(gold_tags, scheme))
        predicted_entities = set(entities(predicted_tags, scheme))
        num_gold += _count_types(gold_entities)
        num_predicted += _count_types(predicted_entities)
        num_right += _count_types(gold_entities & predicted_entities)
    return count_table(num_right, num_predicted, num_gold)


def _count_types(found: Iterable[Entity]) -> Counter[str]:
    return Counter(kind for kind, _, _ in found)


def token_accuracy(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """The share of tokens with the right tag, over all sentences."""
    _same_sentences(gold, predicted)
    gold_tags = list(chain.from_iterable(gold))
    predicted_tags = list(chain.from_iterable(predicted))
    return accuracy(gold_tags, predicted_tags)


@dataclass(frozen=True, slots=True)
class Segmentation:
    """Word segmentation as the SIGHAN bakeoffs report it; a recall over no words is nan."""

    words: Row
    oov_rate: float
    """Share of gold words that are out of vocabulary: not in the training text."""
    oov_recall: float
    iv_recall: float


def segmentation(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    *,
    vocabulary: Collection[str],
) -> Segmentation:
    """A word is right when both its ends are; `vocabulary` holds the words of the training text."""
    same_length(gold, predicted)
    known: list[bool] = []
    hits: list[bool] = []
    num_predicted = 0
    for number, (gold_words, predicted_words) in enumerate(zip(gold, predicted, strict=True), 1):
        # The spans below count characters of the same text.
        if "".join(gold_words) != "".join(predicted_words):
            raise BadInput(f"Sentence {number}: the predicted words do not spell the gold text; predict it again.")
        predicted_spans = set(_word_spans(predicted_words))
        num_predicted += len(predicted_words)
        for word, span in zip(gold_words, _word_spans(gold_words), strict=True):
            known.append(word in vocabulary)
            hits.append(span in predicted_spans)
    is_hit = np.array(hits, bool)
    is_known = np.array(known, bool)
    return Segmentation(
        words=row_of(is_hit.sum(), num_predicted, len(is_hit)),
        oov_rate=mean(~is_known),
        oov_recall=mean(is_hit[~is_known]),
        iv_recall=mean(is_hit[is_known]),
    )


def _checked(tag: str, scheme: str) -> tuple[str, str]:
    """The prefix and the type of a tag that belongs to the scheme."""
    if scheme not in PREFIXES:
        raise BadInput(f"'{scheme}' marks no entities; choose one of {', '.join(PREFIXES)}.")
    prefix, kind = split_tag(tag)
    if len(prefix) != 1 or prefix not in PREFIXES[scheme]:
        raise BadInput(f"Tag '{tag}' does not belong to {scheme}; its tags begin with {', '.join(PREFIXES[scheme])}.")
    return prefix, kind


def _runs(tags: Sequence[str]) -> list[Entity]:
    """The entities of the IO scheme: runs of I tags of one type."""
    parts = [_checked(tag, "IO") for tag in tags]
    found: list[Entity] = []
    start = 0
    for i, part in enumerate(parts):
        is_last = i + 1 == len(parts)
        if is_last or parts[i + 1] != part:
            prefix, kind = part
            if prefix == "I":
                found.append((kind, start, i + 1))
            start = i + 1
    return found


def _word_spans(words: Iterable[str]) -> list[tuple[int, int]]:
    """(start, end) in characters of each word, when the words are written without spaces."""
    spans = []
    start = 0
    for word in words:
        end = start + len(word)
        spans.append((start, end))
        start = end
    return spans


def _same_sentences(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> None:
    """Raises BadInput unless every sentence has as many predicted as gold tags."""
    same_length(gold, predicted)
    for number, (gold_tags, predicted_tags) in enumerate(zip(gold, predicted, strict=True), 1):
        if len(gold_tags) != len(predicted_tags):
            raise BadInput(f"Sentence {number} has {len(gold_tags)} tokens but {len(predicted_tags)} predicted tags.")
