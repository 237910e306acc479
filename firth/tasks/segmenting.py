"""Words of a text that has no spaces: tags of characters -> words, and scores as SIGHAN counts them.

In: characters tagged B, M, E or S. Out: words; precision, recall and F over words, and the recall of the words that
training knew and of those it did not (Emerson 2005).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from firth import metrics
from firth.data.items import Item
from firth.encoders.bag import Bag
from firth.nn.taggers import Tagger
from firth.tasks.conll import Sentence
from firth.tasks.task import Head
from firth.tokenizers.templates import Templates
from firth.types import Example

MARKS = frozenset("BMES")
"""The tags of a plain segmenter."""
BLOCK = 4096
"""Texts cut at once."""


def words_of(example: Sentence, tags: Sequence[str]) -> list[str]:
    """The characters of a sentence, joined to words by their tags."""
    text = example.texts[0]
    units = [text[start:end] for start, end in example.words]
    ends = {0, len(units), *(i + 1 for i, tag in enumerate(tags) if tag in "ES")}
    return ["".join(units[start:end]) for start, end in pairwise(sorted(ends))]


@torch.inference_mode()
def segment(texts: Sequence[str], head: Head, bag: Bag, *, templates: Templates) -> list[list[str]]:
    """The words of each text by a tagger over features, without confidences: as fast as can be."""
    (tags,) = head.labels.values()
    is_end_T = np.array([tag in "ES" for tag in tags])
    tagger = head.get_submodule("tagger")
    assert isinstance(tagger, Tagger)
    words: list[list[str]] = []
    for start in range(0, len(texts), BLOCK):
        runs = [text.split() for text in texts[start : start + BLOCK]]
        plain = ["".join(parts) for parts in runs]
        parts, part_bounds = templates.parts(plain)
        unary_NT = _sums(bag.table.weight, torch.from_numpy(parts), torch.from_numpy(part_bounds))
        bounds = np.cumsum([0, *(len(run) for parts in runs for run in parts)])
        tags_N = tagger.best(unary_NT, torch.from_numpy(bounds)).numpy()
        ends = np.flatnonzero(is_end_T[tags_N]) + 1
        starts = np.cumsum([0, *map(len, plain)])
        places = np.split(ends, np.searchsorted(ends, starts[1:-1], side="right"))
        for text, first, own in zip(plain, starts.tolist(), places, strict=False):
            words.append([text[a:b] for a, b in pairwise([0, *(own - first).tolist()])])
    return words


def _sums(table_RT: Tensor, parts_M: Tensor, bounds_N1: Tensor) -> Tensor:
    if len(parts_M) == len(bounds_N1) - 1:  # every token has its own part, and an HMM's have no other
        return table_RT[parts_M.long()]
    return F.embedding_bag(parts_M, table_RT, bounds_N1, mode="sum", include_last_offset=True)


def gaps(items: Iterable[Item], bounds: np.ndarray) -> np.ndarray:
    """The places among all characters of the items that a space stands before: no word goes over them."""
    found = [np.empty(0, np.int64)]
    for item, start in zip(items, bounds.tolist(), strict=False):
        example = item.example
        if isinstance(example, Sentence) and example.words and example.words[-1][1] > len(example.words):
            starts, ends = np.array(example.words).T
            found.append(start + 1 + np.flatnonzero(starts[1:] > ends[:-1]))
    return np.concatenate(found)


def gold_words(examples: Iterable[Example]) -> Iterator[str]:
    for example in examples:
        if isinstance(example, Sentence):
            yield from words_of(example, example.gold)


def with_tags(example: Sentence, tags: Sequence[str]) -> str:
    """The words of a sentence as word/tag."""
    text = example.texts[0]
    return " ".join(f"{text[start:end]}/{tag}" for (start, end), tag in zip(example.words, tags, strict=True))


def hashes(words: Iterable[str]) -> np.ndarray:
    """Sorted 64-bit numbers, one for each different word."""
    digests = (blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest() for word in set(words))
    return np.unique(np.fromiter((int.from_bytes(digest, "little", signed=True) for digest in digests), np.int64))


class Known(Collection[str]):
    """The words of the training text, as a vocabulary that holds only their numbers."""

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers = frozenset(numbers.tolist())

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and int(hashes([word])[0]) in self.numbers

    def __iter__(self) -> Iterator[str]:
        raise TypeError("Only the numbers of the words are kept.")

    def __len__(self) -> int:
        return len(self.numbers)


def score(
    golds: Sequence[Sentence], predicted: Sequence[Sequence[str]], *, known: np.ndarray | None
) -> dict[str, float]:
    """F, precision and recall over words; recall of known and unknown ones where the training's words are there."""
    wanted = [words_of(example, example.gold) for example in golds]
    guessed = [words_of(example, tags) for example, tags in zip(golds, predicted, strict=True)]
    known = np.empty(0, np.int64) if known is None else known
    found = metrics.segmentation(wanted, guessed, vocabulary=Known(known))
    figures = {"f1": found.words.f1, "precision": found.words.precision, "recall": found.words.recall}
    if len(known):
        figures |= {"oov_rate": found.oov_rate, "oov_recall": found.oov_recall, "iv_recall": found.iv_recall}
    return figures
