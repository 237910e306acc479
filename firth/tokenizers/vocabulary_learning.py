"""Texts -> word counts -> word pieces: how a WordPiece or BPE vocabulary is learned.

Pieces grow from characters by repeatedly merging the most frequent pair of neighbours (Sennrich et al. 2016), as in all
public WordPiece trainers. The result is a pure function of the word counts: ties go to the pair whose pieces were added
first, and characters are added in the order of their code points. The tokenizers library's trainer iterates over hash
maps instead, so its ids, and sometimes its pieces, differ from run to run.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from firth.ragged import starts_of
from firth.tokenizers.segmentation import CHINESE
from firth.tokenizers.vocab import PREFIX

_ABSENT = -1


def count_words(
    texts: Iterable[str],
    split: Callable[[str], list[str]],
    *,
    chinese_characters: bool,
    longest: int,
) -> dict[str, int]:
    """How often each word of at most `longest` characters occurs; `split` cuts a chunk without spaces into words."""
    pattern = "[^ \n]+"
    if chinese_characters:
        pattern = f"[{CHINESE}]|[^ \n{CHINESE}]+"
    chunk_pattern = re.compile(pattern)
    chunk_counts: Counter[str] = Counter()
    for text in texts:
        chunk_counts.update(chunk_pattern.findall(text))

    # Each distinct chunk is split once, however often it occurs.
    word_counts: defaultdict[str, int] = defaultdict(int)
    for chunk, count in chunk_counts.items():
        for word in split(chunk):
            if len(word) <= longest:
                word_counts[word] += count
    return word_counts


def choose_characters(words: dict[str, int], *, coverage: float, min_count: int, room: int) -> set[str]:
    """The characters of the vocabulary: the most frequent ones that make up `coverage` of the text, and all its ASCII.

    Each occurs at least `min_count` times, and their pieces fit in `room`.
    """
    counts: defaultdict[str, int] = defaultdict(int)
    inside_words: set[str] = set()
    for word, count in words.items():
        inside_words.update(word[1:])
        for character in word:
            counts[character] += count

    def most_frequent_first(item: tuple[str, int]) -> tuple[int, str]:
        character, count = item
        return -count, character

    still_to_cover = coverage * sum(counts.values())
    chosen = set()
    for character, count in sorted(counts.items(), key=most_frequent_first):
        # A character that also occurs inside words needs a second piece, with the continuation prefix.
        num_pieces = 2 if character in inside_words else 1
        is_frequent = count >= min_count
        is_wanted = still_to_cover > 0 or character.isascii()
        if is_frequent and is_wanted and num_pieces <= room:
            chosen.add(character)
            still_to_cover -= count
            room -= num_pieces
    return chosen


def learn_pieces(words: dict[str, int], characters: set[str], *, size: int, min_count: int) -> list[str]:
    """WordPiece: at most `size` pieces, the characters first, then merges of pairs that occur `min_count` times."""
    chains = _PieceChains(words, characters, prefix=PREFIX)
    _merge_pairs(chains, size=size, min_count=min_count)
    return chains.pieces


def learn_merges(
    words: dict[str, int],
    characters: set[str],
    *,
    size: int,
    min_count: int,
) -> tuple[list[str], list[tuple[str, str]]]:
    """BPE: pieces without a continuation prefix, and the merged pairs in the order they were learned."""
    chains = _PieceChains(words, characters, prefix="")
    _merge_pairs(chains, size=size, min_count=min_count)
    return chains.pieces, chains.merges


def _merge_pairs(chains: "_PieceChains", *, size: int, min_count: int) -> None:
    """Merges the most frequent pair until there are `size` pieces or no pair is frequent enough."""
    heap = [(-count, pair) for pair, count in chains.counts.items()]
    heapify(heap)
    while heap and len(chains.pieces) < size:
        negative_count, pair = heappop(heap)
        queued_count = -negative_count
        count = chains.counts.get(pair, 0)
        if count < min_count:
            continue
        if count < queued_count:
            # Other merges took some of its occurrences since it was queued: queue it again with the right count.
            heappush(heap, (-count, pair))
        elif count == queued_count:
            for new_pair in chains.merge(pair):
                heappush(heap, (-chains.counts[new_pair], new_pair))


@dataclass(frozen=True)
class _PairTable:
    """Positions that begin a pair, grouped by pair."""

    positions: np.ndarray
    """Sorted by pair."""
    group_starts: np.ndarray
    """Where the positions of each pair begin."""
    pairs: np.ndarray
    counts: np.ndarray


class _PieceChains:
    """All words end to end, each a linked list of pieces. Every array has one entry per character.

    A piece is stored at the position of its first character. A pair of neighbouring pieces is one number,
    `left << 32 | right`, and its position is that of the left piece.
    """

    def __init__(self, words: dict[str, int], characters: set[str], *, prefix: str) -> None:
        # Sorted, so that nothing depends on the order in which words were counted.
        sorted_words = sorted(words)
        all_characters = "".join(sorted_words)
        codes = np.frombuffer(all_characters.encode("utf-32-le"), np.uint32)
        lengths = np.fromiter(map(len, sorted_words), np.int64, len(sorted_words))
        word_counts = np.fromiter(map(words.__getitem__, sorted_words), np.int64, len(sorted_words))
        begins_word = np.zeros(len(codes) + 1, bool)
        begins_word[starts_of(lengths)] = True
        begins_word[-1] = True
        alphabet = np.array(sorted(map(ord, characters)), np.uint32)
        is_known = np.isin(codes, alphabet)
        is_inside = is_known & ~begins_word[:-1]

        self.prefix = prefix
        self.merges: list[tuple[str, str]] = []
        self._start_pieces(codes, alphabet, takes_prefix=is_inside & bool(prefix))
        self.weights = np.repeat(word_counts, lengths)
        self._link(is_known, is_inside)
        # For every pair how often it occurs, and the positions where it was ever added; some no longer hold it.
        self.counts: defaultdict[int, int] = defaultdict(int)
        self.positions: defaultdict[int, list[np.ndarray]] = defaultdict(list)
        self._add_pairs(np.arange(len(codes)))

    def _start_pieces(self, codes: np.ndarray, alphabet: np.ndarray, *, takes_prefix: np.ndarray) -> None:
        """The first pieces: the characters, and those that occur inside a word once more, with the prefix."""
        # With a prefix, a character inside a word is a different piece from the same character at the start.
        inside_alphabet = np.unique(codes[takes_prefix])
        self.pieces = [chr(code) for code in alphabet.tolist()]
        self.pieces += [self.prefix + chr(code) for code in inside_alphabet.tolist()]
        self.piece_ids = {piece: i for i, piece in enumerate(self.pieces)}
        inside_ids = len(alphabet) + np.searchsorted(inside_alphabet, codes)
        start_ids = np.searchsorted(alphabet, codes)
        self.symbols = np.where(takes_prefix, inside_ids, start_ids)

    def _link(self, is_known: np.ndarray, is_inside: np.ndarray) -> None:
        """Links neighbours. A character that is not in the alphabet breaks the chain."""
        positions = np.arange(len(is_known))
        has_previous = is_inside.copy()
        has_previous[1:] &= is_known[:-1]
        has_next = np.append(has_previous[1:], False)[: len(is_known)]
        self.previous = np.where(has_previous, positions - 1, _ABSENT)
        self.next = np.where(has_next, positions + 1, _ABSENT)

    def merge(self, pair: int) -> list[int]:
        """Makes one piece of every occurrence of `pair`; returns the pairs that occur more often now."""
        left = pair >> 32
        right = pair & 0xFFFFFFFF
        left_piece = self.pieces[left]
        right_piece = self.pieces[right]
        merged_piece = left_piece + right_piece[len(self.prefix) :]
        self.merges.append((left_piece, right_piece))
        # Two different pairs can spell the same piece; it gets one id.
        if merged_piece not in self.piece_ids:
            self.piece_ids[merged_piece] = len(self.pieces)
            self.pieces.append(merged_piece)

        left_at = self._occurrences(left, right, self.positions.pop(pair))
        right_at = self.next[left_at]
        before_at = self.previous[left_at]
        # The pair itself goes, and the pairs of both its pieces with their other neighbours.
        self._remove_pairs(np.concatenate([before_at, left_at, right_at]))
        following = self.next[right_at]
        self.symbols[left_at] = self.piece_ids[merged_piece]
        self.symbols[right_at] = _ABSENT
        self.next[left_at] = following
        has_following = following != _ABSENT
        self.previous[following[has_following]] = left_at[has_following]
        return self._add_pairs(np.concatenate([self.previous[left_at], left_at]))

    def _occurrences(self, left: int, right: int, positions: list[np.ndarray]) -> np.ndarray:
        """The positions where the pair still occurs; of overlapping ones (x x x) the first."""
        left_at = np.unique(np.concatenate(positions))
        is_left = self.symbols[left_at] == left
        left_at = left_at[is_left]
        has_next = self.next[left_at] != _ABSENT
        left_at = left_at[has_next]
        right_at = self.next[left_at]
        is_right = self.symbols[right_at] == right
        left_at = left_at[is_right]
        if left != right:
            return np.asarray(left_at)
        chosen: list[int] = []
        taken = _ABSENT
        next_at = self.next[left_at]
        for position, following in zip(left_at.tolist(), next_at.tolist(), strict=True):
            if position != taken:
                chosen.append(position)
                taken = following
        return np.array(chosen, np.int64)

    def _pairs_at(self, positions: np.ndarray) -> _PairTable:
        """The pairs that begin at these positions; positions that begin none are left out."""
        positions = np.unique(positions[positions != _ABSENT])
        has_next = self.next[positions] != _ABSENT
        positions = positions[has_next]
        left = self.symbols[positions]
        right = self.symbols[self.next[positions]]
        pairs = left << 32 | right
        order = np.argsort(pairs, kind="stable")
        positions = positions[order]
        pairs = pairs[order]
        group_starts = np.flatnonzero(np.diff(pairs, prepend=_ABSENT))
        counts = group_starts
        if len(group_starts):
            counts = np.add.reduceat(self.weights[positions], group_starts)
        return _PairTable(positions, group_starts, pairs[group_starts], counts)

    def _remove_pairs(self, positions: np.ndarray) -> None:
        table = self._pairs_at(positions)
        for pair, count in zip(table.pairs.tolist(), table.counts.tolist(), strict=True):
            self.counts[pair] -= count

    def _add_pairs(self, positions: np.ndarray) -> list[int]:
        """Counts the pairs that begin at these positions and returns them."""
        table = self._pairs_at(positions)
        pairs: list[int] = table.pairs.tolist()
        counts = table.counts.tolist()
        starts = table.group_starts.tolist()
        ends = [*starts[1:], len(table.positions)]
        # Without any pair `ends` still has one entry, so the lengths may differ.
        for pair, count, start, end in zip(pairs, counts, starts, ends, strict=False):
            self.counts[pair] += count
            self.positions[pair].append(table.positions[start:end])
        return pairs
