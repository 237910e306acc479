"""Text -> ids by byte-level BPE, as in GPT-2 and RoBERTa (Radford et al. 2019): bytes, merged by learned rank.

In: text; out: ids, the characters that each id covers, and where words begin. Every text can be written in bytes, so
nothing is unknown. Words carry the space before them. The folder format is the one that transformers reads and writes.
The tokenizers library does the encoding, behind a cache of chunks; `vocabulary_learning` learns the merges.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import Encoding as LibraryEncoding
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from firth.errors import BadConfig
from firth.files import write_bytes, write_json
from firth.tokenizers.bpe_folder import END_OF_TEXT, ROBERTA, BPERules, Merges, frame_of, read_folder
from firth.tokenizers.byte_words import byte_letters, count_words, split_chunks, starts_with_space, word_borders
from firth.tokenizers.cache import ChunkCache
from firth.tokenizers.library import add_tokens, library_errors_as_bad_input, without_specials
from firth.tokenizers.library_tokenizer import LibraryTokenizer
from firth.tokenizers.segmentation import has_chinese, repair
from firth.tokenizers.vocab import Vocab
from firth.tokenizers.vocabulary_learning import learn_merges
from firth.tokenizers.wordpiece_folder import ROLES, Added
from firth.types import Encoding

_BYTE_OF_LETTER = {letter: byte for byte, letter in enumerate(byte_letters())}
_SPACE = byte_letters()[ord(" ")]
_plain_word = re.compile(" ?[A-Za-z0-9]+")


class BPE(LibraryTokenizer[BPERules]):
    """Immutable; safe to use from several threads."""

    words_by_text = True
    keeps_space = True
    pieces_hold_spaces = True

    @dataclass(frozen=True)
    class Config:
        vocab_size: int = 30000
        """How many tokens the vocabulary has, special tokens and the 256 bytes included."""
        min_count: int = 2
        """How often a pair of pieces must occur to be merged."""
        specials: Literal["roberta", "gpt"] = "roberta"
        """RoBERTa's special tokens, which suit every recipe, or GPT-2's single one."""
        opening: bool = True
        """With GPT-2's single special token: whether it also begins every sequence."""

        def __post_init__(self) -> None:
            smallest = 256 + len(_special_tokens(self))
            if self.vocab_size < smallest or self.min_count < 1:
                raise BadConfig(
                    f"A byte-level vocabulary needs a size of at least {smallest} and a min_count of "
                    f"at least 1; they are {self.vocab_size} and {self.min_count}."
                )

    def __init__(self, vocab: Vocab, merges: Merges, rules: BPERules, *, max_length: int | None = None) -> None:
        super().__init__(vocab, rules, max_length=max_length)
        self.merges = merges
        self.continues = np.zeros(len(vocab), bool)
        self._ids_cache = ChunkCache(self._encode_ids)
        self._starts_cache = ChunkCache(self._encode_starts)

    @classmethod
    def train(cls, texts: Iterable[str], config: Config, *, fewer: bool = False) -> "BPE":
        """Learns merges in one pass over `texts`; the same texts and config always give the same merges.

        A text that supports fewer pieces than requested is an error, unless `fewer` is allowed.
        """
        return cls.from_counts(cls.count(texts, config), config, fewer=fewer)

    @classmethod
    def count(cls, texts: Iterable[str], config: Config) -> dict[str, int]:
        """How often each word occurs; counts of parts of a text may be added."""
        return count_words(texts)

    @classmethod
    def from_counts(cls, words: dict[str, int], config: Config, *, fewer: bool = False) -> "BPE":
        """Learns merges from the counts of words; `train` explains `fewer`."""
        specials = _special_tokens(config)
        room = config.vocab_size - len(specials)
        pieces, merges = learn_merges(words, set(byte_letters()), size=room, min_count=config.min_count)
        if len(pieces) < room and not fewer:
            size = len(pieces) + len(specials)
            raise BadConfig(
                f"The text supports a vocabulary of only {size} pieces, not {config.vocab_size}: give it more text "
                f"or use `vocab_size={size}`."
            )
        tokens = (*specials, *pieces)
        roles = ROBERTA
        if len(specials) == 1:
            roles = specials * 5  # GPT-2's one token has all five roles
        frame = frame_of(tokens, roles, opens=config.opening)
        added = tuple(Added(token, lstrip=token == "<mask>") for token in specials)
        distinct_merges = tuple(dict.fromkeys(merges))  # a pair can be merged again after other merges
        return cls(Vocab(tokens, roles, own_frame=frame), distinct_merges, BPERules(added=added))

    @classmethod
    def load(cls, folder: Path) -> "BPE":
        """The tokenizer that the files of `folder` describe."""
        vocab, merges, rules, max_length = read_folder(Path(folder))
        tokenizer = cls(vocab, merges, rules, max_length=max_length)
        with library_errors_as_bad_input(folder):
            tokenizer._plain_tokenizer  # noqa: B018 - builds it now, so that an error names the folder
        return tokenizer

    def save(self, folder: Path, *, max_length: int | None = None) -> tuple[str, ...]:
        """Writes the files of a transformers tokenizer and returns their names."""
        folder = Path(folder)
        built = self._build(self.rules)
        built.post_processor = self._post_processor()
        write_bytes(folder / "tokenizer.json", built.to_str(pretty=True).encode())
        write_json(folder / "vocab.json", {token: i for i, token in enumerate(self._pieces)})
        merge_lines = "".join(f"{left} {right}\n" for left, right in self.merges)
        write_bytes(folder / "merges.txt", f"#version: 0.2\n{merge_lines}".encode())
        write_json(folder / "tokenizer_config.json", self._settings(max_length or self.max_length))
        return "tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"

    def _class_name(self) -> str:
        """The class in transformers that frames texts in the same way."""
        roles = self.vocab.roles
        if roles[2] == roles[3]:
            return "GPT2Tokenizer"
        is_roberta = len(self.vocab.frame.between) == 2 and not self.rules.normalizer
        return "RobertaTokenizer" if is_roberta else "PreTrainedTokenizerFast"

    def _settings(self, max_length: int | None) -> dict[str, str | bool | int]:
        """The content of tokenizer_config.json."""
        roles = self.vocab.roles
        is_roberta = roles[2] != roles[3]
        settings: dict[str, str | bool | int] = {
            "tokenizer_class": self._class_name(),
            "add_prefix_space": self.rules.prefix_space,
            "bos_token": roles[2],
            "eos_token": roles[3],
        }
        if is_roberta:
            settings.update(zip(ROLES, roles, strict=True))
        else:
            settings["unk_token"] = roles[1]
            settings["pad_token"] = roles[0]
            settings["add_bos_token"] = bool(self.vocab.frame.opening)
        if max_length:
            settings["model_max_length"] = max_length
        return settings

    def _fingerprinted(self) -> list[object]:
        rules = replace(self.rules, added=without_specials(self.rules.added))
        settings = asdict(rules)
        if not rules.normalizer:
            del settings["normalizer"]  # so that fingerprints stay what they were before there was one
        return [self.merges, settings]

    def ids_batch(self, texts: list[str]) -> list[list[int]]:
        """Only the ids, which is fastest; special tokens spelled in a text are plain text."""
        chunked_texts = self._split_texts(texts)
        ids_of = self._ids_cache(_all_chunks(chunked_texts)).__getitem__
        # The texts without chunks are encoded whole, in one batch; the loop below puts them back in order.
        uncached = []
        for text, chunks in zip(texts, chunked_texts, strict=True):
            if chunks is None:
                uncached.append(repair(text))
        encoded = iter(self._plain_tokenizer.encode_batch_fast(uncached, add_special_tokens=False))
        rows = []
        for chunks in chunked_texts:
            if chunks is None:
                rows.append(next(encoded).ids)
            else:
                ids_of_chunks = map(ids_of, chunks)
                rows.append(list(chain.from_iterable(ids_of_chunks)))
        return rows

    def word_starts_batch(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each text its ids, and whether each begins a word."""
        chunked_texts = self._split_texts(texts)
        all_chunks = _all_chunks(chunked_texts)
        ids_of = self._ids_cache(all_chunks).__getitem__
        starts_of = self._starts_cache(all_chunks).__getitem__
        uncached = [text for text, chunks in zip(texts, chunked_texts, strict=True) if chunks is None]
        encodings = iter(self.encode_batch(uncached))
        pairs = []
        for chunks in chunked_texts:
            if chunks is None:
                encoding = next(encodings)
                pairs.append((encoding.ids, encoding.word_starts))
                continue
            ids = np.fromiter(chain.from_iterable(map(ids_of, chunks)), np.int32)
            starts = np.fromiter(chain.from_iterable(map(starts_of, chunks)), bool)
            starts[:1] = True  # the first token begins a word even if it is a space
            pairs.append((ids, starts))
        return pairs

    def decode(self, ids: Iterable[int]) -> str:
        """The text; padding, opening and separating tokens are left out, invalid byte sequences become U+FFFD."""
        hidden = {self.vocab.pad, self.vocab.cls, self.vocab.sep}
        shown = [i for i in map(int, ids) if i not in hidden]
        data = b"".join(self._token_bytes[i] for i in shown)
        return data.decode(errors="replace")

    def spelled(self, token: int) -> str:
        """A token as it appears in a text, with its space; incomplete characters are left out."""
        return self._token_bytes[token].decode(errors="ignore")

    def _split_texts(self, texts: list[str]) -> list[list[str] | None]:
        """The chunks of each text, or None for a text that must be encoded whole.

        Chinese is encoded whole because its chunks rarely repeat, and so is all text if added tokens may occur in it.
        """
        if without_specials(self.rules.added):
            return [None] * len(texts)
        return [self._split_text(repair(text)) for text in texts]

    def _split_text(self, text: str) -> list[str] | None:
        if has_chinese(text):
            return None
        if self.rules.normalizer:
            text = unicodedata.normalize(self.rules.normalizer, text)  # type: ignore[arg-type]
        if text and self.rules.prefix_space and not starts_with_space(text):
            text = " " + text
        return split_chunks(text)

    def _encode_ids(self, chunks: list[str]) -> list[list[int]]:
        encoded = self._chunk_tokenizer.encode_batch_fast(chunks, add_special_tokens=False)
        return [row.ids for row in encoded]

    def _encode_starts(self, chunks: list[str]) -> list[list[bool]]:
        """For each chunk, whether its tokens begin a word. A plain word is one word; other chunks need offsets."""
        ids_of = self._ids_cache(set(chunks))
        others = [chunk for chunk in chunks if not _plain_word.fullmatch(chunk)]
        encoded = self._chunk_tokenizer.encode_batch(others, add_special_tokens=False)
        starts_of_others: dict[str, list[bool]] = {}
        for chunk, row in zip(others, encoded, strict=True):
            starts = self._encoding(chunk, row).word_starts.tolist()
            if chunk:
                starts[:1] = [not starts_with_space(chunk[-1:])]  # space alone begins no word
            starts_of_others[chunk] = starts
        rows = []
        for chunk in chunks:
            known_starts = starts_of_others.get(chunk)
            if known_starts:
                rows.append(known_starts)
            else:
                rows.append([True] + [False] * (len(ids_of[chunk]) - 1))
        return rows

    def _encoding(self, text: str, encoded: LibraryEncoding) -> Encoding:
        """The library's encoding with offsets that leave out the space in front of a word, and with word starts.

        A token starts a word if it begins where a word does, or if it is the space in front of that word.
        """
        ids = np.array(encoded.ids, np.int32)
        offsets = np.array(encoded.offsets, np.int32).reshape(-1, 2)
        starts = np.ones(len(ids), bool)
        if len(ids):
            # Offsets overlap where a token begins in the middle of a character's bytes.
            starts[1:] = offsets[1:, 0] >= offsets[:-1, 1]
            codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
            is_space = codes == ord(" ")
            # " word" begins at its letter. With a prefix space there is no space in the text to leave out.
            begins_with_space = is_space[offsets[:, 0]]
            offsets[:, 0] += self._has_leading_space[ids] & begins_with_space
            is_border = word_borders(text)
            is_lone_space = ids == self.vocab.ids.get(_SPACE, -1)
            is_lone_space &= is_border[offsets[:, 1]]
            begins_at_border = is_border[offsets[:, 0]]
            starts &= begins_at_border | is_lone_space
            starts[1:] &= ~is_lone_space[:-1]  # the space already started this word
            starts[0] = True
        return Encoding(ids, offsets, starts, tuple(encoded.tokens))

    @cached_property
    def _has_leading_space(self) -> np.ndarray:
        """For each id: is it a space followed by something else?"""
        flags = []
        for token in self.vocab.tokens:
            has_space = token[:1] == _SPACE
            goes_on = len(token) > 1 and token[1] != _SPACE
            flags.append(has_space and goes_on)
        return np.array(flags, bool)

    @cached_property
    def _token_bytes(self) -> list[bytes]:
        """For each id the bytes that its token is made of."""
        added = {one.token for one in self.rules.added}
        rows = []
        for token in self.vocab.tokens:
            # Added tokens are written in plain text, all others in byte letters.
            is_spelled_in_bytes = _BYTE_OF_LETTER.keys() >= set(token)
            if token in added or not is_spelled_in_bytes:
                rows.append(token.encode())
            else:
                rows.append(bytes(map(_BYTE_OF_LETTER.__getitem__, token)))
        return rows

    @property
    def _pieces(self) -> tuple[str, ...]:
        return self.vocab.tokens[: self.rules.num_pieces]

    @cached_property
    def _chunk_tokenizer(self) -> Tokenizer:
        """The plain tokenizer for chunks, which already have their space in front."""
        return self._build_plain(replace(self.rules, prefix_space=False))

    def _build(self, rules: BPERules) -> Tokenizer:
        pieces = {piece: i for i, piece in enumerate(self._pieces)}
        tokenizer = Tokenizer(models.BPE(pieces, list(self.merges)))
        if rules.normalizer:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=rules.prefix_space)
        tokenizer.decoder = decoders.ByteLevel()
        add_tokens(tokenizer, rules.added)
        return tokenizer

    def _post_processor(self) -> processors.PostProcessor:
        """Adds the frame of special tokens when other programs load the saved files; GPT-2's adds no end."""
        cls, sep = self.vocab.roles[2:4]
        if cls != sep and len(self.vocab.frame.between) == 1:
            second = self.vocab.frame.second_segment
            return processors.TemplateProcessing(
                single=f"{cls} $A {sep}",
                pair=f"{cls} $A {sep} $B:{second} {sep}:{second}",
                special_tokens=[(cls, self.vocab.cls), (sep, self.vocab.sep)],
            )
        if cls != sep:
            return processors.RobertaProcessing(
                (sep, self.vocab.sep),
                (cls, self.vocab.cls),
                trim_offsets=True,
                add_prefix_space=self.rules.prefix_space,
            )
        if not self.vocab.frame.opening:
            return processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
        return processors.TemplateProcessing(
            single=f"{cls} $A", pair=f"{cls} $A {cls} $B", special_tokens=[(cls, self.vocab.cls)]
        )


def _all_chunks(chunked_texts: list[list[str] | None]) -> set[str]:
    found: set[str] = set()
    for chunks in chunked_texts:
        if chunks:
            found.update(chunks)
    return found


def _special_tokens(config: BPE.Config) -> tuple[str, ...]:
    if config.specials == "roberta":
        return ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    return (END_OF_TEXT,)
