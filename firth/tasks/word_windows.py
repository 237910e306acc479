"""Words -> the windows an encoder reads, and back: one row for each word, whichever window it was read in.

In: a sentence with the places of its words, and its encoding. Out: an item whose windows hold whole words. A window's
facts are the rows of its words' first pieces; the item's facts say which window each word is taken from.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from firth.data.items import Item, Window, cut_window
from firth.ragged import bounds_of
from firth.tasks.conll import Sentence
from firth.tokenizers.templates import Templates
from firth.tokenizers.vocab import Vocab
from firth.types import Encoding

MAX_PIECES = 32
"""Pieces of a word that are read; the rest of a very long word says nothing about its tag."""


def word_item(example: Sentence, encoding: Encoding, vocab: Vocab, *, max_length: int) -> Item:
    """A sentence in windows of whole words."""
    frame = vocab.frame
    size = max_length - frame.size()
    pieces = _pieces_of_words(example, encoding, limit=min(MAX_PIECES, size))
    num_pieces = [len(rows) for rows in pieces]
    ends = np.cumsum(num_pieces)
    spans = word_windows(ends, size)
    windows = []
    for first, last in spans:
        windows.append(_window(first, last, pieces, ends, encoding, vocab))
    total = len(encoding.ids)
    num_cut = max(0, total - sum(num_pieces))
    return Item(example, tuple(windows), total, num_cut, _chosen_windows(spans, len(pieces)))


def _pieces_of_words(example: Sentence, encoding: Encoding, *, limit: int) -> list[np.ndarray]:
    """For each word the rows of its first pieces in the encoding, at most `limit`.

    A word that the tokenizer drops gets the row -1, which stands for the unknown token.
    """
    starts = np.array([start for start, _ in example.words], np.int64)
    # A piece belongs to the last word that starts at or before it.
    owners = np.searchsorted(starts, encoding.offsets[:, 0], side="right") - 1
    # Owners only grow, so the pieces of a word are a run; those before the first word belong to none.
    bounds = np.searchsorted(owners, np.arange(len(starts) + 1))
    pieces = []
    for first, end in pairwise(bounds):
        rows = np.arange(first, min(end, first + limit))
        if not len(rows):
            rows = np.array([-1])
        pieces.append(rows)
    return pieces


def _window(
    first: int,
    last: int,
    pieces: Sequence[np.ndarray],
    ends: np.ndarray,
    encoding: Encoding,
    vocab: Vocab,
) -> Window:
    """The window of the words [first, last)."""
    if last:
        rows = np.concatenate(pieces[first:last])
        before = ends[first - 1] if first else 0
        # A word begins where the one before it ends.
        word_starts = np.concatenate([[0], ends[first : last - 1] - before])
    else:
        rows = np.empty(0, np.int64)
        word_starts = np.empty(0, np.int64)
    stretch = (encoding.take(rows, unknown=vocab.unk), 0, len(rows))
    # Counted from the start of the window, where the frame's opening tokens are.
    first_rows = word_starts.astype(np.int64) + len(vocab.frame.opening)
    return cut_window(vocab, stretch, start=first, facts=first_rows)


def units_of(example: Sentence, known: dict[str, str]) -> list[str]:
    """A sentence's words. Equal words share one string, which `known` keeps."""
    text = example.texts[0]
    units = []
    for start, end in example.words:
        word = text[start:end]
        units.append(known.setdefault(word, word))
    return units


def feature_items(examples: Sequence[Sentence], templates: Templates) -> list[Item]:
    """Each sentence as one window, whatever its length: a word is a token, and its features are the token's parts."""
    # Equal words share one string: a million copies would take 80 MB.
    known: dict[str, str] = {}
    units = [units_of(example, known) for example in examples]
    parts, part_bounds = templates.parts(units)
    part_sizes = np.diff(part_bounds)
    lengths = [len(words) for words in units]
    word_bounds = bounds_of(lengths)
    # All items share these two arrays, each a part of them.
    longest = max(lengths, default=0)
    all_rows = np.arange(longest)
    all_zeros = np.zeros(longest, np.int64)
    items = []
    for example, (first, last) in zip(examples, pairwise(word_bounds.tolist()), strict=True):
        length = last - first
        zeros = all_zeros[:length]
        window = Window(
            ids=zeros,
            segments=zeros,
            facts=all_rows[:length],
            parts=parts[part_bounds[first] : part_bounds[last]],
            part_sizes=part_sizes[first:last],
        )
        # The only window is window 0, so each word is taken from it.
        items.append(Item(example, (window,), tokens=length, cut=0, facts=zeros))
    return items


def word_windows(ends: np.ndarray, size: int) -> list[tuple[int, int]]:
    """Runs [first, last) of words whose pieces fit into `size`; neighbours overlap by about a quarter.

    `ends` has for each word the number of pieces up to its end.
    """
    if not len(ends):
        return [(0, 0)]
    starts = np.concatenate([[0], ends[:-1]])
    spans = []
    first = 0
    while True:
        # As many words as fit.
        last = int(np.searchsorted(ends, starts[first] + size, side="right"))
        spans.append((first, last))
        if last == len(ends):
            return spans
        overlap_start = int(np.searchsorted(starts, ends[last - 1] - size // 4))
        # At least one word on, and no word left out.
        first = max(first + 1, min(overlap_start, last))


def _chosen_windows(spans: Sequence[tuple[int, int]], num_words: int) -> np.ndarray:
    """For each word the window in which it is farthest from a cut; the ends of the text are not cuts."""
    if not num_words:
        return np.empty(0, np.int64)
    places = np.arange(num_words)
    no_cut = np.full(num_words, num_words)
    # For each window and word the distance to the nearest cut; -1 outside the window.
    distances = np.full((len(spans), num_words), -1)
    for window, (first, last) in enumerate(spans):
        left = places - first if first else no_cut
        right = last - 1 - places if last < num_words else no_cut
        inside = (places >= first) & (places < last)
        distances[window, inside] = np.minimum(left, right)[inside]
    return np.asarray(distances.argmax(0))


def in_word_order(item: Item, values: Sequence[np.ndarray]) -> np.ndarray:
    """Values for each word of each window -> one for each word of the text, from the window chosen for it."""
    chosen: np.ndarray = item.facts
    kept = []
    for number, (window, window_values) in enumerate(zip(item.windows, values, strict=True)):
        words = np.flatnonzero(chosen == number)
        kept.append(window_values[words - window.start])
    return np.concatenate(kept)


def word_scores(item: Item, outputs: Sequence[np.ndarray]) -> np.ndarray:
    """A head's scores of all tokens of an item's windows -> the scores of its words."""
    by_window = []
    for window, scores in zip(item.windows, outputs, strict=True):
        first_pieces: np.ndarray = window.facts
        by_window.append(scores[first_pieces])
    return in_word_order(item, by_window)
