"""fastText's words (Bojanowski et al. 2017; Joulin et al. 2016): a word is itself and its hashed character n-grams.

In: text. Out: words with their parts: the word's own row if it is on the list, its character n-grams between `<` and
`>`, and the n-grams of words that begin at it. N-grams share a fixed number of rows after those of the words. The hash
is the released program's: FNV-1a over UTF-8 bytes taken as signed numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from firth.errors import BadConfig
from firth.tokenizers.word_list import LONGEST, Words
from firth.tokenizers.words import repair
from firth.types import Encoding

END = "</s>"
"""What the fasttext program puts behind every line."""
_MOST_CHARACTERS = 1 << 20
"""Of the words whose parts are remembered: about 130,000 words and 150 MB."""
_MASK32, _MASK64 = (1 << 32) - 1, (1 << 64) - 1
_WORD_STEP = 116049371


class Subwords(Words):
    kind = "FirthSubwords"

    @dataclass(frozen=True)
    class Config(Words.Config):
        min_ngram: int = 3
        """Characters of the shortest n-grams, `<` and `>` included."""
        max_ngram: int = 6
        """Characters of the longest n-grams; 0 takes whole words only."""
        num_buckets: int = 2_000_000
        """Rows that all n-grams share."""
        word_ngrams: int = 1
        """Words of the longest n-grams of words; 1 for none."""
        ends: bool = False
        """Whether every text ends with `</s>`, as with the fasttext program."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.min_ngram < 0 or self.max_ngram < 0 or self.num_buckets < 0 or self.word_ngrams < 1:
                raise BadConfig("Subwords need n-grams and buckets of at least 0 and word_ngrams of at least 1.")
            if self.hashes and not self.num_buckets:
                raise BadConfig("N-grams need num_buckets of at least 1.")

        @property
        def hashes(self) -> bool:
            return self.max_ngram > 0 or self.word_ngrams > 1

    config: Config

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._parts: dict[str, list[int]] = {}
        self._characters = 0

    @property
    def num_rows(self) -> int:
        """Rows of a bag over all parts: words, then buckets."""
        return len(self.vocab) + (self.config.num_buckets if self.config.hashes else 0)

    def word_parts(self, word: str) -> list[int]:
        """The rows of a word as the list spells it, known or not; remembered."""
        if (found := self._parts.get(word)) is None:
            found = self.made_parts(word)
            self._remember(word, found)
        return found

    def _remember(self, word: str, parts: list[int]) -> None:
        """Within bounds, for a server reads whatever clients send; a full memory is replaced: others may read it."""
        if len(word) <= LONGEST:
            if self._characters > _MOST_CHARACTERS:
                self._parts, self._characters = {}, 0
            self._parts[word] = parts
            self._characters += len(word)

    def made_parts(self, word: str) -> list[int]:
        """The same, not remembered: for passes over the whole list."""
        own = [self._known[word]] if word in self._known else []
        least, most, size = self.config.min_ngram, self.config.max_ngram, self.config.num_buckets
        ngrams = [] if word == END else [len(self.vocab) + h % size for h in ngram_hashes(word, least, most)]
        return own + ngrams

    def parts(self, words: Sequence[str]) -> list[list[int]]:
        """The rows of each word of a text; n-grams of words are the first word's."""
        rows = [self.word_parts(word) for word in words]
        if self.config.word_ngrams < 2:
            return rows
        hashes = [_signed(fnv(word.encode("utf-8", "surrogatepass"))) for word in words]
        return [row + self._following(hashes, i) for i, row in enumerate(rows)]

    def _following(self, hashes: list[int], first: int) -> list[int]:
        found, state = list[int](), hashes[first] & _MASK64
        for other in hashes[first + 1 : first + self.config.word_ngrams]:
            state = (state * _WORD_STEP + other) & _MASK64
            found.append(len(self.vocab) + state % self.config.num_buckets)
        return found

    def _encoding(self, text: str, spans: list[tuple[int, int]]) -> Encoding:
        plain = super()._encoding(text, spans)
        words = [self._normal(text[a:b]) for a, b in spans]
        if self.config.ends:
            end = self._known.get(END, self.vocab.unk)
            offsets = np.concatenate([plain.offsets, np.full((1, 2), len(text), np.int32)])
            ids, starts = np.append(plain.ids, np.int32(end)), np.append(plain.word_starts, True)
            plain = Encoding(ids, offsets, starts, (*plain.tokens, self.vocab.tokens[end]))
            words.append(END)
        rows = self.parts([repair(word) for word in words])
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        return replace(plain, parts=np.array([part for row in rows for part in row], np.int64), part_sizes=sizes)

    def ids_batch(self, texts: list[str]) -> list[list[int]]:
        if not self.config.ends:
            return super().ids_batch(texts)
        return [[*row, self._known.get(END, self.vocab.unk)] for row in super().ids_batch(texts)]


def fnv(data: bytes) -> int:
    state = 2166136261
    for byte in data:
        state = ((state ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) & _MASK32
    return state


def ngram_hashes(word: str, least: int, most: int) -> list[int]:
    """Hashes of the n-grams of `<word>` in the fasttext program's order; a bracket alone is none."""
    pieces = [c.encode() for c in f"<{word}>"]
    found = []
    for start in range(len(pieces)):
        state = 2166136261
        for size, piece in enumerate(pieces[start : start + most], 1):
            for byte in piece:
                state = ((state ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) & _MASK32
            if size >= least and not (size == 1 and start in (0, len(pieces) - 1)):
                found.append(state)
    return found


def _signed(state: int) -> int:
    """A 32-bit number as C's int reads it."""
    return state - (1 << 32) if state >> 31 else state
