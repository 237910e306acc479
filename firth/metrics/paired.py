"""Two models on the same rows: whether each answer was right in, how sure the difference is out."""

import math
from collections.abc import Sequence


def mcnemar(first_right: Sequence[bool], second_right: Sequence[bool]) -> float:
    """The p-value of McNemar's exact test: how likely so uneven a number of rows that only one model has right is.

    Rows that both have right, or both wrong, say nothing about the difference. 1 if there are no others.
    """
    only_first = sum(first and not second for first, second in zip(first_right, second_right, strict=True))
    only_second = sum(second and not first for first, second in zip(first_right, second_right, strict=True))
    total = only_first + only_second
    fewer = min(only_first, only_second)
    if not total:
        return 1.0
    # Both tails of a binomial with probability 1/2.
    log_terms = [_log_choose(total, count) - total * math.log(2) for count in range(fewer + 1)]
    return min(1.0, 2 * math.fsum(math.exp(term) for term in log_terms))


def upper_tail(drawn_marked: int, drawn: int, marked: int, total: int) -> float:
    """The probability that at least so many of the drawn rows are marked, if rows are drawn by chance (Fisher)."""
    most = min(drawn, marked)
    log_total = _log_choose(total, drawn)
    terms = []
    for count in range(drawn_marked, most + 1):
        if drawn - count <= total - marked:
            log_ways = _log_choose(marked, count) + _log_choose(total - marked, drawn - count)
            terms.append(math.exp(log_ways - log_total))
    return min(1.0, math.fsum(terms))


def false_discovery(p_values: Sequence[float]) -> list[float]:
    """Each p-value corrected for the number of tests (Benjamini & Hochberg 1995)."""
    count = len(p_values)
    order = sorted(range(count), key=lambda place: p_values[place])
    corrected = [1.0] * count
    lowest = 1.0
    for rank in range(count, 0, -1):
        place = order[rank - 1]
        lowest = min(lowest, p_values[place] * count / rank)
        corrected[place] = lowest
    return corrected


def _log_choose(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
