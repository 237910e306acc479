"""Sequences of several languages: which of them an epoch has, and how often.

In: a view of a corpus whose documents have languages. Out: a plan. Every language is cut on its own, and so are the
pairs of every two languages: no sequence runs from one language into another. Then sequences are repeated or left out:
the share of a language among the tokens is in proportion to its tokens to the power of alpha (Conneau & Lample 2019,
section 3.1). A draw depends on the seed, the epoch and the number of the sequence alone, so it is the same
whatever the packs. An epoch has about as many tokens as the text.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from firth import rng
from firth.data.joined import Joined
from firth.data.packing import PairLengths, Plan
from firth.data.stream import CorpusView
from firth.data.vocabulary_sample import smoothed_shares

Cut = Callable[[CorpusView], Plan]
"""How an objective cuts the documents of a view."""


def cut_by_language(stream: CorpusView, cut: Cut, *, alpha: float, key: np.uint64) -> Plan:
    """The sequences of all languages, each language repeated or thinned out to its smoothed share."""
    plans = []
    sizes = []
    for part in parts_by_language(stream):
        plan = cut(part)
        if len(plan):
            plans.append(plan)
            sizes.append(_num_tokens(plan))
    if not plans:
        return cut(stream)
    if alpha != 1.0:
        shares = np.array(sizes) / sum(sizes)
        rates = smoothed_shares(sizes, alpha) / shares
        for number, rate in enumerate(rates.tolist()):
            plans[number] = _resampled(plans[number], rate, key=key, number=number)
    return _concatenated(plans)


def parts_by_language(stream: CorpusView) -> Iterator[CorpusView]:
    """The documents of each language, and the pairs of every two; those of which there is only one are left out.

    A single document has no other one that an objective over pairs of texts could draw from.
    """
    _, group_D = np.unique(stream.languages_D2, axis=0, return_inverse=True)
    group_D = group_D.ravel()
    for group, count in enumerate(np.bincount(group_D)):
        if count > 1:
            yield stream.part(group_D == group)


def lone_document(stream: CorpusView) -> str:
    """A language of which the view has a single document, which would be left out; `en+de` for a pair; or empty."""
    names = stream.shards.language_names
    if not names:
        return ""
    kinds_K2, counts_K = np.unique(stream.languages_D2, axis=0, return_counts=True)
    for first, last in kinds_K2[counts_K == 1].tolist():
        return names[first] if first == last else f"{names[first]}+{names[last]}"
    return ""


def _num_tokens(plan: Plan) -> int:
    """Tokens of the text, without special ones."""
    starts_SP = plan.pieces_SP2[:, :, 0]
    ends_SP = plan.pieces_SP2[:, :, 1]
    return int((ends_SP - starts_SP).sum())


def _resampled(plan: Plan, rate: float, *, key: np.uint64, number: int) -> Plan:
    """Every sequence as often as the rate says: its whole part, and once more with the probability of the rest."""
    rows = np.arange(len(plan))
    whole = int(rate)
    is_extra = rng.uniform(key, rows, number) < rate - whole
    return _take(plan, np.repeat(rows, whole + is_extra))


def _take(plan: Plan, rows: np.ndarray) -> Plan:
    """A plan of these rows."""
    labels = {name: values[rows] for name, values in plan.labels.items()}
    groups_S = None if plan.groups_S is None else plan.groups_S[rows]
    lengths = plan.pair_lengths
    if lengths is not None:
        lengths = replace(lengths, source_S=lengths.source_S[rows], target_S=lengths.target_S[rows])
    return replace(plan, pieces_SP2=plan.pieces_SP2[rows], labels=labels, groups_S=groups_S, pair_lengths=lengths)


def _concatenated(plans: list[Plan]) -> Plan:
    """The sequences of several plans of one objective as one plan."""
    joined, shifts = _one_line([plan.joined for plan in plans if plan.joined])
    if joined is None:
        shifts = [0] * len(plans)
    pieces = [plan.pieces_SP2 + shift for plan, shift in zip(plans, shifts, strict=True)]
    return replace(
        plans[0],
        pieces_SP2=np.concatenate(pieces),
        labels=_joined_labels([plan.labels for plan in plans]),
        joined=joined,
        groups_S=_joined_groups(plans),
        pair_lengths=_joined_lengths([plan.pair_lengths for plan in plans if plan.pair_lengths]),
    )


def _one_line(parts: list[Joined]) -> tuple[Joined | None, list[int]]:
    """Several lines of joined documents as one, and where each begins in it."""
    if not parts:
        return None, []
    shifts: list[int] = []
    bounds: list[np.ndarray] = []
    num_before = 0
    for part in parts:
        shifts.append(num_before)
        bounds.append(part.bounds_D1[:-1] + num_before)
        num_before += len(part)
    starts_D = np.concatenate([part.starts_D for part in parts])
    bounds_D1 = np.concatenate([*bounds, [num_before]])
    return Joined(starts_D, bounds_D1, parts[0].end), shifts


def _joined_labels(labels: list[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    joined: dict[str, np.ndarray] = {}
    for name in labels[0]:
        joined[name] = np.concatenate([values[name] for values in labels])
    return joined


def _joined_groups(plans: list[Plan]) -> np.ndarray | None:
    """The groups, numbered on from plan to plan."""
    parts = []
    num_before = 0
    for plan in plans:
        if plan.groups_S is None:
            return None
        # Numbers without a gap: some groups may have lost all their sequences.
        _, groups_S = np.unique(plan.groups_S, return_inverse=True)
        parts.append(groups_S + num_before)
        num_before += int(groups_S.max(initial=-1)) + 1
    return np.concatenate(parts)


def _joined_lengths(lengths: list[PairLengths]) -> PairLengths | None:
    if not lengths:
        return None
    return PairLengths(
        source_S=np.concatenate([each.source_S for each in lengths]),
        target_S=np.concatenate([each.target_S for each in lengths]),
        max_target=max(each.max_target for each in lengths),
        source_spread=max(each.source_spread for each in lengths),
        target_spread=max(each.target_spread for each in lengths),
    )
