"""Text -> ids by byte-level BPE, as in GPT-2 and RoBERTa (Radford et al. 2019): bytes, merged by learned rank.

In: text; out: ids, with the characters each stands for and where words begin. Every text can be written, so nothing is
unknown. Words carry the space before them. A folder of files comes in and out that transformers reads and writes too.
Encoding itself is the tokenizers library's, behind a memory of stretches met before; `pieces` learns the merges.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from firth.errors import BadConfig, BadInput
from firth.files import write_bytes, write_json
from firth.tokenizers.bpe_folder import END_OF_TEXT, ROBERTA, Merges, Rules, frame_of, read_folder
from firth.tokenizers.byte_words import byte_letters, count_words, starts_with_space, stretches, word_borders
from firth.tokenizers.cache import Remembered
from firth.tokenizers.folder import ROLES, Added
from firth.tokenizers.pieces import learn_merges
from firth.tokenizers.vocab import Vocab
from firth.tokenizers.words import has_chinese, repair
from firth.types import Encoding

_BYTE = {letter: byte for byte, letter in enumerate(byte_letters())}
_SPACE = byte_letters()[ord(" ")]
_plain_word = re.compile(" ?[A-Za-z0-9]+")


class BPE:
    """Immutable; safe to use from several threads."""

    words_by_text = True
    """Whether a piece begins a word depends on what stands before it: only the text tells."""
    keeps_space = True
    """Space is part of the pieces, so the space before a sentence belongs to its tokens."""

    @dataclass(frozen=True)
    class Config:
        vocab_size: int = 30000
        """How many tokens the vocabulary has, special tokens and the 256 bytes included."""
        min_count: int = 2
        """How often a pair of pieces must occur to be merged."""
        specials: Literal["roberta", "gpt"] = "roberta"
        """RoBERTa's special tokens, which suit every recipe, or GPT-2's single one."""
        opening: bool = True
        """With GPT-2's single special token: whether it also stands in front of every sequence."""

        def __post_init__(self) -> None:
            if self.vocab_size < 256 + len(_specials(self)) or self.min_count < 1:
                raise BadConfig(
                    f"A byte-level vocabulary needs a size of at least {256 + len(_specials(self))} and a min_count of "
                    f"at least 1; they are {self.vocab_size} and {self.min_count}."
                )

    def __init__(self, vocab: Vocab, merges: Merges, rules: Rules, *, max_length: int | None = None) -> None:
        self.vocab, self.merges, self.rules, self.max_length = vocab, merges, rules, max_length
        self.continues = np.zeros(len(vocab), bool)
        self._ids = Remembered(self._encode_ids)
        self._starts = Remembered(self._encode_starts)

    @classmethod
    def train(cls, texts: Iterable[str], config: Config, *, fewer: bool = False) -> "BPE":
        """Merges from one pass over `texts`; the same texts and config always give the same ones.

        A text that supports fewer pieces than asked for is an error, unless `fewer` is allowed."""
        specials = _specials(config)
        room = config.vocab_size - len(specials)
        pieces, merges = learn_merges(count_words(texts), {*byte_letters()}, size=room, min_count=config.min_count)
        if len(pieces) < room and not fewer:
            size = len(pieces) + len(specials)
            raise BadConfig(
                f"The text supports a vocabulary of only {size} pieces, not {config.vocab_size}: give it more text "
                f"or use --vocab-size {size}."
            )
        tokens, roles = (*specials, *pieces), ROBERTA if len(specials) > 1 else specials * 5
        vocab = Vocab(tokens, roles, own_frame=frame_of(tokens, roles, opens=config.opening))
        added = tuple(Added(token, lstrip=token == "<mask>") for token in specials)
        return cls(vocab, tuple(dict.fromkeys(merges)), Rules(added=added))

    @classmethod
    def load(cls, folder: Path) -> "BPE":
        """The tokenizer that `folder`'s own files describe."""
        vocab, merges, rules, max_length = read_folder(Path(folder))
        tokenizer = cls(vocab, merges, rules, max_length=max_length)
        try:
            tokenizer._plain  # noqa: B018 - built now, so that what the library refuses is said here
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise BadInput(f"{folder} holds a tokenizer that cannot be built ({error}).") from None
        return tokenizer

    def save(self, folder: Path, *, max_length: int | None = None) -> tuple[str, ...]:
        """Writes the files transformers knows, under its names, and gives these names."""
        folder, roles = Path(folder), self.vocab.roles
        roberta = roles[2] != roles[3]
        named = dict(zip(ROLES, roles, strict=True)) if roberta else {"unk_token": roles[1], "pad_token": roles[0]}
        settings: dict[str, Any] = {
            "tokenizer_class": "RobertaTokenizer" if roberta else "GPT2Tokenizer",
            "add_prefix_space": self.rules.prefix_space,
            "bos_token": roles[2],
            "eos_token": roles[3],
            **named,
        }
        if not roberta:
            settings["add_bos_token"] = bool(self.vocab.frame.opening)
        if longest := max_length or self.max_length:
            settings["model_max_length"] = longest
        built = self._build(self.rules)
        built.post_processor = self._processor()
        write_bytes(folder / "tokenizer.json", built.to_str(pretty=True).encode())
        write_json(folder / "vocab.json", {token: i for i, token in enumerate(self._pieces)})
        lines = "".join(f"{left} {right}\n" for left, right in self.merges)
        write_bytes(folder / "merges.txt", f"#version: 0.2\n{lines}".encode())
        write_json(folder / "tokenizer_config.json", settings)
        return "tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of all that decides the ids of plain text."""
        plain = replace(self.rules, added=tuple(one for one in self.rules.added if not one.special))
        what = [self.vocab.tokens, self.vocab.roles, self.merges, asdict(plain)]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def ids_batch(self, texts: list[str]) -> list[list[int]]:
        """Ids and nothing else, the fastest way; special tokens spelled in a text are plain text."""
        cuts = self._cut(texts)
        known = self._ids(set().union(*filter(None, cuts))).__getitem__
        apart = [repair(text) for text, cut in zip(texts, cuts, strict=True) if cut is None]
        fresh = iter(self._plain.encode_batch_fast(apart, add_special_tokens=False))
        return [next(fresh).ids if cut is None else list(chain.from_iterable(map(known, cut))) for cut in cuts]

    def word_starts_batch(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Ids, and whether each begins a word."""
        cuts = self._cut(texts)
        new = set().union(*filter(None, cuts))
        ids_of, starts_of = self._ids(new).__getitem__, self._starts(new).__getitem__
        fresh = iter(self.encode_batch([text for text, cut in zip(texts, cuts, strict=True) if cut is None]))
        pairs = []
        for cut in cuts:
            if cut is None:
                encoding = next(fresh)
                pairs.append((encoding.ids, encoding.word_starts))
                continue
            ids = np.fromiter(chain.from_iterable(map(ids_of, cut)), np.int32)
            starts = np.fromiter(chain.from_iterable(map(starts_of, cut)), bool)
            starts[:1] = True
            pairs.append((ids, starts))
        return pairs

    def encode(self, text: str, *, specials: bool = False, masks: bool = False) -> Encoding:
        """The whole text, with nothing added. Special tokens spelled in it are plain text, unless `specials` makes
        them special, or `masks` the mask token alone. Without rjieba each Chinese character counts as a word."""
        return self.encode_batch([text], specials=specials, masks=masks)[0]

    def encode_batch(self, texts: list[str], *, specials: bool = False, masks: bool = False) -> list[Encoding]:
        tokenizer = self._specials if specials else self._masks if masks else self._plain
        encoded = tokenizer.encode_batch(list(map(repair, texts)), add_special_tokens=False)
        return [self._encoding(text, one) for text, one in zip(texts, encoded, strict=True)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text; padding, opening and separating tokens are left out, bytes that make no character are U+FFFD."""
        unseen = {self.vocab.pad, self.vocab.cls, self.vocab.sep}
        return b"".join(self._bytes[i] for i in map(int, ids) if i not in unseen).decode(errors="replace")

    def spelled(self, token: int) -> str:
        """A token as it stands in a text, with its space; what is less than a character is left out."""
        return self._bytes[token].decode(errors="ignore")

    def _cut(self, texts: list[str]) -> list[list[str] | None]:
        """Stretches that repeat themselves; None for Chinese, which hardly does, and where added tokens are looked for
        in the text."""
        if any(not one.special for one in self.rules.added):
            return [None] * len(texts)
        lead = " " if self.rules.prefix_space else ""
        return [
            None if has_chinese(text) else stretches(text if starts_with_space(text) else lead * bool(text) + text)
            for text in map(repair, texts)
        ]

    def _encode_ids(self, stretches: list[str]) -> list[list[int]]:
        return [one.ids for one in self._stretches.encode_batch_fast(stretches, add_special_tokens=False)]

    def _encode_starts(self, stretches: list[str]) -> list[list[bool]]:
        """A plain word is one word; elsewhere offsets tell. Space alone begins no word."""
        ids = self._ids(set(stretches))
        odd = [stretch for stretch in stretches if not _plain_word.fullmatch(stretch)]
        encoded = self._stretches.encode_batch(odd, add_special_tokens=False)
        found = {one: self._encoding(one, row).word_starts.tolist() for one, row in zip(odd, encoded, strict=True)}
        for stretch in odd:
            found[stretch][:1] = [not starts_with_space(stretch[-1:])] * bool(stretch)
        return [found.get(stretch) or [True, *[False] * (len(ids[stretch]) - 1)] for stretch in stretches]

    def _encoding(self, text: str, encoded: Any) -> Encoding:
        """Offsets without the space in front; a token starts a word if it begins where a word does, or is its space."""
        ids, offsets = np.array(encoded.ids, np.int32), np.array(encoded.offsets, np.int32).reshape(-1, 2)
        starts = np.ones(len(ids), bool)
        if len(ids):
            starts[1:] = offsets[1:, 0] >= offsets[:-1, 1]  # otherwise it begins amid a character's bytes
            blank = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32) == ord(" ")
            offsets[:, 0] += self._led[ids] & blank[offsets[:, 0]]
            border, space = word_borders(text), ids == self.vocab.ids.get(_SPACE, -1)
            space &= border[offsets[:, 1]]
            starts &= border[offsets[:, 0]] | space
            starts[1:] &= ~space[:-1]
            starts[0] = True
        return Encoding(ids, offsets, starts, tuple(encoded.tokens))

    @cached_property
    def _led(self) -> np.ndarray:
        """True for the ids of pieces with a space in front of something else."""
        return np.array([len(token) > 1 and token[0] == _SPACE != token[1] for token in self.vocab.tokens], bool)

    @cached_property
    def _bytes(self) -> list[bytes]:
        whole = {one.token for one in self.rules.added}
        return [
            token.encode() if token in whole or not _BYTE.keys() >= {*token} else bytes(map(_BYTE.__getitem__, token))
            for token in self.vocab.tokens
        ]

    @property
    def _pieces(self) -> tuple[str, ...]:
        return self.vocab.tokens[: self.rules.num_pieces]

    @cached_property
    def _specials(self) -> Tokenizer:
        return self._build(self.rules)

    @cached_property
    def _plain(self) -> Tokenizer:
        return self._as_text(self.rules)

    @cached_property
    def _stretches(self) -> Tokenizer:
        return self._as_text(replace(self.rules, prefix_space=False))

    @cached_property
    def _masks(self) -> Tokenizer:
        mask = self.vocab.roles[4]
        added = tuple(replace(one, special=one.special and one.token != mask) for one in self.rules.added)
        return self._as_text(replace(self.rules, added=added))

    def _as_text(self, rules: Rules) -> Tokenizer:
        tokenizer = self._build(rules)
        tokenizer.encode_special_tokens = True  # the library's name for taking them as plain text
        return tokenizer

    def _build(self, rules: Rules) -> Tokenizer:
        pieces = {piece: i for i, piece in enumerate(self._pieces)}
        tokenizer = Tokenizer(models.BPE(pieces, list(self.merges)))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=rules.prefix_space)
        tokenizer.decoder = decoders.ByteLevel()
        for one in rules.added:
            flags = {name: value for name, value in asdict(one).items() if name != "token"}
            tokenizer.add_tokens([AddedToken(one.token, **flags)])
        return tokenizer

    def _processor(self) -> Any:
        """What puts the frame around texts in other people's programs; GPT-2's adds no end."""
        cls, sep = self.vocab.roles[2:4]
        if cls != sep:
            pair = (sep, self.vocab.sep), (cls, self.vocab.cls)
            return processors.RobertaProcessing(*pair, trim_offsets=True, add_prefix_space=self.rules.prefix_space)
        lead = f"{cls} " if self.vocab.frame.opening else ""
        known = [(cls, self.vocab.cls)] if lead else []
        return processors.TemplateProcessing(single=f"{lead}$A", pair=f"{lead}$A {lead}$B", special_tokens=known)


def _specials(config: BPE.Config) -> tuple[str, ...]:
    return ("<s>", "<pad>", "</s>", "<unk>", "<mask>") if config.specials == "roberta" else (END_OF_TEXT,)
