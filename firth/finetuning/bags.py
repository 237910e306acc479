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
from firth.finetuning.labelled import Labelled
from firth.finetuning.start import Start
from firth.nn.huffman import Paths
from firth.nn.tree import TreeHead
from firth.objectives.hogwild import compiled, in_threads, spread
from firth.tasks.classify import ClassifyConfig, ClassifyHead
from firth.tasks.task import Head
from firth.tensors import Encoder
from firth.tokenizers.subwords import Subwords

EPOCHS = 5.0
"""Passes over the rows when nobody says."""


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


def begin(data: Mapping[str, Labelled], config: FastTextConfig) -> Start:
    """The words of the training rows and an empty bag over them and their n-grams."""
    (part,) = data.values()
    if not isinstance(part.config, ClassifyConfig) or part.config.kind != "one" or len(part.labels) != 1:
        raise BadConfig("`recipe='fasttext'` classifies texts by one name each: use it with `task='classify'`.")
    texts = [text for row in part.examples["train"] for text in row.texts]
    words = sum(len(text) // 5 + 1 for text in texts)
    settings = Subwords.Config(
        min_count=config.min_count,
        word_ngrams=config.word_ngrams,
        min_ngram=config.min_ngram,
        max_ngram=config.max_ngram,
        num_buckets=min(config.num_buckets, max(1000, 4 * words * config.word_ngrams)),
    )
    tokenizer = Subwords.train(iter(texts), settings)
    return Start("bag", Bag.Config(vocab_size=tokenizer.num_rows, width=config.width), tokenizer)


@torch.no_grad()
def solve(
    task: Head, encoder: Encoder, items: Sequence[Item], *, config: FastTextConfig, epochs: int, seed: int
) -> None:
    """Finds the weights of the bag and of the head."""
    assert isinstance(task, ClassifyHead)
    assert isinstance(encoder, Bag)
    sigmoid = compiled().SIGMOID
    from firth.objectives.subword_kernels import bag_kernels

    parts = [np.concatenate([w.parts for w in item.windows if w.parts is not None]) for item in items]
    bags = np.concatenate(parts).astype(np.int32), np.cumsum([0, *map(len, parts)])
    names = {name: i for labels in task.labels.values() for i, name in enumerate(labels)}
    golds = np.fromiter((names[item.example.gold] for item in items), np.int64, len(items))
    tree = (
        task.head.plant(np.bincount(golds, minlength=len(names))) if isinstance(task.head, TreeHead) else Paths.none()
    )
    x_in = spread(encoder.table.weight.detach().numpy(), reach=1 / encoder.width, seed=seed)
    for parameter in task.head.parameters():
        parameter.zero_()
    x_out = task.head.weight.detach().numpy()
    kernel, done = bag_kernels(encoder.width).classify, np.zeros(config.threads, np.int64)
    plan = np.array([config.rate, 0.0, float(len(items) * epochs)])
    paths = (tree.bounds_V1, tree.nodes_P, tree.turns_P)
    same = (bags, golds, paths, x_in, x_out, plan, done)
    kernel(golds[:0], *same, 0, sigmoid)  # compiles, in this thread
    for epoch in range(epochs):
        order = rng.permutation(rng.key(seed, "texts", epoch), len(items))
        shares = np.array_split(order, config.threads)
        in_threads(kernel, [(share, *same, me, sigmoid) for me, share in enumerate(shares)])
