"""Folds for cross-validation: rows in, the number of each row's fold out."""

from collections.abc import Hashable, Sequence

import numpy as np

from firth import rng


def fold_of_rows(labels: Sequence[Hashable], groups: Sequence[Hashable], *, count: int, seed: int) -> np.ndarray:
    """The fold of each row, from 0: of each label about the same number in all, rows of one group in one fold.

    A group is what must not be learned from and measured on at the same time, such as a text that occurs twice.
    """
    order = rng.permutation(rng.key(seed, "folds"), len(labels)).tolist()
    # How many groups of each label have a fold so far.
    num_groups: dict[Hashable, int] = {}
    fold_of_group: dict[Hashable, int] = {}
    for row in order:
        group = groups[row]
        if group not in fold_of_group:
            number = num_groups.get(labels[row], 0)
            num_groups[labels[row]] = number + 1
            fold_of_group[group] = number % count
    return np.array([fold_of_group[group] for group in groups], np.int64)
