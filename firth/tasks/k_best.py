"""The k best tag sequences of each text and how likely each is, by any tagger over `nn/chain.py`.

In: items and what an encoder said of their windows. Out: for each item its predictions, the likeliest first. Where
spaces part a text, a segmenter has several chains; the text's best paths are the best ways to put theirs together.
"""

from collections.abc import Sequence
from heapq import nlargest
from itertools import pairwise, product

import numpy as np
import torch

from firth.data.items import Item
from firth.errors import BadConfig, Unsupported
from firth.tasks import segmenting
from firth.tasks.tag import TagHead
from firth.tasks.task import Head
from firth.tasks.word_windows import in_word_order
from firth.types import Prediction

MOST = 100


def k_best(head: Head, items: Sequence[Item], outputs: Sequence[list[np.ndarray]], *, k: int) -> list[list[Prediction]]:
    if not isinstance(head, TagHead):
        raise Unsupported("Only a tagger has several best answers to give.")
    if not 1 <= k <= MOST:
        raise BadConfig(f"A tagger gives 1 to {MOST} best sequences; {k} were asked for.")
    return [_of_one(head, item, arrays, k) for item, arrays in zip(items, outputs, strict=True)]


def _of_one(head: TagHead, item: Item, arrays: list[np.ndarray], k: int) -> list[Prediction]:
    unary = in_word_order(item, [scores[w.facts] for w, scores in zip(item.windows, arrays, strict=True)])
    bounds = np.array([0, len(unary)])
    bounds = np.union1d(bounds, segmenting.gaps([item], bounds)) if head.segments else bounds
    device = head.known_words_U.device
    scores_NT, bounds_B1 = torch.from_numpy(unary).to(device), torch.from_numpy(bounds.astype(np.int32)).to(device)
    tags_KN, likely_BK = head.tagger.best_unary(scores_NT, bounds_B1, k=k)
    paths: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    for likely_K, (first, last) in zip(likely_BK.tolist(), pairwise(bounds.tolist()), strict=True):
        here = zip(likely_K, tags_KN[:, first:last].tolist(), strict=True)
        own = [(likely, tuple(tags)) for likely, tags in here if min(tags, default=0) >= 0]
        paths = nlargest(
            k, ((p * q, left + right) for (p, left), (q, right) in product(paths, own)), key=lambda x: x[0]
        )
    return [head.prediction(item, np.array(tags, int), np.full(len(tags), likely)) for likely, tags in paths]
