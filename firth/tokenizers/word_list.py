"""Whole words as tokens: English by spaces and punctuation, Chinese by a segmenter; what is not on the list is unknown.

In: text. Out: ids of words and where they stand. The list is trained by counting, and keeps the counts: word2vec's
sampling needs them.
"""

import hashlib
import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from firth.config import from_dict, to_dict
from firth.errors import BadConfig, BadInput, Damaged
from firth.files import read_json, write_bytes, write_json
from firth.tokenizers.vocab import SPECIALS, Frame, Vocab
from firth.tokenizers.words import CHINESE, chinese_starts, has_chinese, repair
from firth.types import Encoding

_FILES = ("tokenizer_config.json", "vocab.txt")
_BATCH = 1 << 12
"""Texts counted together."""
LONGEST = 40
"""Characters of a form that is remembered; longer ones do not come back."""
_MARKS = "".join(c for c in map(chr, range(0x300, 0x10000)) if unicodedata.category(c)[0] == "M")
_LETTER = rf"[^\W_{CHINESE}]"
_word = re.compile(rf"[{CHINESE}]+|{_LETTER}+(?:[{re.escape(_MARKS)}]+{_LETTER}*)*|\S")
_spaced = re.compile(r"\S+")
_WIDE = f"[{CHINESE}\u3000-\u303f\uff00-\uff65]"
_no_space = re.compile(rf"(?<={_WIDE}) (?={_WIDE})| (?=[,.;:!?%)\]}}])|(?<=[(\[{{]) ")


class Words:
    """Immutable; safe to use from several threads."""

    kind = "FirthWords"
    counts_all = True
    """Trained on all of the text, not on a sample of it."""

    @dataclass(frozen=True)
    class Config:
        vocab_size: int = 1_000_000
        """How many tokens the vocabulary has at most, special tokens included; the most frequent words stay."""
        min_count: int = 5
        """How often a word must occur to be on the list."""
        lowercase: bool = True
        """Whether text is lower-cased."""
        split: Literal["words", "spaces"] = "words"
        """What a word is: what spaces, punctuation and the Chinese segmenter part, or what spaces alone part."""

        def __post_init__(self) -> None:
            if self.vocab_size <= len(SPECIALS) or self.min_count < 1:
                raise BadConfig(
                    f"A list of words needs a vocab_size above {len(SPECIALS)} and a min_count of at least 1."
                )

    def __init__(self, vocab: Vocab, config: Config, *, counts: np.ndarray | None = None) -> None:
        self.vocab, self.config = vocab, config
        self.counts = np.zeros(len(vocab), np.int64) if counts is None else counts
        self.continues = np.zeros(len(vocab), bool)

    @classmethod
    def of(cls, words: Sequence[str], config: Any, *, counts: Sequence[int] | np.ndarray = ()) -> Self:
        """A tokenizer of these words, in this order; sequences have no special tokens around them."""
        vocab = Vocab((*SPECIALS, *words), own_frame=Frame())
        numbers = np.zeros(len(vocab), np.int64)
        numbers[len(SPECIALS) :] = counts if len(counts) else 0
        return cls(vocab, config, counts=numbers)

    @classmethod
    def train(cls, texts: Iterable[str], config: Any, *, fewer: bool = False) -> Self:
        """The most frequent words of `texts`, by count and then by code point; the same texts always give the same."""
        empty, forms = cls.of((), config), Counter[str]()
        stream = iter(texts)
        while batch := list(islice(stream, _BATCH)):
            for text, spans in zip(batch, empty._spans(batch), strict=True):
                forms.update([text[a:b] for a, b in spans])
        counts = Counter[str]()
        for form, count in forms.items():
            counts[empty._normal(form)] += count
        known = [word for word, count in counts.items() if count >= config.min_count and _fits(word)]
        if not known:
            raise BadInput(
                f"No word of the text occurs {config.min_count} times; give it more text or a lower min_count."
            )
        known = sorted(known, key=lambda word: (-counts[word], word))[: config.vocab_size - len(SPECIALS)]
        return cls.of(known, config, counts=[counts[word] for word in known])

    @classmethod
    def load(cls, folder: Path) -> Self:
        settings, path = read_json(folder / _FILES[0]), folder / _FILES[1]
        names = {name: settings[name] for name in to_dict(cls.Config()) if name in settings}
        try:
            text = path.read_bytes().decode()
            fields = text.replace("\n", "\t").split("\t")[:-1]
            if text.count("\t") != text.count("\n"):  # a word that was imported has a tab in it
                fields = [part for line in text.split("\n")[:-1] for part in line.rpartition("\t")[::2]]
            words, counts = fields[::2], np.array(fields[1::2], np.int64)
        except (OSError, ValueError) as error:
            raise Damaged(f"{path} cannot be read ({error}); make {folder} again.") from None
        if words[: len(SPECIALS)] != list(SPECIALS):
            raise Damaged(f"{path} does not begin with {' '.join(SPECIALS)}; make {folder} again.")
        return cls.of(words[len(SPECIALS) :], from_dict(cls.Config, names), counts=counts[len(SPECIALS) :])

    def save(self, folder: Path, *, max_length: int | None = None) -> tuple[str, ...]:
        write_json(folder / _FILES[0], {"tokenizer_class": self.kind, **to_dict(self.config)})
        rows = zip(self.vocab.tokens, self.counts.tolist(), strict=True)
        write_bytes(folder / _FILES[1], "".join(f"{word}\t{count}\n" for word, count in rows).encode())
        return _FILES

    def at_least(self, min_count: int) -> tuple[Self, np.ndarray]:
        """The same without words that occur less often, and for every old id the new one (unknown where it is gone)."""
        kept = np.flatnonzero(self.counts >= min_count)
        kept = kept[kept >= len(SPECIALS)]
        new = np.full(len(self.vocab), self.vocab.unk, np.int64)
        new[: len(SPECIALS)] = np.arange(len(SPECIALS))
        new[kept] = np.arange(len(kept)) + len(SPECIALS)
        words = [self.vocab.tokens[i] for i in kept]
        return self.of(words, self.config, counts=self.counts[kept]), new

    @cached_property
    def fingerprint(self) -> str:
        what = json.dumps([self.kind, self.vocab.tokens, to_dict(self.config)], sort_keys=True)
        return hashlib.sha256(what.encode("utf-8", "surrogatepass")).hexdigest()

    def words(self, text: str) -> list[str]:
        """The words of a text as the list spells them, known or not."""
        return [self._normal(text[a:b]) for a, b in self._spans([text])[0]]

    def ids_batch(self, texts: list[str]) -> list[list[int]]:
        find = self._id.__getitem__
        return [
            list(map(find, [text[a:b] for a, b in spans]))
            for text, spans in zip(texts, self._spans(texts), strict=True)
        ]

    def word_starts_batch(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(np.array(row, np.int32), np.ones(len(row), bool)) for row in self.ids_batch(texts)]

    def encode(self, text: str, *, specials: bool = False, masks: bool = False) -> Encoding:
        """The whole text; special tokens spelled in it are always plain text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str], *, specials: bool = False, masks: bool = False) -> list[Encoding]:
        return [self._encoding(text, spans) for text, spans in zip(texts, self._spans(texts), strict=True)]

    def decode(self, ids: Iterable[int]) -> str:
        return _no_space.sub("", " ".join(self.vocab.tokens[i] for i in ids))

    def _encoding(self, text: str, spans: list[tuple[int, int]]) -> Encoding:
        ids = np.array([self._id[text[a:b]] for a, b in spans], np.int32)
        offsets = np.array(spans, np.int32).reshape(-1, 2)
        return Encoding(ids, offsets, np.ones(len(ids), bool), tuple(self.vocab.tokens[i] for i in ids))

    @cached_property
    def _id(self) -> "_Memory":
        return _Memory(self)

    @cached_property
    def _known(self) -> dict[str, int]:
        return {token: i for token, i in self.vocab.ids.items() if i not in self.vocab.specials}

    def _normal(self, form: str) -> str:
        return form.lower() if self.config.lowercase else form

    def _spans(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        """Where the words of each text stand."""
        pattern = _word if self.config.split == "words" else _spaced
        plain = [[match.span() for match in pattern.finditer(text)] for text in texts]
        if self.config.split == "spaces" or not any(map(has_chinese, texts)):
            return plain
        ends = np.cumsum([len(text) + 1 for text in texts])
        positions, begins = chinese_starts("\n".join(map(repair, texts)))
        places = np.split(positions[begins], np.searchsorted(positions[begins], ends))[:-1]
        starts = (ends - [len(text) + 1 for text in texts]).tolist()
        return [
            _cut(spans, (inside - start).tolist()) if len(inside) else spans
            for spans, inside, start in zip(plain, places, starts, strict=True)
        ]


class _Memory(dict[str, int]):
    """Form -> id. Text repeats itself, so most forms are lower-cased and looked up once. Bounded in forms and in their
    length, for a server reads whatever clients send; a full memory forgets all, so that it goes on learning."""

    MOST = 1 << 19

    def __init__(self, words: Words) -> None:
        super().__init__()
        self._words = words

    def __missing__(self, form: str) -> int:
        found = self._words._known.get(self._words._normal(form), self._words.vocab.unk)
        if len(form) <= LONGEST:
            if len(self) >= self.MOST:
                self.clear()
            self[sys.intern(form)] = found
        return found


def _cut(spans: list[tuple[int, int]], starts: list[int]) -> list[tuple[int, int]]:
    """Runs of Chinese characters cut where words begin; every run's first character does."""
    found, at = list[tuple[int, int]](), 0
    for start, end in spans:
        inside = start
        if at < len(starts) and starts[at] == start:
            at += 1
            while at < len(starts) and starts[at] < end:
                found.append((inside, starts[at]))
                inside = starts[at]
                at += 1
        found.append((inside, end))
    return found


def _fits(word: str) -> bool:
    """Whether a line of vocab.txt can hold it."""
    return bool(word) and word not in SPECIALS and not set(word) & {"\n", "\t"} and repair(word) == word
