"""Tokens -> hand-written features, from templates like CRF++'s.

In: sentences of units (characters or words). Out: for each unit the ids of its parts: one for the unit itself (or for
its class, a shape or a suffix, if it was too rare in training), and one for every template whose value is a known
feature. `%x[ROW,COLUMN]` in a template is a column of the unit ROW positions away; several are joined by `/`.
As a tokenizer of text it makes every character a token.

Arrays carry shape suffixes: N units of a block of sentences, K templates, F features, U cached units.
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
from typing import Literal

import numpy as np

from firth import rng
from firth.config import from_dict, to_dict
from firth.errors import BadConfig, Damaged
from firth.files import read_json, write_bytes, write_json
from firth.ragged import owners_of
from firth.tokenizers.capabilities import Capabilities
from firth.tokenizers.segmentation import repair
from firth.tokenizers.units import COLUMNS, SHAPES, Units, class_of, common_suffixes, normal
from firth.tokenizers.vocab import SPECIALS, Frame, Vocab, each_begins_word
from firth.types import Encoding


def _around(*contexts: str, column: str = "unit") -> tuple[str, ...]:
    """A template for each context, which is a list of rows such as "-1 0 1"."""
    templates = []
    for context in contexts:
        parts = [f"%x[{row},{column}]" for row in context.split()]
        templates.append("/".join(parts))
    return tuple(templates)


CHARACTERS = (
    *_around("-2", "-1", "1", "2", "-2 -1", "-1 0", "0 1", "1 2", "-1 1", "-1 0 1"),
    *_around("-1 0 1", "-2 -1 0 1 2", column="kind"),
)
_AFFIXES = ("prefix1", "prefix2", "prefix3", "prefix4", "suffix1", "suffix2", "suffix3", "suffix4")
WORDS = (
    *_around("-2", "-1", "1", "2", "-1 0", "0 1"),
    *_around("0", column="lower"),
    *_around("-1", "0", "1", "-1 0", "0 1", "-1 0 1", column="shape"),
    *(f"%x[0,{affix}]" for affix in _AFFIXES),
)
Value = list[tuple[int, str]]
"""What a template reads: rows and columns."""
_CONFIG_FILE = "tokenizer_config.json"
_VOCAB_FILE = "vocab.txt"
_FEATURES_FILE = "features.npy"
_BLOCK = 1 << 15
"""Units processed together."""
FARTHEST = 20
"""The most positions that a template may look away."""
_MISSING = np.int32(-1)
"""In place of the part of a value that is not a feature."""
_token = re.compile(r"%x\[(-?\d+),(\w+)\]")


class Templates(Capabilities):
    @dataclass(frozen=True)
    class Config:
        unit: Literal["character", "word"] = "character"
        """What is tagged; decides the usual templates."""
        templates: tuple[str, ...] = ("usual",)
        """Templates such as %x[-1,unit]/%x[0,unit]; `usual` means the unit's usual ones, none no features."""
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
                _parse(template)

    def __init__(
        self,
        vocab: Vocab,
        config: Config,
        *,
        suffixes: tuple[str, ...] = (),
        keys_F: np.ndarray | None = None,
    ) -> None:
        self.vocab = vocab
        self.config = config
        self.suffixes = suffixes
        if keys_F is None:
            keys_F = np.empty(0, np.uint64)
        self.keys_F = keys_F
        self.continues = np.zeros(len(vocab), bool)
        self.templates = _expand_usual(config)
        self._values = [_parse(template) for template in self.templates]
        columns: set[str] = set()
        for value in self._values:
            columns.update(column for _, column in value)
        self._suffix_ids = {suffix: i for i, suffix in enumerate(suffixes)}
        self._units = Units(sorted(columns), self._own_part)

    @property
    def num_rows(self) -> int:
        """Rows of the embedding table over all parts: units, classes, features."""
        return self.first_feature + len(self.keys_F)

    @property
    def first_class(self) -> int:
        return len(self.vocab)

    @property
    def first_feature(self) -> int:
        return self.first_class + len(SHAPES) + len(self.suffixes)

    # Training and files

    @classmethod
    def learn(cls, sentences: Sequence[Sequence[str]], config: Config) -> "Templates":
        """Chooses the units and the values of templates to know, from sentences of units."""
        unit_counts = Counter(chain.from_iterable(sentences))
        counts: Counter[str] = Counter()
        for unit, count in unit_counts.items():
            counts[normal(unit)] += count
        suffixes = common_suffixes(counts) if config.unit == "word" else ()
        units = _frequent_units(counts, config)
        vocab = Vocab((*SPECIALS, *units), own_frame=Frame())
        untrained = cls(vocab, config, suffixes=suffixes)
        features = [np.empty(0, np.uint64)]
        # One template at a time: the keys of all of them would need too much memory.
        for k in range(len(untrained.templates)):
            keys = []
            for block in _blocks(sentences):
                _, keys_N1 = untrained._keys(block, [k])
                keys.append(keys_N1[:, 0])
            values, value_counts = np.unique(np.concatenate(keys), return_counts=True)
            is_frequent = value_counts >= config.min_feature_count
            features.append(values[is_frequent])
        keys_F = np.sort(np.concatenate(features))
        return cls(vocab, config, suffixes=suffixes, keys_F=keys_F)

    @classmethod
    def train(cls, texts: Iterable[str], config: Config, *, fewer: bool = False) -> "Templates":
        """`learn` with every text as a sentence of characters."""
        return cls.learn([list(repair(text)) for text in texts], config)

    def save(self, folder: Path, *, max_length: int | None = None) -> tuple[str, ...]:
        """Writes settings, units and features; returns the files' names."""
        settings = {
            "tokenizer_class": "FirthTemplates",
            "suffixes": self.suffixes,
            **to_dict(self.config),
        }
        write_json(folder / _CONFIG_FILE, settings)
        lines = "".join(f"{token}\n" for token in self.vocab.tokens)
        write_bytes(folder / _VOCAB_FILE, lines.encode())
        buffer = io.BytesIO()
        np.save(buffer, self.keys_F)
        write_bytes(folder / _FEATURES_FILE, buffer.getvalue())
        return _CONFIG_FILE, _VOCAB_FILE, _FEATURES_FILE

    @classmethod
    def load(cls, folder: Path) -> "Templates":
        """The tokenizer that `save` wrote."""
        settings = read_json(folder / _CONFIG_FILE)
        config_values = {name: settings[name] for name in to_dict(cls.Config()) if name in settings}
        text = (folder / _VOCAB_FILE).read_bytes().decode()
        # Behind the last line end there is no token.
        tokens = text.split("\n")[:-1]
        features_path = folder / _FEATURES_FILE
        try:
            keys_F = np.load(features_path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise Damaged(f"{features_path} cannot be read ({error}); train the model again.") from None
        vocab = Vocab(tuple(tokens), own_frame=Frame())
        config = from_dict(cls.Config, config_values)
        return cls(vocab, config, suffixes=tuple(settings["suffixes"]), keys_F=keys_F)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of everything that decides ids and features."""
        content = json.dumps([self.vocab.tokens, self.suffixes, to_dict(self.config)], sort_keys=True)
        return hashlib.sha256(content.encode() + self.keys_F.tobytes()).hexdigest()

    # Features

    def parts(self, sentences: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
        """The parts of all units end to end, and where each unit's begin (one entry more than there are units)."""
        # Written in place: a list of blocks and their concatenation would hold everything twice.
        num_units = sum(len(sentence) for sentence in sentences)
        found = np.empty(num_units * (1 + len(self.templates)), np.int32)
        num_found = 0
        sizes = [np.zeros(1, np.int64)]
        for block in _blocks(sentences):
            own_N, keys_NK = self._keys(block, range(len(self.templates)))
            features_NK = self._find_features(keys_NK)
            parts_NP = np.concatenate([own_N[:, None], features_NK], 1)
            is_part_NP = parts_NP != _MISSING
            kept = parts_NP[is_part_NP]
            end = num_found + len(kept)
            found[num_found:end] = kept
            num_found = end
            sizes.append(is_part_NP.sum(1))
        part_bounds = np.cumsum(np.concatenate(sizes))
        return found[:num_found], part_bounds

    def _keys(self, sentences: Sequence[Sequence[str]], chosen: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The units' own parts (N), and the 64-bit keys of the chosen templates' values (N, K)."""
        values = [self._values[k] for k in chosen]
        reach = 0  # how far the templates look
        for value in values:
            for row, _ in value:
                reach = max(reach, abs(row))
        rows_N, own_U, columns = self._units.look_up(chain.from_iterable(sentences))
        num_units = len(rows_N)

        # All sentences in one array, with `reach` places of padding (row 0) before, between and after them.
        lengths = np.fromiter(map(len, sentences), np.int64)
        num_gaps_N = 1 + owners_of(lengths)
        at_N = np.arange(num_units) + reach * num_gaps_N
        num_gaps = len(lengths) + 1
        padded = np.zeros(num_units + reach * num_gaps, np.int64)
        padded[at_N] = rows_N

        keys_NK = np.empty((num_units, len(values)), np.uint64)
        for column_k, (k, value) in enumerate(zip(chosen, values, strict=True)):
            read = []
            for row, column in value:
                unit_N = padded[at_N + row]
                read.append(columns[column][unit_N])
            # The key hashes the template with the keys of the columns it reads.
            salt = rng.key("template", self.templates[k])
            keys_NK[:, column_k] = rng.bits(salt, *read)
        return own_U[rows_N], keys_NK

    def _find_features(self, keys_NK: np.ndarray) -> np.ndarray:
        """The parts of these values; `_MISSING` for a value that is not a feature.

        The sorted keys are searched in buckets of equal leading bits, which hold less than one key on average.
        """
        keys = keys_NK.ravel()
        starts, shift = self._buckets
        bucket = (keys >> shift).astype(np.int64)
        place = starts[bucket]
        end = starts[bucket + 1]
        found = np.full(len(keys), _MISSING)
        left = np.flatnonzero(place < end)  # the keys that are still searched
        while len(left):
            is_hit = self.keys_F[place[left]] == keys[left]
            hits = left[is_hit]
            found[hits] = place[hits] + self.first_feature
            place[left] += 1
            goes_on = place[left] < end[left]
            left = left[~is_hit & goes_on]
        return found.reshape(keys_NK.shape)

    @cached_property
    def _buckets(self) -> tuple[np.ndarray, np.uint64]:
        """Where the sorted keys of each bucket begin, and how far to shift a key to get its bucket."""
        bits = max(4, len(self.keys_F).bit_length() + 1)  # more than one bucket for each key
        shift = np.uint64(64 - bits)
        borders = np.arange(1, 1 << bits, dtype=np.uint64) << shift
        inner_starts = np.searchsorted(self.keys_F, borders)
        starts = np.concatenate([[0], inner_starts, [len(self.keys_F)]])
        return starts.astype(np.int32), shift

    def _own_part(self, unit: str) -> int:
        """The part of a known unit, or of its class."""
        part = self.vocab.ids.get(normal(unit), -1)
        if part >= len(SPECIALS):
            return part
        return self.class_part(unit)

    def class_part(self, unit: str) -> int:
        return self.first_class + class_of(unit, self._suffix_ids)

    # Text

    def ids_batch(self, texts: list[str]) -> list[list[int]]:
        ids = self.vocab.ids
        unknown = self.vocab.unk
        rows = []
        for text in texts:
            rows.append([ids.get(character, unknown) for character in text])
        return rows

    def word_starts_batch(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        return each_begins_word(self.ids_batch(texts))

    def encode(self, text: str, *, specials: bool = False, masks: bool = False) -> Encoding:
        [row] = self.ids_batch([text])
        ids = np.array(row, np.int32)
        starts = np.arange(len(text), dtype=np.int32)
        offsets = np.stack([starts, starts + 1], 1)
        begins_word = np.ones(len(ids), bool)
        tokens = tuple(self.vocab.tokens[i] for i in ids)
        return Encoding(ids, offsets, begins_word, tokens)

    def encode_batch(self, texts: list[str], *, specials: bool = False, masks: bool = False) -> list[Encoding]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.vocab.tokens[i] for i in ids)


def _expand_usual(config: Templates.Config) -> tuple[str, ...]:
    """The config's templates with `usual` replaced by the unit's usual ones."""
    usual = CHARACTERS if config.unit == "character" else WORDS
    templates: list[str] = []
    for template in config.templates:
        if template == "usual":
            templates += usual
        else:
            templates.append(template)
    return tuple(templates)


def _parse(template: str) -> Value:
    """The rows and columns of a template; `usual` has none."""
    if template == "usual":
        return []
    value = []
    for part in template.split("/"):
        match = _token.fullmatch(part)
        if not match:
            raise BadConfig(f"'{part}' in the template {template!r} is not of the form %x[ROW,COLUMN].")
        value.append((int(match[1]), match[2]))
    for row, column in value:
        if column not in COLUMNS:
            raise BadConfig(
                f"The template {template!r} has no column '{column}' to take (known: {', '.join(COLUMNS)})."
            )
        if abs(row) > FARTHEST:
            raise BadConfig(f"The template {template!r} looks {abs(row)} places away; {FARTHEST} is the farthest.")
    return value


def _frequent_units(counts: Counter[str], config: Templates.Config) -> list[str]:
    """The units to know by themselves, most frequent first, then by code point."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    frequent = []
    for unit, count in ranked:
        if count >= config.min_count and _fits_in_line(unit):
            frequent.append(unit)
    return frequent[: config.vocab_size - len(SPECIALS)]


def _fits_in_line(unit: str) -> bool:
    """Whether a line of vocab.txt can hold it."""
    return "\n" not in unit and unit not in SPECIALS and repair(unit) == unit


def _blocks(sentences: Sequence[Sequence[str]]) -> Iterator[Sequence[Sequence[str]]]:
    """Sentences in runs of about `_BLOCK` units."""
    start = 0
    size = 0
    for i, sentence in enumerate(sentences):
        size += len(sentence)
        if size >= _BLOCK:
            yield sentences[start : i + 1]
            start = i + 1
            size = 0
    if start < len(sentences):
        yield sentences[start:]
