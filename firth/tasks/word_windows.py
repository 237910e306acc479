"""Words -> the windows an encoder reads, and back: one row for each word, whatever window it was read in.

In: a sentence with its words' places and its encoding. Out: an item whose windows hold whole words; a window's facts
are the rows of its words' first pieces, the item's facts say which window each word is taken from.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from firth.data.items import Item, Window, cut_window
from firth.tasks.conll import Sentence
from firth.tokenizers.templates import Templates
from firth.types import Encoding

MAX_PIECES = 32
"""Pieces of a word that are read; the rest of an endless word says nothing about its tag."""


def word_item(example: Sentence, encoding: Encoding, specials: Any, *, max_length: int) -> Item:
    """Windows of whole words; a window's facts are the rows of its words' first pieces."""
    starts = np.array([start for start, _ in example.words], np.int64)
    owner = np.searchsorted(starts, encoding.offsets[:, 0], side="right") - 1
    size, first_row = max_length - specials.frame.size(), len(specials.frame.opening)
    pieces = _by_word(np.arange(len(owner)), owner, num_words=len(starts), limit=min(MAX_PIECES, size))
    pieces = [rows if len(rows) else np.array([-1]) for rows in pieces]
    ends = np.cumsum([len(rows) for rows in pieces])
    spans = word_windows(ends, size)
    windows: list[Window] = []
    for first, last in spans:
        firsts = np.concatenate([[0], ends[first : last - 1] - (ends[first - 1] if first else 0)]) if last else ends
        rows = np.concatenate(pieces[first:last]) if last else np.empty(0, np.int64)
        tokens = encoding.take(rows, unknown=specials.unk), 0, len(rows)
        windows.append(cut_window(specials, tokens, start=first, facts=firsts.astype(np.int64) + first_row))
    total = len(encoding.ids)
    return Item(example, tuple(windows), total, max(0, total - int(sum(map(len, pieces)))), _choose(spans, len(pieces)))


def units_of(example: Sentence, known: dict[str, str]) -> list[str]:
    """A sentence's words; equal ones are one string, which `known` keeps."""
    text = example.texts[0]
    words = [text[start:end] for start, end in example.words]
    return [known.setdefault(word, word) for word in words]


def feature_items(examples: Sequence[Sentence], templates: Templates) -> list[Item]:
    """Each sentence as one window, whatever its length: a word is a token, and its features are the token's parts."""
    known: dict[str, str] = {}  # one string for each different word: a million copies take 80 MB
    units = [units_of(example, known) for example in examples]
    parts, bounds = templates.parts(units)
    sizes, ends = np.diff(bounds), np.cumsum([0, *map(len, units)])
    longest = max(map(len, units), default=0)
    all_places, all_none = np.arange(longest), np.zeros(longest, np.int64)  # the items share them
    items = []
    for example, (first, last) in zip(examples, pairwise(ends.tolist()), strict=True):
        places = all_places[: last - first]
        none = all_none[: last - first]
        own = parts[bounds[first] : bounds[last]]
        window = Window(none, none, facts=places, parts=own, part_sizes=sizes[first:last])
        items.append(Item(example, (window,), last - first, 0, none))
    return items


def _by_word(tokens: np.ndarray, owner: np.ndarray, *, num_words: int, limit: int) -> list[np.ndarray]:
    """The first pieces of each word; `owner` says whose each piece is."""
    bounds = np.searchsorted(owner, np.arange(num_words + 1))
    return [tokens[start : min(end, start + limit)] for start, end in pairwise(bounds)]


def word_windows(ends: np.ndarray, size: int) -> list[tuple[int, int]]:
    """Runs [first, last) of words whose pieces fit; neighbours overlap by about a quarter."""
    if not len(ends):
        return [(0, 0)]
    starts = np.concatenate([[0], ends[:-1]])
    spans, first = [], 0
    while True:
        last = int(np.searchsorted(ends, starts[first] + size, side="right"))
        spans.append((first, last))
        if last == len(ends):
            return spans
        overlap = int(np.searchsorted(starts, ends[last - 1] - size // 4))
        first = max(first + 1, min(overlap, last))


def _choose(spans: Sequence[tuple[int, int]], num_words: int) -> np.ndarray:
    """For each word the window in which it stands farthest from a cut; a text's own ends are no cuts."""
    places = np.arange(num_words)
    room = np.full((len(spans), num_words), -1)
    for k, (first, last) in enumerate(spans):
        left = places - first if first else np.full(num_words, num_words)
        right = last - 1 - places if last < num_words else np.full(num_words, num_words)
        inside = (places >= first) & (places < last)
        room[k, inside] = np.minimum(left, right)[inside]
    return np.asarray(room.argmax(0)) if num_words else np.empty(0, np.int64)


def in_word_order(item: Item, windows: Sequence[Any]) -> np.ndarray:
    """Of values for each word of each window, one for each word: from the window chosen for it."""
    chosen: np.ndarray = item.facts
    firsts = [w.start for w in item.windows]
    return np.concatenate([values[np.flatnonzero(chosen == k) - firsts[k]] for k, values in enumerate(windows)])
