"""fastText's classifier (Joulin et al. 2016): a linear model over the mean of a text's words and word n-grams.

In: labelled texts. Out: what such a run starts from (words and an empty bag), and the bag and the head with their
weights found by compiled loops in a few passes, one text at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from firth import rng
from firth.data.items import Item
from firth.encoders.bag import Bag
from firth.errors import BadConfig
from firth.finetuning.labelled import Labelled, texts_of
from firth.finetuning.start import Start
from firth.nn.huffman import Paths
from firth.nn.tree import TreeHead
from firth.objectives.hogwild import compiled, in_threads, spread
from firth.ragged import bounds_of
from firth.tasks.classify import ClassifyConfig, ClassifyHead
from firth.tasks.task import Head, index_of
from firth.tensors import Encoder
from firth.tokenizers.subwords import Subwords

EPOCHS = 5.0
"""Passes over the rows by default."""
WORD_CHARACTERS = 5
"""About how many characters a word has."""
BUCKETS_OF_WORD = 4
FEWEST_BUCKETS = 1000
"""A small file gets at most `BUCKETS_OF_WORD` rows for each word and length of n-grams, but at least this many."""


@dataclass(frozen=True)
class FastTextConfig:
    width: int = 100
    """Width of a vector."""
    min_count: int = 1
    """How often a word must occur to have a row of its own."""
    word_ngrams: int = 2
    """Words of the longest n-grams of words; 1 for none."""
    min_ngram: int = 0
    """Characters of the shortest n-grams inside words."""
    max_ngram: int = 0
    """Characters of the longest n-grams inside words; 0 for none."""
    num_buckets: int = 2_000_000
    """Rows that all n-grams share at most; few rows of text get no more than four for each of their words."""
    rate: float = 0.25
    """Learning rate of the first text; it falls to zero in a straight line."""
    threads: int = 1
    """Several are quicker but do not repeat bit by bit."""

    def __post_init__(self) -> None:
        if self.width < 1 or self.rate <= 0 or self.threads < 1:
            raise BadConfig("fasttext needs a width and threads of at least 1 and a rate above 0.")


def start_from_words(data: Mapping[str, Labelled], config: FastTextConfig) -> Start:
    """The words of the training rows and an empty bag over them and their n-grams."""
    (part,) = data.values()
    if not isinstance(part.config, ClassifyConfig) or part.config.kind != "one" or len(part.labels) != 1:
        raise BadConfig("`recipe='fasttext'` classifies texts by one name each: use it with `task='classify'`.")
    texts = list(texts_of(data))
    num_words = sum(len(text) // WORD_CHARACTERS + 1 for text in texts)
    enough_buckets = max(FEWEST_BUCKETS, BUCKETS_OF_WORD * num_words * config.word_ngrams)
    settings = Subwords.Config(
        min_count=config.min_count,
        word_ngrams=config.word_ngrams,
        min_ngram=config.min_ngram,
        max_ngram=config.max_ngram,
        num_buckets=min(config.num_buckets, enough_buckets),
    )
    tokenizer = Subwords.train(iter(texts), settings)
    return Start("bag", Bag.Config(vocab_size=tokenizer.num_rows, width=config.width), tokenizer)


@torch.no_grad()
def solve(
    head: Head, encoder: Encoder, items: Sequence[Item], *, config: FastTextConfig, epochs: int, seed: int
) -> None:
    """Finds the weights of the bag and of the head, in place."""
    assert isinstance(head, ClassifyHead)
    assert isinstance(encoder, Bag)
    sigmoid = compiled().SIGMOID
    from firth.objectives.subword_kernels import bag_kernels

    parts = [_parts_of(item) for item in items]
    part_bounds = bounds_of([len(rows) for rows in parts])
    bags = (np.concatenate(parts).astype(np.int32), part_bounds)
    golds = _gold_ids(head, items)
    tree = _planted(head, golds)
    paths = (tree.bounds_V1, tree.nodes_P, tree.turns_P)
    # Both are views of the parameters: the kernel changes them in place.
    x_in = spread(encoder.table.weight.detach().numpy(), reach=1 / encoder.width, seed=seed)
    for parameter in head.head.parameters():
        parameter.zero_()
    x_out = head.head.weight.detach().numpy()

    kernel = bag_kernels(encoder.width).classify
    texts_done = np.zeros(config.threads, np.int64)
    schedule = np.array([config.rate, 0.0, float(len(items) * epochs)])
    # All threads share the tables without locks (Hogwild, Niu et al. 2011) and count their texts for the schedule.
    shared = (bags, golds, paths, x_in, x_out, schedule, texts_done)
    # Compiles the kernel in this thread.
    kernel(golds[:0], *shared, 0, sigmoid)
    for epoch in range(epochs):
        order = rng.permutation(rng.key(seed, "texts", epoch), len(items))
        # Each thread reads its share of the texts in this order.
        calls = []
        for thread, share in enumerate(np.array_split(order, config.threads)):
            calls.append((share, *shared, thread, sigmoid))
        in_threads(kernel, calls)


def _planted(head: ClassifyHead, golds: np.ndarray) -> Paths:
    """With head=tree, the Huffman tree of the labels, which replaces the softmax; else no tree."""
    if not isinstance(head.head, TreeHead):
        return Paths.none()
    (names,) = head.labels.values()
    return head.head.plant(np.bincount(golds, minlength=len(names)))


def _parts_of(item: Item) -> np.ndarray:
    """The rows of the table that a text's words and n-grams have."""
    return np.concatenate([window.parts for window in item.windows if window.parts is not None])


def _gold_ids(head: Head, items: Sequence[Item]) -> np.ndarray:
    """The number of each item's label."""
    (names,) = head.labels.values()
    index = index_of(names)
    return np.array([index[item.example.gold] for item in items], np.int64)
