"""Whole words as tokens: English by spaces and punctuation, Chinese by a segmenter; a word not on the list is unknown.

In: text. Out: ids of words and their positions. The list is trained by counting, and keeps the counts: word2vec's
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
from typing import Literal, Self

import numpy as np

from firth.config import from_dict, to_dict
from firth.errors import BadConfig, BadInput, Damaged
from firth.files import read_json, write_bytes, write_json
from firth.tokenizers.capabilities import Capabilities
from firth.tokenizers.segmentation import CHINESE, chinese_starts, has_chinese, repair
from firth.tokenizers.vocab import SPECIALS, Frame, Vocab, each_begins_word
from firth.types import Encoding

Span = tuple[int, int]
"""The first character of a word and the one after its last."""
_CONFIG_FILE = "tokenizer_config.json"
_VOCAB_FILE = "vocab.txt"
_BATCH = 1 << 12
"""Texts counted together."""
LONGEST = 40
"""Characters of the longest form that is cached; longer ones hardly repeat."""
# Combining marks, which are no letters to the regular expression.
_characters = map(chr, range(0x300, 0x10000))
_MARKS = "".join(c for c in _characters if unicodedata.category(c)[0] == "M")
_LETTER = rf"[^\W_{CHINESE}]"
# A run of Chinese characters, a run of letters with their combining marks, or any other single character.
_word = re.compile(rf"[{CHINESE}]+|{_LETTER}+(?:[{re.escape(_MARKS)}]+{_LETTER}*)*|\S")
_spaced_word = re.compile(r"\S+")
_WIDE = f"[{CHINESE}\u3000-\u303f\uff00-\uff65]"
# Spaces between wide characters, before closing punctuation and after opening brackets.
_unwanted_space = re.compile(rf"(?<={_WIDE}) (?={_WIDE})| (?=[,.;:!?%)\]}}])|(?<=[(\[{{]) ")


class Words(Capabilities):
    """Immutable; safe to use from several threads."""

    kind = "FirthWords"
    counts_all_words = True

    @dataclass(frozen=True)
    class Config:
        vocab_size: int = 1_000_000
        """How many tokens the vocabulary has at most, special tokens included; the most frequent words stay."""
        min_count: int = 5
        """How often a word must occur to be on the list."""
        lowercase: bool = True
        """Whether text is lower-cased."""
        split: Literal["words", "spaces"] = "words"
        """How words are separated: by spaces, punctuation and the Chinese segmenter, or by spaces alone."""

        def __post_init__(self) -> None:
            if self.vocab_size <= len(SPECIALS) or self.min_count < 1:
                raise BadConfig(
                    f"A list of words needs a vocab_size above {len(SPECIALS)} and a min_count of at least 1."
                )

    def __init__(self, vocab: Vocab, config: Config, *, counts: np.ndarray | None = None) -> None:
        self.vocab = vocab
        self.config = config
        if counts is None:
            counts = np.zeros(len(vocab), np.int64)
        self.counts = counts
        self.continues = np.zeros(len(vocab), bool)

    @property
    def lowercases(self) -> bool:
        return self.config.lowercase

    @classmethod
    def of(cls, words: Sequence[str], config: Config, *, counts: Sequence[int] | np.ndarray = ()) -> Self:
        """A tokenizer of these words, in this order; sequences have no special tokens around them."""
        vocab = Vocab((*SPECIALS, *words), own_frame=Frame())
        return cls(vocab, config, counts=counts_of_tokens(vocab, counts))

    @classmethod
    def train(cls, texts: Iterable[str], config: Config, *, fewer: bool = False) -> Self:
        """The most frequent words of `texts`, by count and then by code point; the same texts always give the same."""
        return cls.from_counts(cls.count(texts, config), config, fewer=fewer)

    @classmethod
    def count(cls, texts: Iterable[str], config: Config) -> dict[str, int]:
        """How often each word occurs; counts of parts of a text may be added."""
        untrained = cls.of((), config)
        form_counts = Counter[str]()
        stream = iter(texts)
        while batch := list(islice(stream, _BATCH)):
            for text, spans in zip(batch, untrained._spans(batch), strict=True):
                form_counts.update([text[start:end] for start, end in spans])
        # Each distinct form is lower-cased once.
        word_counts = Counter[str]()
        for form, count in form_counts.items():
            word_counts[untrained._normalise(form)] += count
        return word_counts

    @classmethod
    def from_counts(cls, word_counts: dict[str, int], config: Config, *, fewer: bool = False) -> Self:
        """The most frequent words by these counts."""
        frequent = []
        for word, count in word_counts.items():
            if count >= config.min_count and _fits_in_line(word):
                frequent.append(word)
        if not frequent:
            raise BadInput(
                f"No word of the text occurs {config.min_count} times; give it more text or a lower `min_count=`."
            )
        frequent.sort(key=lambda word: (-word_counts[word], word))
        known = frequent[: config.vocab_size - len(SPECIALS)]
        return cls.of(known, config, counts=[word_counts[word] for word in known])

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The tokenizer that `save` wrote."""
        settings = read_json(folder / _CONFIG_FILE)
        path = folder / _VOCAB_FILE
        # The file holds the settings next to other keys.
        config_values = {name: settings[name] for name in to_dict(cls.Config()) if name in settings}
        try:
            words, counts = _read_vocab(path)
        except (OSError, ValueError) as error:
            raise Damaged(f"{path} cannot be read ({error}); make {folder} again.") from None
        if words[: len(SPECIALS)] != list(SPECIALS):
            raise Damaged(f"{path} does not begin with {' '.join(SPECIALS)}; make {folder} again.")
        config = from_dict(cls.Config, config_values)
        return cls.of(words[len(SPECIALS) :], config, counts=counts[len(SPECIALS) :])

    def save(self, folder: Path, *, max_length: int | None = None) -> tuple[str, ...]:
        """Writes the settings, and the words with their counts; returns the files' names."""
        write_json(folder / _CONFIG_FILE, {"tokenizer_class": self.kind, **to_dict(self.config)})
        rows = zip(self.vocab.tokens, self.counts.tolist(), strict=True)
        lines = "".join(f"{word}\t{count}\n" for word, count in rows)
        write_bytes(folder / _VOCAB_FILE, lines.encode())
        return _CONFIG_FILE, _VOCAB_FILE

    def at_least(self, min_count: int) -> tuple[Self, np.ndarray]:
        """The tokenizer without words that occur less often, and for every old id the new one (or the unknown id)."""
        kept = np.flatnonzero(self.counts >= min_count)
        kept = kept[kept >= len(SPECIALS)]
        num_specials = len(SPECIALS)
        new_ids = np.full(len(self.vocab), self.vocab.unk, np.int64)
        new_ids[:num_specials] = np.arange(num_specials)
        new_ids[kept] = num_specials + np.arange(len(kept))
        words = [self.vocab.tokens[i] for i in kept]
        return self.of(words, self.config, counts=self.counts[kept]), new_ids

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of everything that decides the ids of a text."""
        content = json.dumps([self.kind, self.vocab.tokens, to_dict(self.config)], sort_keys=True)
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()

    def words(self, text: str) -> list[str]:
        """The words of a text as the list spells them, known or not."""
        [spans] = self._spans([text])
        return [self._normalise(text[start:end]) for start, end in spans]

    def ids_batch(self, texts: list[str]) -> list[list[int]]:
        id_of = self._id_cache.__getitem__
        rows = []
        for text, spans in zip(texts, self._spans(texts), strict=True):
            forms = [text[start:end] for start, end in spans]
            rows.append(list(map(id_of, forms)))
        return rows

    def word_starts_batch(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each text its ids, and whether each begins a word, which all do."""
        return each_begins_word(self.ids_batch(texts))

    def encode(self, text: str, *, specials: bool = False, masks: bool = False) -> Encoding:
        """The whole text; special tokens spelled in it are always plain text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str], *, specials: bool = False, masks: bool = False) -> list[Encoding]:
        encodings = []
        for text, spans in zip(texts, self._spans(texts), strict=True):
            encodings.append(self._encoding(text, spans))
        return encodings

    def decode(self, ids: Iterable[int]) -> str:
        spaced = " ".join(self.vocab.tokens[i] for i in ids)
        return _unwanted_space.sub("", spaced)

    def _encoding(self, text: str, spans: list[Span]) -> Encoding:
        forms = [text[start:end] for start, end in spans]
        ids = [self._id_cache[form] for form in forms]
        # The shape is given, because there may be no words.
        offsets = np.array(spans, np.int32).reshape(-1, 2)
        begins_word = np.ones(len(ids), bool)
        tokens = tuple(self.vocab.tokens[i] for i in ids)
        return Encoding(np.array(ids, np.int32), offsets, begins_word, tokens)

    @cached_property
    def _id_cache(self) -> "_IdCache":
        return _IdCache(self)

    @cached_property
    def _known(self) -> dict[str, int]:
        """Word -> id, without the special tokens."""
        known = dict(self.vocab.ids)
        for special in self.vocab.specials:
            del known[self.vocab.tokens[special]]
        return known

    def _normalise(self, form: str) -> str:
        return form.lower() if self.config.lowercase else form

    def _spans(self, texts: list[str]) -> list[list[Span]]:
        """The spans of the words of each text."""
        pattern = _word if self.config.split == "words" else _spaced_word
        spans_of_texts = []
        for text in texts:
            spans_of_texts.append([match.span() for match in pattern.finditer(text)])
        if self.config.split == "spaces" or not any(map(has_chinese, texts)):
            return spans_of_texts

        # All texts are segmented in one call; positions in the joined text are then those of each text again.
        sizes = [len(text) + 1 for text in texts]
        ends = np.cumsum(sizes)
        text_starts = (ends - sizes).tolist()
        joined = "\n".join(map(repair, texts))
        positions, begins_word = chinese_starts(joined)
        word_positions = positions[begins_word]
        cuts = np.searchsorted(word_positions, ends)
        # Behind the last end there is nothing.
        positions_of_texts = np.split(word_positions, cuts)[:-1]
        rows = []
        for spans, inside, text_start in zip(spans_of_texts, positions_of_texts, text_starts, strict=True):
            if len(inside):
                word_starts = (inside - text_start).tolist()
                spans = _cut_chinese(spans, word_starts)
            rows.append(spans)
        return rows


class _IdCache(dict[str, int]):
    """Form -> id. Text repeats itself, so most forms are lower-cased and looked up once.

    The cache is bounded in forms and in their length, because a server reads whatever clients send. A full cache is
    emptied, so that it adapts to new text.
    """

    MOST = 1 << 19

    def __init__(self, words: Words) -> None:
        super().__init__()
        self._words = words

    def __missing__(self, form: str) -> int:
        word = self._words._normalise(form)
        word_id = self._words._known.get(word, self._words.vocab.unk)
        if len(form) <= LONGEST:
            if len(self) >= self.MOST:
                self.clear()
            self[sys.intern(form)] = word_id
        return word_id


def counts_of_tokens(vocab: Vocab, counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """The counts of all tokens of a vocabulary, given those of its words; special tokens have none."""
    all_counts = np.zeros(len(vocab), np.int64)
    if len(counts):  # an imported list may come without counts
        all_counts[len(SPECIALS) :] = counts
    return all_counts


def _read_vocab(path: Path) -> tuple[list[str], np.ndarray]:
    """The words and counts of a file of lines `word<TAB>count`."""
    text = path.read_bytes().decode()
    fields = text.replace("\n", "\t").split("\t")
    fields = fields[:-1]  # behind the last line end
    if text.count("\t") != text.count("\n"):
        # An imported word has a tab in it: only the last tab of a line separates word and count.
        fields = []
        for line in text.split("\n")[:-1]:
            word, _, count = line.rpartition("\t")
            fields += [word, count]
    return fields[::2], np.array(fields[1::2], np.int64)


def _cut_chinese(spans: list[Span], word_starts: list[int]) -> list[Span]:
    """Cuts runs of Chinese characters where words begin. The first character of every run begins a word."""
    found: list[Span] = []
    at = 0  # the next word start
    for start, end in spans:
        word_start = start
        if at < len(word_starts) and word_starts[at] == start:
            at += 1
            while at < len(word_starts) and word_starts[at] < end:
                found.append((word_start, word_starts[at]))
                word_start = word_starts[at]
                at += 1
        found.append((word_start, end))
    return found


def _fits_in_line(word: str) -> bool:
    """Whether a line of vocab.txt can hold it."""
    has_separator = "\n" in word or "\t" in word
    return bool(word) and word not in SPECIALS and not has_separator and repair(word) == word
