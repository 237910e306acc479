"""Pairs that belong together -> triplets with a hard negative, for `firth finetune --task compare`.

A hard negative of a text is another pair's second text that the model finds near it. The nearest ones are often right
answers that nobody marked, so a candidate must be less similar than the text's own partner by a margin (de Souza P.
Moreira et al. 2024, "TopK-MarginPos").
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from firth.errors import BadConfig
from firth.inference.model import Model

BLOCK = 512
"""Texts compared with all others at once."""


@dataclass(frozen=True)
class Triplet:
    text: str
    positive: str
    negative: str


def mine_triplets(
    model: Model, pairs: Sequence[tuple[str, str]], *, negatives: int = 1, margin: float = 0.05
) -> list[Triplet]:
    """For each pair up to `negatives` triplets, the hardest first; a pair without a candidate gives none."""
    if negatives < 1 or margin < 0:
        raise BadConfig("`negatives` must be at least 1 and `margin` at least 0.")
    candidates = list(dict.fromkeys(second for _, second in pairs))
    place = {text: number for number, text in enumerate(candidates)}
    # All partners of a text: none of them is a negative of it.
    partners: dict[str, set[int]] = defaultdict(set)
    for first, second in pairs:
        partners[first].add(place[second])
    first_ND = model.embed([first for first, _ in pairs], normalise=True)
    candidate_CD = model.embed(candidates, normalise=True)
    triplets: list[Triplet] = []
    for start in range(0, len(pairs), BLOCK):
        block = slice(start, start + BLOCK)
        cosines_BC = first_ND[block] @ candidate_CD.T
        for (first, second), cosines_C in zip(pairs[block], cosines_BC, strict=True):
            limit = cosines_C[place[second]] - margin
            refused = set(partners[first])
            if first in place:
                # A text is no negative of itself.
                refused.add(place[first])
            hardest = _hardest(cosines_C, limit=limit, refused=refused)
            for number in hardest[:negatives]:
                triplets.append(Triplet(first, second, candidates[number]))
    return triplets


def _hardest(cosines_C: np.ndarray, *, limit: float, refused: set[int]) -> list[int]:
    """The candidates up to the limit, the most similar first."""
    is_allowed_C = cosines_C <= limit
    is_allowed_C[list(refused)] = False
    allowed = np.flatnonzero(is_allowed_C)
    order = np.argsort(-cosines_C[allowed], kind="stable")
    return [int(number) for number in allowed[order]]
