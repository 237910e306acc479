"""The k best tag sequences of each text and how likely each is, by any tagger over `nn/chain.py`.

In: items, and a tag head's outputs for their windows. Out: for each item its predictions, the likeliest first. Where
spaces separate a text, a segmenter has several chains, and the best paths of the text are the best combinations of
theirs.
"""

from collections.abc import Sequence
from heapq import nlargest
from itertools import pairwise, product

import numpy as np
import torch

from firth.data.items import Item
from firth.errors import BadConfig, Unsupported
from firth.tasks.tag import TagHead
from firth.tasks.task import Head, Items
from firth.tasks.word_windows import word_scores
from firth.types import Prediction

MAX_K = 100

Path = tuple[float, tuple[int, ...]]
"""A probability, and the tags of a path."""


def k_best(head: Head, items: Items, outputs: Sequence[list[np.ndarray]], *, k: int) -> list[list[Prediction]]:
    if not isinstance(head, TagHead):
        raise Unsupported("Only a tagger has several best answers to give.")
    if not 1 <= k <= MAX_K:
        raise BadConfig(f"A tagger gives 1 to {MAX_K} best sequences; {k} were asked for.")
    found = []
    for item, arrays in zip(items, outputs, strict=True):
        found.append(_k_best_of_item(head, item, arrays, k))
    return found


def _k_best_of_item(head: TagHead, item: Item, outputs: list[np.ndarray], k: int) -> list[Prediction]:
    scores = word_scores(item, outputs)
    bounds = head.chain_bounds([item], np.array([0, len(scores)]))
    device = head.known_words_U.device
    scores_NT = torch.from_numpy(scores).to(device)
    bounds_B1 = torch.from_numpy(bounds.astype(np.int32)).to(device)
    # Row i has the i-th best tags of every chain, end to end; -1 if a chain has fewer than i legal paths.
    tags_KN, probabilities_BK = head.tagger.best_unary(scores_NT, bounds_B1, k=k)

    # The chains of a text are independent: the probability of a combination is the product.
    paths: list[Path] = [(1.0, ())]
    chains = pairwise(bounds.tolist())
    for probabilities_K, (first, end) in zip(probabilities_BK.tolist(), chains, strict=True):
        chain_paths = _legal_paths(probabilities_K, tags_KN[:, first:end].tolist())
        paths = _best_combinations(paths, chain_paths, k)

    predictions = []
    for probability, tags in paths:
        confidence = np.full(len(tags), probability)
        predictions.append(head.prediction(item, np.array(tags, int), confidence))
    return predictions


def _legal_paths(probabilities: Sequence[float], tags_of_paths: Sequence[Sequence[int]]) -> list[Path]:
    """The paths of a chain; those with the tag -1 do not exist."""
    paths: list[Path] = []
    for probability, tags in zip(probabilities, tags_of_paths, strict=True):
        if min(tags, default=0) >= 0:
            paths.append((probability, tuple(tags)))
    return paths


def _best_combinations(paths: Sequence[Path], continuations: Sequence[Path], k: int) -> list[Path]:
    """The k likeliest paths that are one of `paths` followed by one of `continuations`."""
    joined: list[Path] = []
    for (left_probability, left), (right_probability, right) in product(paths, continuations):
        joined.append((left_probability * right_probability, left + right))
    return nlargest(k, joined, key=lambda path: path[0])
