"""Text -> ids by WordPiece, as in BERT (Devlin et al. 2019): words are cut into the longest known pieces.

In: text; out: ids, the characters that each id covers, and where words begin. The folder format is the one that
transformers reads and writes. The tokenizers library does the encoding.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

import numpy as np
from tokenizers import Encoding as LibraryEncoding
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from firth.errors import BadConfig
from firth.files import write_bytes, write_json
from firth.ragged import starts_of
from firth.tokenizers.cache import CachedIds
from firth.tokenizers.library import add_tokens, library_errors_as_bad_input, without_specials
from firth.tokenizers.library_tokenizer import LibraryTokenizer
from firth.tokenizers.segmentation import CHINESE, chinese_starts, has_chinese, has_segmenter, repair
from firth.tokenizers.vocab import PREFIX, SPECIALS, Vocab
from firth.tokenizers.vocabulary_learning import choose_characters, count_words, learn_pieces
from firth.tokenizers.wordpiece_folder import ROLES, WordPieceRules, read_folder
from firth.types import Encoding

_BATCH = 10_000
"""Words encoded together when pieces are counted."""
_WIDE = f"[{CHINESE}\u3000-\u303f\uff00-\uff65]"
_space_between_wide = re.compile(f"(?<={_WIDE}) (?={_WIDE})")


class WordPiece(LibraryTokenizer[WordPieceRules]):
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

    def __init__(self, vocab: Vocab, rules: WordPieceRules, *, max_length: int | None = None) -> None:
        super().__init__(vocab, rules, max_length=max_length)
        self.continues = vocab.continues

    @property
    def lowercases(self) -> bool:
        return self.rules.lowercase

    @classmethod
    def train(cls, texts: Iterable[str], config: Config, *, fewer: bool = False) -> "WordPiece":
        """Learns a vocabulary in one pass over `texts`; the same texts and config always give the same one.

        A text that supports fewer pieces than requested is an error, unless `fewer` is allowed.
        """
        return cls.from_counts(cls.count(texts, config), config, fewer=fewer)

    @classmethod
    def count(cls, texts: Iterable[str], config: Config) -> dict[str, int]:
        """How often each word occurs; counts of parts of a text may be added."""
        rules = _rules(config)
        return count_words(
            texts,
            cls(Vocab(SPECIALS), rules).split_words,
            chinese_characters=config.chinese_characters,
            longest=rules.longest_word,
        )

    @classmethod
    def from_counts(cls, words: dict[str, int], config: Config, *, fewer: bool = False) -> "WordPiece":
        """Learns a vocabulary from the counts of words; `train` explains `fewer`."""
        rules = _rules(config)
        room = config.vocab_size - len(SPECIALS)
        characters = choose_characters(words, coverage=config.coverage, min_count=config.min_count, room=room)
        pieces = learn_pieces(words, characters, size=room, min_count=config.min_count)
        if len(pieces) < room and not fewer:
            size = len(pieces) + len(SPECIALS)
            remedy = f"or use `vocab_size={size}`" if pieces else "or lower `min_count=`"
            raise BadConfig(
                f"The text supports a vocabulary of only {size} pieces, not {config.vocab_size}: give it more text "
                f"{remedy}."
            )
        unsorted = cls(Vocab((*SPECIALS, *pieces)), rules)
        sorted_pieces = unsorted._pieces_by_count(words)
        return cls(Vocab((*SPECIALS, *sorted_pieces)), rules)

    @classmethod
    def load(cls, folder: Path) -> "WordPiece":
        """The tokenizer that the files of `folder` describe."""
        vocab, rules, max_length = read_folder(Path(folder))
        tokenizer = cls(vocab, rules, max_length=max_length)
        with library_errors_as_bad_input(folder):
            tokenizer._plain_tokenizer  # noqa: B018 - builds it now, so that an error names the folder
        return tokenizer

    def save(self, folder: Path, *, max_length: int | None = None) -> tuple[str, ...]:
        """Writes the files of a transformers tokenizer and returns their names."""
        folder = Path(folder)
        rules = self.rules
        settings: dict[str, str | bool | int] = {
            "tokenizer_class": "MPNetTokenizer" if self.vocab.own_frame else "BertTokenizer",
            "do_lower_case": rules.lowercase,
            "strip_accents": rules.strip_accents,
            "tokenize_chinese_chars": rules.chinese_characters,
        }
        settings.update(zip(ROLES, self.vocab.roles, strict=True))
        longest = max_length or self.max_length
        if longest:
            settings["model_max_length"] = longest
        pieces = self.vocab.tokens[: rules.num_pieces]
        lines = "".join(f"{piece}\n" for piece in pieces)
        write_bytes(folder / "vocab.txt", lines.encode())
        write_bytes(folder / "tokenizer.json", self._specials_tokenizer.to_str(pretty=True).encode())
        write_json(folder / "tokenizer_config.json", settings)
        return "tokenizer.json", "vocab.txt", "tokenizer_config.json"

    def ids_batch(self, texts: list[str]) -> list[list[int]]:
        """Only the ids, which is fastest; special tokens spelled in a text are plain text."""
        if without_specials(self.rules.added):
            return self._encode_ids(texts)  # added tokens may span the chunks of the cache
        return self._cached_ids(texts)

    def word_starts_batch(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each text its ids, and whether each begins a word; computed without offsets wherever that is exact."""
        ids = [np.array(row, np.int32) for row in self.ids_batch(texts)]
        return list(zip(ids, self._word_starts(texts, ids), strict=True))

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text; padding, opening and separating tokens are left out."""
        hidden = {self.vocab.pad, self.vocab.cls, self.vocab.sep}
        shown = [i for i in map(int, ids) if i not in hidden]
        text = self._plain_tokenizer.decode(shown, skip_special_tokens=False)
        return _space_between_wide.sub("", text)

    def split_words(self, text: str) -> list[str]:
        """The normalised words of `text`, before they are cut into pieces."""
        tokenizer = self._plain_tokenizer
        normalised = tokenizer.normalizer.normalize_str(repair(text))
        return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalised)]

    def _encode_ids(self, texts: list[str]) -> list[list[int]]:
        repaired = [repair(text) for text in texts]
        encoded = self._plain_tokenizer.encode_batch_fast(repaired, add_special_tokens=False)
        return [row.ids for row in encoded]

    @cached_property
    def _cached_ids(self) -> CachedIds:
        return CachedIds(self._encode_ids, chinese_characters=self.rules.chinese_characters)

    def _encoding(self, text: str, encoded: LibraryEncoding) -> Encoding:
        """The library's encoding with word starts; inside Chinese text the segmenter decides them."""
        ids = np.array(encoded.ids, np.int32)
        offsets = np.array(encoded.offsets, np.int32).reshape(-1, 2)
        starts = ~self.continues[ids]
        if has_chinese(text) and has_segmenter():
            positions, begins_word = chinese_starts(text)
            is_border = np.ones(len(text) + 1, bool)
            is_border[positions] = begins_word
            starts &= is_border[offsets[:, 0]]
        return Encoding(ids, offsets, starts, tuple(encoded.tokens))

    def _word_starts(self, texts: list[str], ids: list[np.ndarray]) -> list[np.ndarray]:
        """For each text, whether each of its ids begins a word.

        If the Chinese tokens of a text have as many characters as the text has Chinese ones, they are these
        characters, in order. If not (one of them is unknown), offsets are needed.
        """
        # All texts are segmented in one call, and the result is cut at their ends.
        sizes = [len(text) + 1 for text in texts]
        ends = np.cumsum(sizes)
        positions, begins_word_of_all = chinese_starts("\n".join(texts))
        cuts = np.searchsorted(positions, ends)
        # Behind the last end there is nothing.
        begins_of_texts = np.split(begins_word_of_all, cuts)[:-1]
        rows = []
        for text, row, begins_word in zip(texts, ids, begins_of_texts, strict=True):
            num_chinese = self._num_chinese[row]
            if num_chinese.sum() == len(begins_word):
                starts = ~self.continues[row]
                is_chinese = num_chinese > 0
                # The index of each token's first character among the Chinese characters of the text.
                first_character = starts_of(num_chinese)
                starts[is_chinese] = begins_word[first_character[is_chinese]]
            else:
                starts = self.encode(text).word_starts
            rows.append(starts)
        return rows

    @cached_property
    def _num_chinese(self) -> np.ndarray:
        """For each id the number of its characters if all are Chinese, else 0."""
        sizes = []
        for token in self.vocab.tokens:
            size = 0
            if all(map(has_chinese, token)):
                size = len(token)
            sizes.append(size)
        return np.array(sizes, np.int64)

    def _pieces_by_count(self, words: dict[str, int]) -> list[str]:
        """The pieces by how often `words` use them, most frequent first, then by code point."""
        totals = np.zeros(len(self.vocab), np.int64)
        stream = iter(words.items())
        while batch := list(islice(stream, _BATCH)):
            rows = self._encode_ids([word for word, _ in batch])
            word_counts = [count for _, count in batch]
            num_pieces = [len(row) for row in rows]
            # A word's count is that of each of its pieces.
            piece_counts = np.repeat(word_counts, num_pieces)
            pieces = np.fromiter(chain.from_iterable(rows), np.int64)
            np.add.at(totals, pieces, piece_counts)
        negative_counts = (-totals).tolist()[len(SPECIALS) :]
        tokens = self.vocab.tokens[len(SPECIALS) :]
        ranked = sorted(zip(negative_counts, tokens, strict=True))
        return [token for _, token in ranked]

    def _build(self, rules: WordPieceRules) -> Tokenizer:
        tokens = self.vocab.tokens[: rules.num_pieces]
        pieces = {piece: i for i, piece in enumerate(tokens)}
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
        add_tokens(tokenizer, rules.added)
        if self.vocab.own_frame:
            tokenizer.post_processor = processors.RobertaProcessing(
                (separator, self.vocab.sep), (opening, self.vocab.cls), trim_offsets=True, add_prefix_space=False
            )
            return tokenizer
        # [CLS] and [SEP] are only names within the template; the ids and tokens are this vocabulary's.
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[
                {"id": "[CLS]", "ids": [self.vocab.cls], "tokens": [opening]},
                {"id": "[SEP]", "ids": [self.vocab.sep], "tokens": [separator]},
            ],
        )
        return tokenizer


def _rules(config: WordPiece.Config) -> WordPieceRules:
    """The rules of a vocabulary that is trained with this config."""
    return WordPieceRules(
        lowercase=config.lowercase,
        strip_accents=config.lowercase and config.strip_accents,
        chinese_characters=config.chinese_characters,
    )
