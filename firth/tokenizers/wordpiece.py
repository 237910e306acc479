"""Text -> ids by WordPiece, as in BERT (Devlin et al. 2019): words are cut into the longest known pieces.

In: text; out: ids, with the characters each stands for and where words begin. A folder of files comes in and out that
transformers reads and writes too. Encoding itself is the tokenizers library's.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from firth.errors import BadConfig, BadInput
from firth.files import write_bytes, write_json
from firth.tokenizers.cache import CachedIds
from firth.tokenizers.folder import ROLES, Rules, read_folder
from firth.tokenizers.pieces import choose_characters, count_words, learn_pieces
from firth.tokenizers.vocab import PREFIX, SPECIALS, Vocab
from firth.tokenizers.words import CHINESE, chinese_starts, has_chinese, has_segmenter, repair
from firth.types import Encoding

_BATCH = 10_000
_WIDE = f"[{CHINESE}\u3000-\u303f\uff00-\uff65]"
_between_wide = re.compile(f"(?<={_WIDE}) (?={_WIDE})")


class WordPiece:
    """Immutable; safe to use from several threads."""

    @dataclass(frozen=True)
    class Config:
        vocab_size: int = 30000
        """How many tokens the vocabulary has, special tokens included."""
        lowercase: bool = True
        """Whether text is lower-cased."""
        strip_accents: bool = True
        """Whether lower-cased text loses its accents; cased text always keeps them."""
        chinese_characters: bool = True
        """Whether each Chinese character is a token of its own."""
        min_count: int = 2
        """How often a character or a pair of pieces must occur to enter the vocabulary."""
        coverage: float = 0.9999
        """The share of the text that the characters of the vocabulary make up; rarer characters are left out."""

        def __post_init__(self) -> None:
            if self.vocab_size <= len(SPECIALS) or self.min_count < 1 or not 0 < self.coverage <= 1:
                raise BadConfig(
                    f"A vocabulary needs a size above {len(SPECIALS)}, a min_count of at least 1 and a coverage "
                    f"above 0 and up to 1; they are {self.vocab_size}, {self.min_count} and {self.coverage}."
                )

    def __init__(self, vocab: Vocab, rules: Rules, *, max_length: int | None = None) -> None:
        self.vocab = vocab
        self.rules = rules
        self.max_length = max_length
        self.continues = vocab.continues

    @classmethod
    def train(cls, texts: Iterable[str], config: Config, *, fewer: bool = False) -> "WordPiece":
        """A vocabulary from one pass over `texts`; the same texts and config always give the same one.

        A text that supports fewer pieces than asked for is an error, unless `fewer` is allowed."""
        accents = config.lowercase and config.strip_accents
        empty = cls(Vocab(SPECIALS), Rules(config.lowercase, accents, config.chinese_characters))
        words = count_words(
            texts,
            empty._split,
            chinese_characters=config.chinese_characters,
            longest=empty.rules.longest_word,
        )
        room = config.vocab_size - len(SPECIALS)
        characters = choose_characters(words, coverage=config.coverage, min_count=config.min_count, room=room)
        pieces = learn_pieces(words, characters, size=room, min_count=config.min_count)
        if len(pieces) < room and not fewer:
            size = len(pieces) + len(SPECIALS)
            remedy = f"or use --vocab-size {size}" if pieces else "or lower --min-count"
            raise BadConfig(
                f"The text supports a vocabulary of only {size} pieces, not {config.vocab_size}: give it more text "
                f"{remedy}."
            )
        unsorted = cls(Vocab((*SPECIALS, *pieces)), empty.rules)
        return cls(Vocab((*SPECIALS, *unsorted._by_count(words))), empty.rules)

    @classmethod
    def load(cls, folder: Path) -> "WordPiece":
        """The tokenizer that `folder`'s own files describe."""
        vocab, rules, max_length = read_folder(Path(folder))
        tokenizer = cls(vocab, rules, max_length=max_length)
        try:
            tokenizer._plain  # noqa: B018 - built now, so that what the library refuses is said here
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise BadInput(f"{folder} holds a tokenizer that cannot be built ({error}).") from None
        return tokenizer

    def save(self, folder: Path, *, max_length: int | None = None) -> tuple[str, ...]:
        """Writes the files transformers knows, under its names, and gives these names."""
        folder, rules = Path(folder), self.rules
        settings: dict[str, Any] = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": rules.lowercase,
            "strip_accents": rules.strip_accents,
            "tokenize_chinese_chars": rules.chinese_characters,
            **dict(zip(ROLES, self.vocab.roles, strict=True)),
        }
        if longest := max_length or self.max_length:
            settings["model_max_length"] = longest
        pieces = self.vocab.tokens[: rules.num_pieces]
        write_bytes(folder / "vocab.txt", "".join(f"{piece}\n" for piece in pieces).encode())
        write_bytes(folder / "tokenizer.json", self._specials.to_str(pretty=True).encode())
        write_json(folder / "tokenizer_config.json", settings)
        return "tokenizer.json", "vocab.txt", "tokenizer_config.json"

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of all that decides the ids of plain text."""
        plain = replace(self.rules, added=tuple(one for one in self.rules.added if not one.special))
        what = [self.vocab.tokens, self.vocab.roles, asdict(plain)]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def ids_batch(self, texts: list[str]) -> list[list[int]]:
        """Ids and nothing else, the fastest way; special tokens spelled in a text are plain text."""
        return self._cached(texts) if all(one.special for one in self.rules.added) else self._fast_ids(texts)

    def word_starts_batch(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Ids, and whether each begins a word, found without offsets wherever that is exact."""
        ids = [np.array(row, np.int32) for row in self.ids_batch(texts)]
        return list(zip(ids, self._word_starts(texts, ids), strict=True))

    def encode(self, text: str, *, specials: bool = False, masks: bool = False) -> Encoding:
        """The whole text, with nothing added. Special tokens spelled in it are plain text, unless `specials` makes
        them special, or `masks` the mask token alone. Without rjieba each Chinese character counts as a word."""
        return self.encode_batch([text], specials=specials, masks=masks)[0]

    def encode_batch(self, texts: list[str], *, specials: bool = False, masks: bool = False) -> list[Encoding]:
        tokenizer = self._specials if specials else self._masks if masks else self._plain
        encoded = tokenizer.encode_batch(list(map(repair, texts)), add_special_tokens=False)
        return [self._encoding(text, one) for text, one in zip(texts, encoded, strict=True)]

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text; padding, opening and separating tokens are left out."""
        unseen = {self.vocab.pad, self.vocab.cls, self.vocab.sep}
        text = self._plain.decode([i for i in map(int, ids) if i not in unseen], skip_special_tokens=False)
        return _between_wide.sub("", text)

    def _fast_ids(self, texts: list[str]) -> list[list[int]]:
        encoded = self._plain.encode_batch_fast(list(map(repair, texts)), add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    @cached_property
    def _cached(self) -> CachedIds:
        return CachedIds(self._fast_ids, chinese_characters=self.rules.chinese_characters)

    def _encoding(self, text: str, encoded: Any) -> Encoding:
        ids = np.array(encoded.ids, np.int32)
        offsets = np.array(encoded.offsets, np.int32).reshape(-1, 2)
        starts = ~self.continues[ids]
        if has_chinese(text) and has_segmenter():
            positions, begins = chinese_starts(text)
            border = np.ones(len(text) + 1, bool)
            border[positions] = begins
            starts &= border[offsets[:, 0]]
        return Encoding(ids, offsets, starts, tuple(encoded.tokens))

    def _word_starts(self, texts: list[str], ids: list[np.ndarray]) -> list[np.ndarray]:
        """All texts at once. Where the Chinese tokens of a text have as many characters as the text has Chinese ones,
        they are these characters, in order; where they have not (an unknown character), offsets tell."""
        ends = np.cumsum([len(text) + 1 for text in texts])
        positions, begins = chinese_starts("\n".join(texts))
        parts = np.split(begins, np.searchsorted(positions, ends))[:-1]
        found = []
        for text, row, part in zip(texts, ids, parts, strict=True):
            starts, sizes = ~self.continues[row], self._chinese[row]
            if sizes.sum() == len(part):
                starts[sizes > 0] = part[(np.cumsum(sizes) - sizes)[sizes > 0]]
            else:
                starts = self.encode(text).word_starts
            found.append(starts)
        return found

    @cached_property
    def _chinese(self) -> np.ndarray:
        """For each id its Chinese characters, where it has no others; else 0."""
        return np.array([len(token) * all(map(has_chinese, token)) for token in self.vocab.tokens], np.int64)

    def _split(self, text: str) -> list[str]:
        """The words of `text`, normalised."""
        tokenizer = self._plain
        normal = tokenizer.normalizer.normalize_str(repair(text))
        return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)]

    def _by_count(self, words: dict[str, int]) -> list[str]:
        """The pieces by how often `words` use them, most frequent first, then by code point."""
        totals = np.zeros(len(self.vocab), np.int64)
        stream = iter(words.items())
        while batch := list(islice(stream, _BATCH)):
            rows = self._fast_ids([word for word, _ in batch])
            counts = np.repeat([count for _, count in batch], list(map(len, rows)))
            np.add.at(totals, np.fromiter(chain.from_iterable(rows), np.int64), counts)
        pieces = zip((-totals).tolist(), self.vocab.tokens, strict=True)
        return [token for _, token in sorted(islice(pieces, len(SPECIALS), None))]

    @cached_property
    def _specials(self) -> Tokenizer:
        return self._build(self.rules)

    @cached_property
    def _plain(self) -> Tokenizer:
        tokenizer = self._build(self.rules)
        tokenizer.encode_special_tokens = True  # the library's name for taking them as plain text
        return tokenizer

    @cached_property
    def _masks(self) -> Tokenizer:
        mask = self.vocab.roles[4]
        added = tuple(replace(one, special=one.special and one.token != mask) for one in self.rules.added)
        tokenizer = self._build(replace(self.rules, added=added))
        tokenizer.encode_special_tokens = True
        return tokenizer

    def _build(self, rules: Rules) -> Tokenizer:
        pieces = {piece: i for i, piece in enumerate(self.vocab.tokens[: rules.num_pieces])}
        _, unk, opening, separator, _ = self.vocab.roles
        model = models.WordPiece(pieces, unk_token=unk, max_input_chars_per_word=rules.longest_word)
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=rules.clean_text,
            handle_chinese_chars=rules.chinese_characters,
            strip_accents=rules.strip_accents,
            lowercase=rules.lowercase,
        )
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix=PREFIX)
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[
                {"id": "[CLS]", "ids": [self.vocab.cls], "tokens": [opening]},
                {"id": "[SEP]", "ids": [self.vocab.sep], "tokens": [separator]},
            ],
        )
        for one in rules.added:
            flags = {name: value for name, value in asdict(one).items() if name != "token"}
            tokenizer.add_tokens([AddedToken(one.token, **flags)])
        return tokenizer
