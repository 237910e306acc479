"""Which tokens of a pack are predicted: whole units in random order until a share of each sequence is reached.

In: a pack, which of its tokens may be chosen, and a share. Out: the chosen tokens. All sequences are drawn at once;
every draw belongs to its sequence and position, so it does not depend on how sequences fall into packs.
"""

import numpy as np

from firth import rng
from firth.data.packing import Pack
from firth.objectives.entities import Names
from firth.objectives.mask_units import Unit, unit_starts
from firth.ragged import starts_of

NO_ENTITIES = Names()


def choose_tokens(
    pack: Pack,
    tokens: np.ndarray,
    *,
    unit: Unit,
    rate: float,
    key: np.uint64,
    entities: Names = NO_ENTITIES,
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens to predict out of `tokens`, and for each of them the first token of its unit."""
    starts = unit_starts(unit, pack, tokens, key=key, entities=entities)
    # For each token the number of its unit.
    number = np.cumsum(starts) - 1
    taken = _choose_units(pack, tokens[starts], np.bincount(number), rate=rate, key=key)
    chosen = drop_surplus(taken, number, max_predictions(pack.num_tokens, rate))
    leaders = tokens[starts][number[chosen]]
    return tokens[chosen], leaders


def _choose_units(
    pack: Pack,
    leaders_U: np.ndarray,
    lengths_U: np.ndarray,
    *,
    rate: float,
    key: np.uint64,
) -> np.ndarray:
    """Which units are taken: units in random order until the sequence's share of tokens is reached.

    The unit that crosses the share is taken with the probability that makes the expected share exact.
    """
    sequence_U = pack.sequence_N[leaders_U]
    rows_U = pack.rows_B[sequence_U]
    positions_U = pack.positions_N[leaders_U]
    # Draws are below 1, so this sorts by sequence, and at random within each sequence.
    order = np.argsort(sequence_U + rng.uniform(key, rows_U, positions_U, 0))
    lengths = lengths_U[order]
    sequence = sequence_U[order]

    # How many tokens of its sequence come before each unit in this order.
    tokens_before = starts_of(lengths)
    sizes_B = np.bincount(sequence_U, lengths_U, minlength=len(pack.rows_B)).astype(np.int64)
    first_token_B = starts_of(sizes_B)
    spent = tokens_before - first_token_B[sequence]

    # A unit that fits into the rest of the share is always taken, one beyond it never.
    rest = rate * sizes_B[sequence] - spent
    draws = rng.uniform(key, rows_U[order], positions_U[order], 1)
    taken_U = np.zeros(len(lengths), bool)
    taken_U[order] = draws * lengths < rest
    return taken_U


def drop_surplus(taken_U: np.ndarray, unit: np.ndarray, limit: int) -> np.ndarray:
    """Which tokens are chosen, given their units; drops the last units, whole, while more than `limit` tokens are."""
    chosen = taken_U[unit]
    while chosen.sum() > limit:
        last = np.flatnonzero(taken_U)[-1]
        taken_U[last] = False
        chosen = taken_U[unit]
    return np.asarray(chosen)


def max_predictions(num_tokens: int, rate: float) -> int:
    """The fixed number of predictions in a pack: the expected number and some slack, a multiple of 64."""
    expected = int(num_tokens * rate * 1.05 + 32)
    return -(-expected // 64) * 64
