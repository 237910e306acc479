"""Names and phrases in the texts of packs, each with a type: from a file, or found in the prepared text itself.

In: a list of names (a type may follow a name behind a tab), rows of `firth predict --json` by a tagger (the type is the
label of a span), or shards. Out: where names are in a pack, and the other names of the same type and size. A name is
always whole words; of overlapping names the longest counts.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firth.corpus.small_files import read_lines
from firth.data.shards import Shards
from firth.errors import BadInput
from firth.objectives.word_spans import PackText, span_hashes
from firth.tokenizers import Tokenizer

Name = tuple[str, tuple[int, ...]]
"""A type and the ids of a name."""
MIN_COUNT = 3
"""How often two words must follow each other to be a phrase."""
MIN_SCORE = 50.0
"""How many times more often than by chance."""
_SAMPLE = 5_000_000
"""Tokens at the start of the shards in which phrases are looked for."""


@dataclass(frozen=True)
class Mentions:
    """Names in a text, in its order."""

    first_J: np.ndarray
    """The first token of each."""
    ends_J: np.ndarray
    group_J: np.ndarray
    """The group of each name: all names of one type and one number of tokens."""
    member_J: np.ndarray
    """Its number in the group."""

    def head(self, count: int) -> "Mentions":
        """The first ones."""
        return Mentions(
            self.first_J[:count],
            self.ends_J[:count],
            self.group_J[:count],
            self.member_J[:count],
        )


class Names:
    """A list of names, grouped by type and number of tokens."""

    def __init__(self, names: Iterable[Name] = ()) -> None:
        groups: dict[tuple[str, int], list[tuple[int, ...]]] = {}
        seen: set[tuple[int, ...]] = set()
        for kind, ids in names:
            # Of a name with two types the first one counts.
            if ids and ids not in seen:
                seen.add(ids)
                groups.setdefault((kind, len(ids)), []).append(ids)
        self.rows = [np.array(rows, np.int64) for rows in groups.values()]
        self._hashes: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        sizes = {size for _, size in groups}
        # The longest first: of overlapping names the longest counts.
        for size in sorted(sizes, reverse=True):
            self._hashes[size] = self._index(size)

    def __len__(self) -> int:
        return sum(map(len, self.rows))

    def _index(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """The hashes of all names of a size, sorted, and for each its group and number."""
        numbers = []
        all_rows = []
        for group, rows in enumerate(self.rows):
            if rows.shape[1] == size:
                groups = np.full(len(rows), group)
                members = np.arange(len(rows))
                all_rows.append(rows)
                numbers.append(np.stack([groups, members], 1))
        # All names end to end.
        flat = np.concatenate(all_rows).ravel()
        starts = np.arange(0, len(flat), size)
        hashes = span_hashes(flat, starts, starts + size)
        order = np.argsort(hashes, kind="stable")
        return hashes[order], np.concatenate(numbers)[order]

    def find(self, text: PackText) -> Mentions:
        """All names in a text."""
        is_free_T = np.ones(len(text.ids_T), bool)
        found: list[tuple[int, int, int, int]] = []
        for size, (hashes, numbers) in self._hashes.items():
            first = _word_windows(text, size)
            wanted = span_hashes(text.ids_T, first, first + size)
            # The place of each hash among the sorted ones of names, if it is there at all.
            index = np.searchsorted(hashes, wanted)
            index = np.minimum(index, len(hashes) - 1)
            is_known = hashes[index] == wanted
            starts = first[is_known].tolist()
            names = numbers[index[is_known]].tolist()
            for start, (group, member) in zip(starts, names, strict=True):
                end = start + size
                # Compared as well, because two different names may have the same hash.
                name_ids = self.rows[group][member]
                is_same = np.array_equal(name_ids, text.ids_T[start:end])
                if is_same and is_free_T[start:end].all():
                    is_free_T[start:end] = False
                    found.append((start, end, group, member))
        columns = np.array(sorted(found), np.int64).reshape(-1, 4).T
        return Mentions(*columns)


def _word_windows(text: PackText, size: int) -> np.ndarray:
    """Where a run of `size` tokens of one sequence begins with a word and ends with one."""
    words = text.words
    is_inside = words.first_W + size <= len(text.ids_T)
    first = words.first_W[is_inside]
    last = first + size - 1
    is_word_end_T = np.zeros(len(text.ids_T), bool)
    is_word_end_T[words.ends_W - 1] = True
    is_one_sequence = text.sequence_T[first] == text.sequence_T[last]
    return np.asarray(first[is_word_end_T[last] & is_one_sequence])


def read_names(path: Path, tokenizer: Tokenizer) -> Names:
    """The names of a file."""
    found: dict[tuple[str, str], None] = {}  # in the order of the file
    for row, line in enumerate(read_lines(path, remedy="put one name on each line"), 1):
        found.update(dict.fromkeys(_typed_names(path, row, line)))
    if not found:
        raise BadInput(f"{path} holds no names; put one on each line.")
    kinds = [kind for _, kind in found]
    texts = [text for text, _ in found]
    # Where a tokenizer puts the space before a word into the word, a name has two spellings.
    spaced = [f" {text}" for text in texts]
    rows = tokenizer.ids_batch([*texts, *spaced])
    names: list[Name] = []
    for kind, ids in zip([*kinds, *kinds], rows, strict=True):
        names.append((kind, tuple(ids)))
    return Names(names)


def _typed_names(path: Path, row: int, line: str) -> list[tuple[str, str]]:
    """The names of one line with their types: `name`, `name TAB type`, or the spans of a JSON row."""
    if not line.startswith("{"):
        text, _, kind = line.partition("\t")
        text = text.strip()
        return [(text, kind.strip())] if text else []
    names = []
    try:
        for span in json.loads(line)["spans"]:
            kind = span.get("label", "")
            names.append((str(span["text"]), str(kind)))
        return names
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise BadInput(f"{path}, line {row}: this JSON row has no spans; a tagger's predictions have them.") from None


def phrases_of(shards: Shards) -> Names:
    """Pairs of words that follow each other far more often than by chance, all of one type.

    The score of a pair is (count - MIN_COUNT + 1) times all words, divided by the counts of both words (Mikolov et al.
    2013b, section 4).
    """
    num_tokens = min(shards.num_tokens, _SAMPLE)
    ids_T = np.asarray(shards.ids[:num_tokens], np.int64)
    places_T = np.arange(num_tokens)
    is_sentence_start_T = shards.sentence_starts(places_T)
    is_first_T = shards.word_starts(places_T) | is_sentence_start_T
    first_W = np.flatnonzero(is_first_T)
    ends_W = np.append(first_W, num_tokens)[1:]
    # Equal words get the same number; `counts` says how often each number occurs.
    hashes_W = span_hashes(ids_T, first_W, ends_W)
    _, word_W, counts = np.unique(hashes_W, return_inverse=True, return_counts=True)
    vocab_size = len(counts)
    # Neighbours inside a sentence, from the first token of the left word to the end of the right one.
    has_left_neighbour = ~is_sentence_start_T[first_W[1:]]
    left = word_W[:-1][has_left_neighbour]
    right = word_W[1:][has_left_neighbour]
    pair_first = first_W[:-1][has_left_neighbour]
    pair_ends = ends_W[1:][has_left_neighbour]
    # A pair as one number; `examples` are where each different pair occurs first.
    coded = left * vocab_size + right
    pairs, examples, pair_counts = np.unique(coded, return_index=True, return_counts=True)
    left_counts = counts[pairs // vocab_size]
    right_counts = counts[pairs % vocab_size]
    chance = left_counts * right_counts / len(first_W)
    scores = (pair_counts - MIN_COUNT + 1) / chance
    is_phrase = (pair_counts >= MIN_COUNT) & (scores >= MIN_SCORE)
    chosen = examples[is_phrase]
    phrases = []
    for start, end in zip(pair_first[chosen], pair_ends[chosen], strict=True):
        phrases.append(("", tuple(ids_T[start:end].tolist())))
    return Names(phrases)
