"""Two models on the same rows: whether each answer was right in, the significance of the difference out."""

import math
from collections.abc import Sequence


def only_one_right(first_right: Sequence[bool], second_right: Sequence[bool]) -> tuple[int, int]:
    """How many rows only the first model has right, and how many only the second."""
    only_first = 0
    only_second = 0
    for is_first, is_second in zip(first_right, second_right, strict=True):
        if is_first and not is_second:
            only_first += 1
        elif is_second and not is_first:
            only_second += 1
    return only_first, only_second


def mcnemar(first_right: Sequence[bool], second_right: Sequence[bool]) -> float:
    """The p-value of McNemar's exact test: how likely so uneven a number of rows that only one model has right is.

    Rows that both have right, or both wrong, say nothing about the difference. 1 if there are no others.
    """
    only_first, only_second = only_one_right(first_right, second_right)
    total = only_first + only_second
    if not total:
        return 1.0
    # One tail of a binomial with probability 1/2, and the other one, which is the same.
    terms = []
    for count in range(min(only_first, only_second) + 1):
        log_term = _log_choose(total, count) - total * math.log(2)
        terms.append(math.exp(log_term))
    return min(1.0, 2 * math.fsum(terms))


def upper_tail(drawn_marked: int, drawn: int, marked: int, total: int) -> float:
    """The probability that at least `drawn_marked` of drawn rows are marked: the upper tail of Fisher's exact test."""
    unmarked = total - marked
    log_all_ways = _log_choose(total, drawn)
    terms = []
    for count in range(drawn_marked, min(drawn, marked) + 1):
        others = drawn - count
        if others > unmarked:
            continue
        log_ways = _log_choose(marked, count) + _log_choose(unmarked, others)
        terms.append(math.exp(log_ways - log_all_ways))
    return min(1.0, math.fsum(terms))


def false_discovery(p_values: Sequence[float]) -> list[float]:
    """Each p-value corrected for the number of tests (Benjamini & Hochberg 1995)."""
    num_tests = len(p_values)
    order = sorted(range(num_tests), key=lambda place: p_values[place])
    corrected = [1.0] * num_tests
    # From the largest on: no p-value is corrected to more than a larger one is.
    lowest = 1.0
    for rank in range(num_tests, 0, -1):
        place = order[rank - 1]
        scaled = p_values[place] * num_tests / rank
        lowest = min(lowest, scaled)
        corrected[place] = lowest
    return corrected


def _log_choose(total: int, chosen: int) -> float:
    """The logarithm of the number of ways to choose."""
    # lgamma(n + 1) is the logarithm of n!.
    log_orders = math.lgamma(total + 1)
    log_orders_of_chosen = math.lgamma(chosen + 1)
    log_orders_of_rest = math.lgamma(total - chosen + 1)
    return log_orders - log_orders_of_chosen - log_orders_of_rest
