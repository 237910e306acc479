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
from firth.ragged import bounds_of
from firth.tasks.conll import Sentence
from firth.tasks.task import Figures, Head
from firth.tokenizers.templates import Templates
from firth.types import Example

MARKS = frozenset("BMES")
"""The tags of a plain segmenter: begin, middle and end of a word, and a word of a single character."""
_WORD_ENDS = frozenset("ES")
BLOCK = 4096
"""Texts segmented at once."""


def word_runs(tags: Sequence[str], *, gaps: Collection[int] = frozenset()) -> Iterator[tuple[int, int]]:
    """The first character of each word, and the one after its last, by the characters' tags.

    The end of the text ends a word whatever its tag, and so do gaps: characters that follow a space.
    """
    first = 0
    for end, tag in enumerate(tags, 1):
        if tag in _WORD_ENDS or end in gaps or end == len(tags):
            yield first, end
            first = end


def words_of(example: Sentence, tags: Sequence[str]) -> list[str]:
    """The characters of a sentence, joined to words by their tags."""
    text = example.texts[0]
    characters = [text[start:end] for start, end in example.words]
    words = []
    for first, end in word_runs(tags):
        words.append("".join(characters[first:end]))
    return words


@torch.inference_mode()
def segment(texts: Sequence[str], head: Head, bag: Bag, *, templates: Templates) -> list[list[str]]:
    """The words of each text by a tagger over features. Confidences are not computed, which makes it fast."""
    (tags,) = head.labels.values()
    is_end_T = np.array([tag in _WORD_ENDS for tag in tags])
    tagger = head.get_submodule("tagger")
    assert isinstance(tagger, Tagger)
    words: list[list[str]] = []
    for start in range(0, len(texts), BLOCK):
        words += _segment_block(texts[start : start + BLOCK], is_end_T, tagger, bag, templates)
    return words


def _segment_block(
    texts: Sequence[str],
    is_end_T: np.ndarray,
    tagger: Tagger,
    bag: Bag,
    templates: Templates,
) -> list[list[str]]:
    # Spaces are dropped; the characters between two spaces are one chain, because no word goes over a space.
    runs = [text.split() for text in texts]
    plain = ["".join(parts) for parts in runs]
    parts_M, part_bounds_N1 = templates.parts(plain)
    unary_NT = _feature_sums(bag.table.weight, torch.from_numpy(parts_M), torch.from_numpy(part_bounds_N1))
    run_lengths: list[int] = []
    for parts in runs:
        run_lengths += [len(run) for run in parts]
    chain_bounds = bounds_of(run_lengths)
    tags_N = tagger.best(unary_NT, torch.from_numpy(chain_bounds)).numpy()

    is_end_N = is_end_T[tags_N]
    # The end of a chain ends a word, whatever its tag.
    is_end_N[chain_bounds[1:] - 1] = True
    # The ends of all words, counted over all texts, then split into those of each text.
    word_ends = np.flatnonzero(is_end_N) + 1
    text_starts = bounds_of([len(row) for row in plain])
    first_of_text = np.searchsorted(word_ends, text_starts[1:-1], side="right")
    ends_by_text = np.split(word_ends, first_of_text)
    words = []
    # `text_starts` has one entry more: the end of the last text.
    for text, text_start, text_ends in zip(plain, text_starts.tolist(), ends_by_text, strict=False):
        bounds = [0, *(text_ends - text_start).tolist()]
        words.append([text[start:end] for start, end in pairwise(bounds)])
    return words


def _feature_sums(table_RT: Tensor, parts_M: Tensor, bounds_N1: Tensor) -> Tensor:
    """For each character the sum of its features' rows."""
    num_characters = len(bounds_N1) - 1
    if len(parts_M) == num_characters:
        # Every character has at least its own part, so here it has no other; an HMM's never have.
        return table_RT[parts_M.long()]
    return F.embedding_bag(parts_M, table_RT, bounds_N1, mode="sum", include_last_offset=True)


def gaps(items: Iterable[Item], bounds: np.ndarray) -> np.ndarray:
    """The places among all characters of the items that follow a space: no word goes over them.

    `bounds` has the place of each item's first character.
    """
    found = [np.empty(0, np.int64)]
    for item, item_start in zip(items, bounds.tolist(), strict=False):
        example = item.example
        if not isinstance(example, Sentence) or not example.words:
            continue
        _, last_end = example.words[-1]
        if last_end > len(example.words):  # the text is longer than its characters, so it has spaces
            starts, ends = np.array(example.words).T
            after_space = np.flatnonzero(starts[1:] > ends[:-1]) + 1
            found.append(item_start + after_space)
    return np.concatenate(found)


def gold_words(examples: Iterable[Example]) -> Iterator[str]:
    """The words of segmented text, by its gold tags."""
    for example in examples:
        if isinstance(example, Sentence):
            yield from words_of(example, example.gold)


def with_tags(example: Sentence, tags: Sequence[str]) -> str:
    """The words of a sentence as word/tag."""
    text = example.texts[0]
    tagged = []
    for (start, end), tag in zip(example.words, tags, strict=True):
        tagged.append(f"{text[start:end]}/{tag}")
    return " ".join(tagged)


def hashes(words: Iterable[str]) -> np.ndarray:
    """Sorted 64-bit hashes, one for each different word."""
    return np.unique(np.fromiter((_hash(word) for word in set(words)), np.int64))


def _hash(word: str) -> int:
    digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


class HashedWords(Collection[str]):
    """The words of the training text, as a vocabulary that holds only their hashes."""

    def __init__(self, word_hashes: np.ndarray) -> None:
        self.hashes = frozenset(word_hashes.tolist())

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and _hash(word) in self.hashes

    def __iter__(self) -> Iterator[str]:
        raise TypeError("Only the hashes of the words are kept.")

    def __len__(self) -> int:
        return len(self.hashes)


def score(golds: Sequence[Sentence], predicted: Sequence[Sequence[str]], *, known: np.ndarray | None) -> Figures:
    """F1, precision and recall over words; also the recall of known and unknown words if `known` has hashes."""
    if known is None:
        known = np.empty(0, np.int64)
    gold_texts = [words_of(example, example.gold) for example in golds]
    predicted_texts = [words_of(example, tags) for example, tags in zip(golds, predicted, strict=True)]
    found = metrics.segmentation(gold_texts, predicted_texts, vocabulary=HashedWords(known))
    figures = {"f1": found.words.f1, "precision": found.words.precision, "recall": found.words.recall}
    if len(known):
        figures["oov_rate"] = found.oov_rate
        figures["oov_recall"] = found.oov_recall
        figures["iv_recall"] = found.iv_recall
    return figures
