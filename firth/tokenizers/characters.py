"""Words that are read character by character, as ELMo does: no word is unknown to a model that reads its characters.

In: text. Out: ids of words (for a softmax over the words of a list), and for each word its characters as parts: the
bytes of its UTF-8 between marks for the beginning and the end of a word, numbered as in allennlp (bytes from 1 on). The
special tokens that open and close a sentence have a character each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Self

import numpy as np

from firth.tokenizers.vocab import SPECIALS, Frame, Vocab
from firth.tokenizers.word_list import Span, Words, counts_of_tokens
from firth.types import Encoding

SENTENCE_BEGINS = 257
SENTENCE_ENDS = 258
WORD_BEGINS = 259
WORD_ENDS = 260
MAX_CHARACTERS = 50
"""Characters of a word, the marks of its beginning and end included; the rest of a longer word is not read."""
_PAD, _, _OPEN, _CLOSE, _ = range(len(SPECIALS))


def spell(word: str) -> list[int]:
    """A word's characters; lone surrogates, which UTF-8 cannot encode, are left out."""
    data = word.encode("utf-8", "ignore")[: MAX_CHARACTERS - 2]
    characters = [byte + 1 for byte in data]  # 0 is padding
    return [WORD_BEGINS, *characters, WORD_ENDS]


@dataclass(frozen=True)
class SpelledVocab(Vocab):
    """Words with their spelling."""

    def parts(self, ids: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
        """The characters of all tokens end to end, and how many each has."""
        rows = [self._spelling(int(i)) for i in ids]
        sizes = np.fromiter(map(len, rows), np.int64, len(rows)) // 2  # two bytes a character
        return np.frombuffer(b"".join(rows), "<u2").astype(np.int64), sizes

    @cached_property
    def _spellings(self) -> dict[int, bytes]:
        """Id -> characters as 16-bit numbers; filled as words are used."""
        opening = [WORD_BEGINS, SENTENCE_BEGINS, WORD_ENDS]
        closing = [WORD_BEGINS, SENTENCE_ENDS, WORD_ENDS]
        return {_PAD: b"", _OPEN: _as_bytes(opening), _CLOSE: _as_bytes(closing)}

    def _spelling(self, i: int) -> bytes:
        found = self._spellings.get(i)
        if found is None:
            found = _as_bytes(spell(self.tokens[i]))
            self._spellings[i] = found
        return found


class Characters(Words):
    kind = "FirthCharacters"
    has_word_parts = True

    @dataclass(frozen=True)
    class Config(Words.Config):
        vocab_size: int = 1_000_000
        """How many words have an id, special tokens included; characters are read of all words."""
        min_count: int = 1
        """How often a word must occur to have an id."""
        lowercase: bool = False
        """Whether text is lower-cased."""

    @classmethod
    def of(cls, words: Sequence[str], config: Words.Config, *, counts: Sequence[int] | np.ndarray = ()) -> Self:
        """A tokenizer of these words. A token opens and another closes every text of a sequence."""
        # Two texts are two sentences: `open first close open second close`.
        frame = Frame((_OPEN,), (_CLOSE, _OPEN), (_CLOSE,))
        vocab = SpelledVocab((*SPECIALS, *words), own_frame=frame)
        return cls(vocab, config, counts=counts_of_tokens(vocab, counts))

    def word_parts(self, word: str) -> list[int]:
        """The characters of a word, known or not."""
        return spell(word)

    def _encoding(self, text: str, spans: list[Span]) -> Encoding:
        rows = [spell(self._normalise(text[start:end])) for start, end in spans]
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        parts = np.array(list(chain.from_iterable(rows)), np.int64)
        encoding = super()._encoding(text, spans)
        return replace(encoding, parts=parts, part_sizes=sizes)


def _as_bytes(characters: list[int]) -> bytes:
    return np.array(characters, "<u2").tobytes()
