"""Words that are read letter by letter, as ELMo does: no word is unknown to whoever reads its characters.

In: text. Out: ids of words (for a softmax over the words of a list), and for each word its characters as parts: the
bytes of its UTF-8 between the marks of a word's begin and end, as allennlp numbers them (bytes from 1 on). A special
token that opens or closes a sentence has a character of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from firth.tokenizers.vocab import SPECIALS, Frame, Vocab
from firth.tokenizers.word_list import Words
from firth.types import Encoding

SENTENCE_BEGINS, SENTENCE_ENDS, WORD_BEGINS, WORD_ENDS = 257, 258, 259, 260
MAX_CHARACTERS = 50
"""Characters of a word, the marks of its begin and end included; the rest of a longer word is not read."""
_PAD, _, _OPEN, _CLOSE, _ = range(len(SPECIALS))


def spell(word: str) -> list[int]:
    """A word's characters; lone surrogates, which no UTF-8 can hold, are left out."""
    return [WORD_BEGINS, *(byte + 1 for byte in word.encode("utf-8", "ignore")[: MAX_CHARACTERS - 2]), WORD_ENDS]


@dataclass(frozen=True)
class SpelledVocab(Vocab):
    """Words with their spelling."""

    def parts(self, ids: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
        rows = [self._spelled(int(i)) for i in ids]
        sizes = np.fromiter(map(len, rows), np.int64, len(rows)) // 2
        return np.frombuffer(b"".join(rows), "<u2").astype(np.int64), sizes

    @cached_property
    def _memory(self) -> dict[int, bytes]:
        edges = {_OPEN: [WORD_BEGINS, SENTENCE_BEGINS, WORD_ENDS], _CLOSE: [WORD_BEGINS, SENTENCE_ENDS, WORD_ENDS]}
        return {_PAD: b""} | {i: np.array(row, "<u2").tobytes() for i, row in edges.items()}

    def _spelled(self, i: int) -> bytes:
        if (found := self._memory.get(i)) is None:
            found = self._memory[i] = np.array(spell(self.tokens[i]), "<u2").tobytes()
        return found


class Characters(Words):
    kind = "FirthCharacters"

    @dataclass(frozen=True)
    class Config(Words.Config):
        vocab_size: int = 1_000_000
        """How many words have an id, special tokens included; characters are read of all words."""
        min_count: int = 1
        """How often a word must occur to have an id."""
        lowercase: bool = False
        """Whether text is lower-cased."""

    @classmethod
    def of(cls, words: Sequence[str], config: Any, *, counts: Sequence[int] | np.ndarray = ()) -> Self:
        """A tokenizer of these words; a sequence has a token in front and one behind, two texts two between them."""
        frame = Frame((_OPEN,), (_CLOSE, _OPEN), (_CLOSE,))
        vocab = SpelledVocab((*SPECIALS, *words), own_frame=frame)
        numbers = np.zeros(len(vocab), np.int64)
        numbers[len(SPECIALS) :] = counts if len(counts) else 0
        return cls(vocab, config, counts=numbers)

    def word_parts(self, word: str) -> list[int]:
        return spell(word)

    def _encoding(self, text: str, spans: list[tuple[int, int]]) -> Encoding:
        rows = [spell(self._normal(text[a:b])) for a, b in spans]
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        parts = np.array([part for row in rows for part in row], np.int64)
        return replace(super()._encoding(text, spans), parts=parts, part_sizes=sizes)
