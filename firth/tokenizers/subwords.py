"""fastText's words (Bojanowski et al. 2017; Joulin et al. 2016): a word is itself and its hashed character n-grams.

In: text. Out: words with their parts: the word's own row if it is on the list, its character n-grams between `<` and
`>`, and the n-grams of words that begin at it. N-grams share a fixed number of rows after those of the words. The hash
is the fasttext program's: FNV-1a over UTF-8 bytes read as signed numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from firth.errors import BadConfig
from firth.tokenizers.segmentation import repair
from firth.tokenizers.vocab import Vocab
from firth.tokenizers.word_list import LONGEST, Span, Words
from firth.types import Encoding

END = "</s>"
"""The token that the fasttext program puts at the end of every line."""
_MOST_CHARACTERS = 1 << 20
"""Characters of the words whose parts are cached: about 130,000 words and 150 MB."""
_MASK32 = (1 << 32) - 1
_MASK64 = (1 << 64) - 1
_FNV_OFFSET = 2166136261
_FNV_PRIME = 16777619
_WORD_STEP = 116049371
"""fastText's multiplier for n-grams of words."""


class Subwords(Words):
    kind = "FirthSubwords"
    has_word_parts = True

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
            """Whether there are n-grams of characters or of words."""
            return self.max_ngram > 0 or self.word_ngrams > 1

    config: Config

    def __init__(self, vocab: Vocab, config: Config, *, counts: np.ndarray | None = None) -> None:
        super().__init__(vocab, config, counts=counts)
        self._parts_cache: dict[str, list[int]] = {}
        self._cached_characters = 0

    @property
    def num_rows(self) -> int:
        """Rows of the embedding table over all parts: words, then buckets."""
        if self.config.hashes:
            return len(self.vocab) + self.config.num_buckets
        return len(self.vocab)

    def word_parts(self, word: str) -> list[int]:
        """The rows of a word as the list spells it, known or not; cached."""
        parts = self._parts_cache.get(word)
        if parts is None:
            parts = self.made_parts(word)
            self._cache_parts(word, parts)
        return parts

    def _cache_parts(self, word: str, parts: list[int]) -> None:
        """The cache is bounded, because a server reads whatever clients send."""
        if len(word) > LONGEST:
            return
        if self._cached_characters > _MOST_CHARACTERS:
            # A full cache is replaced, not emptied: another thread may still be reading it.
            self._parts_cache = {}
            self._cached_characters = 0
        self._parts_cache[word] = parts
        self._cached_characters += len(word)

    def made_parts(self, word: str) -> list[int]:
        """`word_parts` without the cache, for a pass over the whole list."""
        # The end token has no n-grams: it is no word of the text.
        parts = []
        if word in self._known:
            parts.append(self._known[word])
        if word != END:
            first_bucket = len(self.vocab)
            num_buckets = self.config.num_buckets
            hashes = ngram_hashes(word, self.config.min_ngram, self.config.max_ngram)
            parts += [first_bucket + value % num_buckets for value in hashes]
        return parts

    def parts(self, words: Sequence[str]) -> list[list[int]]:
        """The rows of each word of a text; an n-gram of words belongs to its first word."""
        rows = [self.word_parts(word) for word in words]
        if self.config.word_ngrams < 2:
            return rows
        hashes = []
        for word in words:
            data = word.encode("utf-8", "surrogatepass")
            hashes.append(_signed(fnv(data)))
        return [row + self._word_ngrams(hashes, i) for i, row in enumerate(rows)]

    def _word_ngrams(self, hashes: list[int], first: int) -> list[int]:
        """The rows of the n-grams of words that begin at the word `first`."""
        rows: list[int] = []
        # The program keeps this hash in 64 bits without sign.
        state = hashes[first] & _MASK64
        for following in hashes[first + 1 : first + self.config.word_ngrams]:
            state = (state * _WORD_STEP + following) & _MASK64
            rows.append(len(self.vocab) + state % self.config.num_buckets)
        return rows

    def _encoding(self, text: str, spans: list[Span]) -> Encoding:
        encoding = super()._encoding(text, spans)
        words = [self._normalise(text[start:end]) for start, end in spans]
        if self.config.ends:
            encoding = self._with_end(encoding, len(text))
            words.append(END)
        rows = self.parts([repair(word) for word in words])
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        parts = np.array(list(chain.from_iterable(rows)), np.int64)
        return replace(encoding, parts=parts, part_sizes=sizes)

    def _with_end(self, encoding: Encoding, length: int) -> Encoding:
        """The encoding with the end token, which covers no character."""
        end_span = np.full((1, 2), length, np.int32)
        return Encoding(
            ids=np.append(encoding.ids, np.int32(self._end_id)),
            offsets=np.concatenate([encoding.offsets, end_span]),
            word_starts=np.append(encoding.word_starts, True),
            tokens=(*encoding.tokens, self.vocab.tokens[self._end_id]),
        )

    @property
    def _end_id(self) -> int:
        return self._known.get(END, self.vocab.unk)

    def ids_batch(self, texts: list[str]) -> list[list[int]]:
        rows = super().ids_batch(texts)
        if self.config.ends:
            end_id = self._end_id
            for row in rows:
                row.append(end_id)
        return rows


def fnv(data: bytes) -> int:
    """The 32-bit FNV-1a hash of bytes."""
    state = _FNV_OFFSET
    for byte in data:
        # The program's `char` is signed: a byte from 128 on is extended with ones.
        signed_byte = byte if byte < 128 else byte | 0xFFFFFF00
        state = ((state ^ signed_byte) * _FNV_PRIME) & _MASK32
    return state


def ngram_hashes(word: str, least: int, most: int) -> list[int]:
    """Hashes of the n-grams of `<word>` in the fasttext program's order; a bracket alone is none."""
    characters = [character.encode() for character in f"<{word}>"]
    last = len(characters) - 1
    hashes = []
    for start in range(len(characters)):
        is_bracket = start in (0, last)
        state = _FNV_OFFSET
        for size, character in enumerate(characters[start : start + most], 1):
            # `fnv` again, inline: this is the inner loop over a whole vocabulary.
            for byte in character:
                signed_byte = byte if byte < 128 else byte | 0xFFFFFF00
                state = ((state ^ signed_byte) * _FNV_PRIME) & _MASK32
            if size >= least and not (size == 1 and is_bracket):
                hashes.append(state)
    return hashes


def _signed(state: int) -> int:
    """A 32-bit number as C's int reads it."""
    if state >> 31:
        return state - (1 << 32)
    return state
