"""What is masked together: tokens, words, runs of words, or names and phrases of a list.

In: a pack and which of its tokens may be chosen. Out: for each of these, whether a unit begins there. A unit never
crosses a special token, and all units but single tokens consist of whole words (in Chinese, those of the segmenter).
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from firth import rng
from firth.corpus.readers import read_lines
from firth.data.packing import Pack
from firth.errors import BadInput
from firth.tokenizers import Tokenizer

Unit = Literal["token", "word", "span", "ngram", "entity"]
SPAN = 0.8 ** np.arange(10)
"""Weights of spans of 1 to 10 words: geometric with p = 0.2 (Joshi et al. 2019, section 3.1)."""
NGRAM = 1 / np.arange(1, 4)
"""Weights of runs of 1 to 3 words, in proportion to 1/n (Lan et al. 2019, section 4.1)."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def unit_starts(unit: Unit, pack: Pack, tokens: np.ndarray, *, key: np.uint64, entities: "Entities") -> np.ndarray:
    """For each of these tokens of a pack: whether a unit begins there."""
    if unit == "token":
        return np.ones(len(tokens), bool)
    # A piece of text may begin in the middle of a word; after a special token it still begins a unit.
    after_special = np.diff(tokens, prepend=-2) > 1
    words = np.asarray(pack.word_starts_N[tokens] | after_special)
    if unit == "word":
        return words
    if unit == "entity":
        return entities.join(pack.ids_N[tokens], words, after_special)
    weights = SPAN if unit == "span" else NGRAM
    first = np.flatnonzero(words)
    sizes = _run_sizes(pack, tokens[first], weights, key=key)
    runs = _consecutive_runs(sizes, after_special[first])
    starts = np.zeros(len(tokens), bool)
    starts[first[runs]] = True
    return starts


def _run_sizes(pack: Pack, tokens: np.ndarray, weights: np.ndarray, *, key: np.uint64) -> np.ndarray:
    """For each of these tokens a random number of words, drawn by these weights of 1, 2, ... words."""
    rows = pack.rows_B[pack.sequence_N[tokens]]
    positions = pack.positions_N[tokens]
    cumulative = np.cumsum(weights)
    draws = rng.uniform(key, rows, positions, 4) * cumulative[-1]
    return np.asarray(1 + np.searchsorted(cumulative, draws, side="right"))


def _consecutive_runs(sizes: np.ndarray, borders: np.ndarray) -> list[int]:
    """Where consecutive runs of words begin.

    `sizes` is the size of a run that would begin at each word. No run crosses a word marked in `borders`.
    """
    limits = np.append(np.flatnonzero(borders), len(borders))
    place = np.arange(len(sizes))
    next_limit = limits[np.searchsorted(limits, place, side="right")]
    jumps = np.minimum(place + sizes, next_limit).tolist()
    visited = []
    word = 0
    while word < len(jumps):
        visited.append(word)
        word = jumps[word]
    return visited


class Entities:
    """Names and phrases as sequences of ids, found in a pack wherever they are whole words."""

    def __init__(self, rows: Iterable[list[int]] = ()) -> None:
        self.rows = {tuple(row) for row in rows if len(row) > 1}
        by_size: dict[int, list[tuple[int, ...]]] = {}
        for row in self.rows:
            by_size.setdefault(len(row), []).append(row)
        # Longer entities come first, because of overlapping ones the longest counts.
        self.hashes: dict[int, np.ndarray] = {}
        for size in sorted(by_size, reverse=True):
            self.hashes[size] = _hash(np.array(by_size[size]))

    @classmethod
    def read(cls, path: Path, tokenizer: Tokenizer) -> "Entities":
        """Reads a file with a name or phrase on each line, or with the spans of a tagger by `firth predict --json`."""
        found = set[str]()
        for row, line in enumerate(read_lines(path, remedy="put one name or phrase on each line"), 1):
            found.update(_phrases(path, row, line))
        if not found:
            raise BadInput(f"{path} holds no names or phrases; put one on each line.")
        phrases = sorted(found)
        # Where a tokenizer puts the space before a word into the word, a phrase has two spellings.
        spaced = [f" {phrase}" for phrase in phrases]
        return cls(tokenizer.ids_batch([*phrases, *spaced]))

    def join(self, ids: np.ndarray, words: np.ndarray, after_special: np.ndarray) -> np.ndarray:
        """The starts of words without those inside an entity; of overlapping entities the longer one counts."""
        starts = words.copy()
        free = np.ones(len(ids), bool)
        word_ends = np.append(words, True)
        for size, known in self.hashes.items():
            if size > len(ids):
                continue
            # Candidates have a known hash, begin with a word and end with a word.
            is_likely = np.isin(_hash(sliding_window_view(ids, size)), known) & words[: len(ids) - size + 1]
            candidates = np.flatnonzero(is_likely & word_ends[size:]).tolist()
            for at in candidates:
                within = slice(at, at + size)
                rest = slice(at + 1, at + size)
                is_whole = free[within].all() and not after_special[rest].any()
                if is_whole and tuple(ids[within].tolist()) in self.rows:
                    starts[rest] = False
                    free[within] = False
        return starts


def _hash(rows: np.ndarray) -> np.ndarray:
    """A 64-bit polynomial hash of each row."""
    with np.errstate(over="ignore"):
        powers = _MULTIPLIER ** np.arange(1, rows.shape[1] + 1, dtype=np.uint64)
        return np.asarray((rows.astype(np.uint64) * powers).sum(1, dtype=np.uint64))


def _phrases(path: Path, row: int, line: str) -> list[str]:
    """The names and phrases of one line: the line itself, or the spans of a JSON row."""
    if not line.startswith("{"):
        phrase = line.strip()
        return [phrase] if phrase else []
    try:
        spans = json.loads(line)["spans"]
        return [str(span["text"]) for span in spans]
    except (json.JSONDecodeError, KeyError, TypeError):
        raise BadInput(f"{path}, line {row}: this JSON row has no spans; a tagger's predictions have them.") from None
