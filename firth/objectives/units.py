"""What is masked together: tokens, words, runs of words, or names and phrases of a list.

In: a pack and which of its tokens may be chosen. Out: for each of these, whether a unit begins there. A unit never
reaches over a special token, and all but single tokens are made of whole words (in Chinese, the segmenter's).
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from firth import chance
from firth.corpus.readers import read_lines
from firth.data.packing import Pack
from firth.errors import BadInput
from firth.tokenizers import Tokenizer

Unit = Literal["token", "word", "span", "ngram", "entity"]
SPAN = 0.8 ** np.arange(10)
"""Spans of 1 to 10 words, geometric with p = 0.2 (Joshi et al. 2019, section 3.1)."""
NGRAM = 1 / np.arange(1, 4)
"""Runs of 1 to 3 words with probabilities in proportion to 1/n (Lan et al. 2019, section 4.1)."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def unit_starts(unit: Unit, pack: Pack, tokens: np.ndarray, *, key: np.uint64, entities: "Entities") -> np.ndarray:
    """For each of these tokens of a pack: does a unit begin there?"""
    if unit == "token":
        return np.ones(len(tokens), bool)
    # A piece that begins in mid-word still begins a unit where a special token stands before it.
    after_special = np.diff(tokens, prepend=-2) > 1
    words = np.asarray(pack.word_starts_N[tokens] | after_special)
    if unit == "word":
        return words
    if unit == "entity":
        return entities.join(pack.ids_N[tokens], words, after_special)
    first = np.flatnonzero(words)
    counters = pack.rows_B[pack.sequence_N[tokens[first]]], pack.positions_N[tokens[first]]
    shares = np.cumsum(SPAN if unit == "span" else NGRAM)
    sizes = 1 + np.searchsorted(shares, chance.uniform(key, *counters, 4) * shares[-1], side="right")
    starts = np.zeros(len(tokens), bool)
    starts[first[_walk(sizes, after_special[first])]] = True
    return starts


def _walk(sizes: np.ndarray, borders: np.ndarray) -> list[int]:
    """Where runs begin that follow each other, one that begins at i being so long, none reaching over a border."""
    limits = np.append(np.flatnonzero(borders), len(borders))
    place = np.arange(len(sizes))
    jumps = np.minimum(place + sizes, limits[np.searchsorted(limits, place, side="right")]).tolist()
    visited, at = [], 0
    while at < len(jumps):
        visited.append(at)
        at = jumps[at]
    return visited


class Entities:
    """Names and phrases as sequences of ids, found in a pack wherever they are whole words."""

    def __init__(self, rows: Iterable[list[int]] = ()) -> None:
        self.rows = {tuple(row) for row in rows if len(row) > 1}
        self.hashes = {
            size: _hash(np.array([row for row in self.rows if len(row) == size]))
            for size in sorted(set(map(len, self.rows)), reverse=True)
        }

    @classmethod
    def read(cls, path: Path, tokenizer: Tokenizer) -> "Entities":
        """A file with a name or phrase on each line, or what `firth predict --json` wrote of a tagger's spans."""
        lines = enumerate(read_lines(path, remedy="put one name or phrase on each line"), 1)
        phrases = sorted({phrase for row, line in lines for phrase in _phrases(path, row, line)})
        if not phrases:
            raise BadInput(f"{path} holds no names or phrases; put one on each line.")
        # Where a tokenizer writes the space before a word into the word, a phrase has two spellings.
        return cls(tokenizer.ids_batch([*phrases, *(f" {phrase}" for phrase in phrases)]))

    def join(self, ids: np.ndarray, words: np.ndarray, after_special: np.ndarray) -> np.ndarray:
        """The starts of words, those inside an entity left out; of entities that overlap the longer one counts."""
        starts, free = words.copy(), np.ones(len(ids), bool)
        ends = np.append(words, True)
        for size, known in self.hashes.items():
            if size > len(ids):
                continue
            likely = np.isin(_hash(sliding_window_view(ids, size)), known) & words[: len(ids) - size + 1]
            for at in np.flatnonzero(likely & ends[size:]).tolist():
                within = slice(at, at + size)
                whole = free[within].all() and not after_special[at + 1 : at + size].any()
                if whole and tuple(ids[within].tolist()) in self.rows:
                    starts[at + 1 : at + size] = free[within] = False
        return starts


def _hash(rows: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        powers = _MULTIPLIER ** np.arange(1, rows.shape[1] + 1, dtype=np.uint64)
        return np.asarray((rows.astype(np.uint64) * powers).sum(1, dtype=np.uint64))


def _phrases(path: Path, row: int, line: str) -> list[str]:
    if not line.startswith("{"):
        return [line.strip()] if line.strip() else []
    try:
        spans: Any = json.loads(line)["spans"]
        return [str(span["text"]) for span in spans]
    except (json.JSONDecodeError, KeyError, TypeError):
        raise BadInput(f"{path}, line {row}: this JSON row has no spans; `firth predict --json` writes them.") from None
