"""Texts -> word counts -> word pieces: what a WordPiece vocabulary learns.

Pieces grow from characters by merging the most frequent pair of neighbours again and again (Sennrich et al. 2016), as
in all public WordPiece trainers. It is a pure function of the word counts: ties go to the pair whose pieces were known
first, and characters are known in the order of their code points. The tokenizers library's trainer walks hash maps
instead, so that its ids, and now and then its pieces, differ from run to run.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

import numpy as np

from firth.tokenizers.vocab import PREFIX
from firth.tokenizers.words import CHINESE

_ABSENT = -1


def count_words(
    texts: Iterable[str], split: Callable[[str], list[str]], *, chinese_characters: bool, longest: int
) -> dict[str, int]:
    """How often each word of at most `longest` characters occurs; `split` cuts a stretch without spaces into words."""
    stretch = re.compile(f"[{CHINESE}]|[^ \n{CHINESE}]+" if chinese_characters else "[^ \n]+")
    stretches: Counter[str] = Counter()
    for text in texts:
        stretches.update(stretch.findall(text))
    words: defaultdict[str, int] = defaultdict(int)
    for text, count in stretches.items():
        for word in split(text):
            if len(word) <= longest:
                words[word] += count
    return words


def choose_characters(words: dict[str, int], *, coverage: float, min_count: int, room: int) -> set[str]:
    """The most frequent characters that make up `coverage` of the text, and all ASCII in it; each at least `min_count`
    times, and as far as their pieces fit in `room`."""
    counts: defaultdict[str, int] = defaultdict(int)
    inside: set[str] = set()
    for word, count in words.items():
        inside.update(word[1:])
        for character in word:
            counts[character] += count
    still_wanted = coverage * sum(counts.values())
    chosen = set()
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        pieces = 1 + (character in inside)
        if count >= min_count and pieces <= room and (still_wanted > 0 or character.isascii()):
            chosen.add(character)
            still_wanted -= count
            room -= pieces
    return chosen


def learn_pieces(words: dict[str, int], characters: set[str], *, size: int, min_count: int) -> list[str]:
    """At most `size` pieces: the characters, then merges of pairs that occur at least `min_count` times."""
    line = _Line(words, characters, prefix=PREFIX)
    _grow(line, size=size, min_count=min_count)
    return line.pieces


def learn_merges(
    words: dict[str, int], characters: set[str], *, size: int, min_count: int
) -> tuple[list[str], list[tuple[str, str]]]:
    """The same for pieces that look alike wherever they stand in a word, and the pairs merged, in order."""
    line = _Line(words, characters, prefix="")
    _grow(line, size=size, min_count=min_count)
    return line.pieces, line.merges


def _grow(line: "_Line", *, size: int, min_count: int) -> None:
    heap = [(-count, pair) for pair, count in line.counts.items()]
    heapify(heap)
    while heap and len(line.pieces) < size:
        negative, pair = heappop(heap)
        count = line.counts.get(pair, 0)
        if count < min_count:
            continue
        if count < -negative:  # it lost occurrences to other merges since it was queued
            heappush(heap, (-count, pair))
        elif count == -negative:
            for grown in line.merge(pair):
                heappush(heap, (-line.counts[grown], grown))


class _Line:
    """Words end to end as chains of pieces. A pair is one number, `left << 32 | right`, placed at its left end."""

    def __init__(self, words: dict[str, int], characters: set[str], *, prefix: str) -> None:
        ordered = sorted(words)
        codes = np.frombuffer("".join(ordered).encode("utf-32-le"), np.uint32)
        lengths = np.fromiter(map(len, ordered), np.int64, len(ordered))
        counts = np.fromiter(map(words.__getitem__, ordered), np.int64, len(ordered))
        first = np.zeros(len(codes) + 1, bool)
        first[np.cumsum(lengths) - lengths], first[-1] = True, True
        known = np.isin(codes, alphabet := np.array(sorted(map(ord, characters)), np.uint32))
        marked = known & ~first[:-1] & bool(prefix)  # a character inside a word is another piece than one in front
        inside = np.unique(codes[marked])
        self.prefix, self.merges = prefix, list[tuple[str, str]]()
        self.pieces = [*map(chr, alphabet.tolist()), *(prefix + chr(code) for code in inside.tolist())]
        self.number = {piece: i for i, piece in enumerate(self.pieces)}
        self.symbols = np.where(
            marked, len(alphabet) + np.searchsorted(inside, codes), np.searchsorted(alphabet, codes)
        )
        self.weights = np.repeat(counts, lengths)
        places = np.arange(len(codes))
        tied = known & ~first[:-1]  # to the character before; one that is not in the alphabet breaks the chain
        tied[1:] &= known[:-1]
        self.before = np.where(tied, places - 1, _ABSENT)
        self.after = np.where(np.append(tied[1:], False)[: len(codes)], places + 1, _ABSENT)
        self.counts: defaultdict[int, int] = defaultdict(int)
        self.places: defaultdict[int, list[np.ndarray]] = defaultdict(list)
        self._add(places)

    def merge(self, pair: int) -> list[int]:
        """Makes one piece of every occurrence of `pair`; returns the pairs that occur more often now."""
        left, right = pair >> 32, pair & 0xFFFFFFFF
        piece = self.pieces[left] + self.pieces[right][len(self.prefix) :]
        self.merges.append((self.pieces[left], self.pieces[right]))
        if piece not in self.number:
            self.number[piece] = len(self.pieces)
            self.pieces.append(piece)
        at = self._occurrences(left, right, self.places.pop(pair))
        gone = self.after[at]
        self._remove(np.concatenate([self.before[at], at, gone]))
        beyond = self.after[gone]
        self.symbols[at], self.symbols[gone] = self.number[piece], _ABSENT
        self.after[at] = beyond
        inner = beyond != _ABSENT
        self.before[beyond[inner]] = at[inner]
        return self._add(np.concatenate([self.before[at], at]))

    def _occurrences(self, left: int, right: int, places: list[np.ndarray]) -> np.ndarray:
        """Where the pair still stands; of overlapping ones (x x x) the first."""
        at = np.unique(np.concatenate(places))
        at = at[self.symbols[at] == left]
        at = at[self.after[at] != _ABSENT]
        at = at[self.symbols[self.after[at]] == right]
        if left != right:
            return np.asarray(at)
        chosen: list[int] = []
        taken = _ABSENT
        for place, following in zip(at.tolist(), self.after[at].tolist(), strict=True):
            if place != taken:
                chosen.append(place)
                taken = following
        return np.array(chosen, np.int64)

    def _pairs(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The places that begin a pair, sorted by pair; where each pair's stretch of them starts; pairs; counts."""
        places = np.unique(places[places != _ABSENT])
        places = places[self.after[places] != _ABSENT]
        keys = self.symbols[places] << 32 | self.symbols[self.after[places]]
        order = np.argsort(keys, kind="stable")
        places, keys = places[order], keys[order]
        starts = np.flatnonzero(np.diff(keys, prepend=_ABSENT))
        counts = np.add.reduceat(self.weights[places], starts) if len(starts) else starts
        return places, starts, keys[starts], counts

    def _remove(self, places: np.ndarray) -> None:
        _, _, pairs, counts = self._pairs(places)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            self.counts[pair] -= count

    def _add(self, places: np.ndarray) -> list[int]:
        places, starts, pairs, counts = self._pairs(places)
        grown: list[int] = pairs.tolist()
        begins = starts.tolist()
        for pair, count, begin, end in zip(grown, counts.tolist(), begins, [*begins[1:], len(places)], strict=False):
            self.counts[pair] += count
            self.places[pair].append(places[begin:end])
        return grown
