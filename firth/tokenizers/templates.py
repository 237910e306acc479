"""Tokens -> features written by hand, from templates in the manner of CRF++.

In: sentences of units (characters or words). Out: for each unit the numbers of its parts: one for the unit itself (or,
if training never saw it often enough, for its class: a shape or a suffix), and one for every template whose value was
seen in training. `%x[ROW,COLUMN]` in a template is a column of the unit ROW places on; several are joined by `/`.
As a tokenizer of text it takes every character for a token.
"""

import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from firth import chance
from firth.config import from_dict, to_dict
from firth.errors import BadConfig, Damaged
from firth.files import read_json, write_bytes, write_json
from firth.tokenizers.units import COLUMNS, SHAPES, Units, class_of, common_suffixes, normal
from firth.tokenizers.vocab import SPECIALS, Frame, Vocab
from firth.tokenizers.words import repair
from firth.types import Encoding


def _around(*rows: str, column: str = "unit") -> tuple[str, ...]:
    return tuple("/".join(f"%x[{place},{column}]" for place in row.split()) for row in rows)


CHARACTERS = (
    *_around("-2", "-1", "1", "2", "-2 -1", "-1 0", "0 1", "1 2", "-1 1", "-1 0 1"),
    *_around("-1 0 1", "-2 -1 0 1 2", column="kind"),
)
WORDS = (
    *_around("-2", "-1", "1", "2", "-1 0", "0 1"),
    *_around("0", column="lower"),
    *_around("-1", "0", "1", "-1 0", "0 1", "-1 0 1", column="shape"),
    *(f"%x[0,{edge}{n}]" for edge in ("prefix", "suffix") for n in (1, 2, 3, 4)),
)
_FILES = ("tokenizer_config.json", "vocab.txt", "features.npy")
_BLOCK = 1 << 17
"""Units looked at together."""
FARTHEST = 20
"""Places a template may look away."""
_MISSING = np.int32(-1)
_token = re.compile(r"%x\[(-?\d+),(\w+)\]")


class Templates:
    @dataclass(frozen=True)
    class Config:
        unit: Literal["character", "word"] = "character"
        """What is tagged; decides the usual templates."""
        templates: tuple[str, ...] = ("usual",)
        """Templates such as %x[-1,unit]/%x[0,unit]; `usual` stands for the unit's usual ones, none for no features."""
        min_count: int = 2
        """How often a unit must occur to be known by itself; rarer ones are known by their class."""
        min_feature_count: int = 2
        """How often a template's value must occur to be a feature."""
        vocab_size: int = 1_000_000
        """Units known by themselves at most, special tokens included."""

        def __post_init__(self) -> None:
            if self.min_count < 1 or self.min_feature_count < 1 or self.vocab_size <= len(SPECIALS):
                raise BadConfig(f"Templates need counts of at least 1 and a vocab_size above {len(SPECIALS)}.")
            for template in self.templates:
                _parsed(template)

    def __init__(self, vocab: Vocab, config: Config, *, suffixes: tuple[str, ...] = (), keys_F: Any = None) -> None:
        self.vocab, self.config, self.suffixes = vocab, config, suffixes
        self.keys_F = np.empty(0, np.uint64) if keys_F is None else keys_F
        self.continues = np.zeros(len(vocab), bool)
        usual = CHARACTERS if config.unit == "character" else WORDS
        self.templates = tuple(chain.from_iterable(usual if t == "usual" else (t,) for t in config.templates))
        self._values = [_parsed(template) for template in self.templates]
        self._columns = sorted({column for value in self._values for _, column in value})
        self._suffix_ids = {suffix: i for i, suffix in enumerate(suffixes)}
        self._units = Units(self._columns, self._own_part)

    @property
    def num_rows(self) -> int:
        """Rows of a bag over all parts: units, classes, features."""
        return self.first_feature + len(self.keys_F)

    @property
    def first_class(self) -> int:
        return len(self.vocab)

    @property
    def first_feature(self) -> int:
        return self.first_class + len(SHAPES) + len(self.suffixes)

    # Learning and keeping

    @classmethod
    def learn(cls, sentences: Sequence[Sequence[str]], config: Config) -> "Templates":
        """Which units and which values of the templates to know, from sentences of units."""
        counts: Counter[str] = Counter()
        for unit, count in Counter(chain.from_iterable(sentences)).items():
            counts[normal(unit)] += count
        rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
        room = config.vocab_size - len(SPECIALS)
        known = [unit for unit, count in rows if count >= config.min_count and _fits(unit)][:room]
        suffixes = common_suffixes(counts) if config.unit == "word" else ()
        empty = cls(Vocab((*SPECIALS, *known), own_frame=Frame()), config, suffixes=suffixes)
        found = [np.empty(0, np.uint64)]
        for place in range(len(empty.templates)):
            keys = [empty._keys(block, [place])[1][:, 0] for block in _blocks(sentences)]
            values, seen = np.unique(np.concatenate(keys), return_counts=True)
            found.append(values[seen >= config.min_feature_count])
        return cls(empty.vocab, config, suffixes=suffixes, keys_F=np.sort(np.concatenate(found)))

    @classmethod
    def train(cls, texts: Iterable[str], config: Config, *, fewer: bool = False) -> "Templates":
        return cls.learn([list(repair(text)) for text in texts], config)

    def save(self, folder: Path, *, max_length: int | None = None) -> tuple[str, ...]:
        settings = {"tokenizer_class": "FirthTemplates", "suffixes": self.suffixes, **to_dict(self.config)}
        write_json(folder / _FILES[0], settings)
        write_bytes(folder / _FILES[1], "".join(f"{token}\n" for token in self.vocab.tokens).encode())
        buffer = io.BytesIO()
        np.save(buffer, self.keys_F)
        write_bytes(folder / _FILES[2], buffer.getvalue())
        return _FILES

    @classmethod
    def load(cls, folder: Path) -> "Templates":
        settings = read_json(folder / _FILES[0])
        names = {name: settings[name] for name in to_dict(cls.Config()) if name in settings}
        tokens = (folder / _FILES[1]).read_bytes().decode().split("\n")[:-1]
        try:
            keys_F = np.load(folder / _FILES[2], allow_pickle=False)
        except (OSError, ValueError) as error:
            raise Damaged(f"{folder / _FILES[2]} cannot be read ({error}); train the model again.") from None
        vocab = Vocab(tuple(tokens), own_frame=Frame())
        return cls(vocab, from_dict(cls.Config, names), suffixes=tuple(settings["suffixes"]), keys_F=keys_F)

    @cached_property
    def fingerprint(self) -> str:
        what = json.dumps([self.vocab.tokens, self.suffixes, to_dict(self.config)], sort_keys=True)
        return hashlib.sha256(what.encode() + self.keys_F.tobytes()).hexdigest()

    # Features

    def parts(self, sentences: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
        """The parts of all units end to end, and where each unit's begin (one more than there are units)."""
        found, sizes = [np.empty(0, np.int32)], [np.zeros(1, np.int64)]
        for block in _blocks(sentences):
            own_N, keys_NK = self._keys(block, range(len(self.templates)))
            parts_NK = np.concatenate([own_N[:, None], self._find(keys_NK)], 1)
            there = parts_NK != _MISSING
            found.append(parts_NK[there])
            sizes.append(there.sum(1))
        return np.concatenate(found), np.cumsum(np.concatenate(sizes))

    def _keys(self, sentences: Sequence[Sequence[str]], places: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
        """The units' own parts, and the 64-bit keys of these templates' values, units x templates."""
        chosen = [(place, self._values[place]) for place in places]
        reach = max((abs(row) for _, value in chosen for row, _ in value), default=0)
        rows_N, own_U, columns = self._units.look(chain.from_iterable(sentences))
        lengths = np.fromiter(map(len, sentences), np.int64)
        at_N = np.arange(len(rows_N)) + reach * (1 + np.repeat(np.arange(len(lengths)), lengths))
        padded = np.zeros(len(rows_N) + reach * (len(lengths) + 1), np.int64)
        padded[at_N] = rows_N
        keys = np.empty((len(rows_N), len(chosen)), np.uint64)
        for k, (place, value) in enumerate(chosen):
            salt = chance.key("template", self.templates[place])
            keys[:, k] = chance.bits(salt, *(columns[column][padded[at_N + row]] for row, column in value))
        return own_U[rows_N], keys

    def _find(self, keys_NK: np.ndarray) -> np.ndarray:
        """The parts of features; -1 for a value that is none."""
        keys, (starts, shift) = keys_NK.ravel(), self._index
        bucket = (keys >> shift).astype(np.int64)
        place, end = starts[bucket], starts[bucket + 1]
        found = np.full(len(keys), _MISSING)
        left = np.flatnonzero(place < end)
        while len(left):  # buckets hold less than one key on average
            hit = self.keys_F[place[left]] == keys[left]
            found[left[hit]] = place[left[hit]] + self.first_feature
            place[left] += 1
            left = left[~hit & (place[left] < end[left])]
        return found.reshape(keys_NK.shape)

    @cached_property
    def _index(self) -> tuple[np.ndarray, np.uint64]:
        """Where the sorted keys with each beginning lie."""
        bits = max(4, len(self.keys_F).bit_length() + 1)
        borders = np.arange(1, 1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
        starts = np.concatenate([[0], np.searchsorted(self.keys_F, borders), [len(self.keys_F)]])
        return starts.astype(np.int32), np.uint64(64 - bits)

    def _own_part(self, unit: str) -> int:
        """The part of a known unit, or of its class."""
        part = self.vocab.ids.get(normal(unit), -1)
        return part if part >= len(SPECIALS) else self.class_part(unit)

    def class_part(self, unit: str) -> int:
        return self.first_class + class_of(unit, self._suffix_ids)

    # Text

    def ids_batch(self, texts: list[str]) -> list[list[int]]:
        ids, unknown = self.vocab.ids, self.vocab.unk
        return [[ids.get(character, unknown) for character in text] for text in texts]

    def word_starts_batch(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(np.array(row, np.int32), np.ones(len(row), bool)) for row in self.ids_batch(texts)]

    def encode(self, text: str, *, specials: bool = False, masks: bool = False) -> Encoding:
        ids = np.array(self.ids_batch([text])[0], np.int32)
        starts = np.arange(len(text), dtype=np.int32)
        tokens = tuple(self.vocab.tokens[i] for i in ids)
        return Encoding(ids, np.stack([starts, starts + 1], 1), np.ones(len(ids), bool), tokens)

    def encode_batch(self, texts: list[str], *, specials: bool = False, masks: bool = False) -> list[Encoding]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.vocab.tokens[i] for i in ids)


def _parsed(template: str) -> list[tuple[int, str]]:
    """The places and columns of a template; `usual` has none of its own."""
    if template == "usual":
        return []
    found = [_token.fullmatch(part) for part in template.split("/")]
    if wrong := [part for part, match in zip(template.split("/"), found, strict=True) if not match]:
        raise BadConfig(f"'{wrong[0]}' in the template {template!r} is not of the form %x[ROW,COLUMN].")
    value = [(int(match[1]), match[2]) for match in found if match]
    for row, column in value:
        if column not in COLUMNS:
            raise BadConfig(
                f"The template {template!r} has no column '{column}' to take (known: {', '.join(COLUMNS)})."
            )
        if abs(row) > FARTHEST:
            raise BadConfig(f"The template {template!r} looks {abs(row)} places away; {FARTHEST} is the farthest.")
    return value


def _fits(unit: str) -> bool:
    """Whether a line of vocab.txt can hold it."""
    return "\n" not in unit and unit not in SPECIALS and repair(unit) == unit


def _blocks(sentences: Sequence[Sequence[str]]) -> Iterator[Sequence[Sequence[str]]]:
    """Sentences in runs of about `_BLOCK` units."""
    start = size = 0
    for place, sentence in enumerate(sentences):
        size += len(sentence)
        if size >= _BLOCK:
            yield sentences[start : place + 1]
            start, size = place + 1, 0
    if start < len(sentences):
        yield sentences[start:]
