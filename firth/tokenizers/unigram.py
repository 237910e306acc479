"""Text -> ids by a unigram language model over pieces, as SentencePiece cuts for ALBERT and XLM-R (Kudo 2018).

In: text; out: ids, with the characters each stands for and where words begin. A text is cut into the pieces whose
probabilities have the largest product. Such vocabularies are read from folders of ALBERT's and XLM-R's kind, never
learned here. Encoding itself is the tokenizers library's.
"""

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from firth.errors import BadInput, Unsupported
from firth.files import write_bytes, write_json
from firth.tokenizers.byte_words import word_borders
from firth.tokenizers.folder import ROLES
from firth.tokenizers.unigram_folder import SPACE, Rules, Step, read_folder
from firth.tokenizers.vocab import Vocab
from firth.tokenizers.words import repair
from firth.types import Encoding


class Unigram:
    """Immutable; safe to use from several threads."""

    words_by_text = True
    """Whether a piece begins a word depends on what stands before it: only the text tells."""

    def __init__(self, vocab: Vocab, rules: Rules, *, max_length: int | None = None) -> None:
        self.vocab, self.rules, self.max_length = vocab, rules, max_length
        self.continues = np.zeros(len(vocab), bool)

    @classmethod
    def train(cls, texts: Iterable[str], config: Any, *, fewer: bool = False) -> "Unigram":
        raise Unsupported("firth reads unigram vocabularies but learns none; use --tokenizer bpe or wordpiece.")

    @classmethod
    def load(cls, folder: Path) -> "Unigram":
        """The tokenizer that `folder`'s own files describe."""
        vocab, rules, max_length = read_folder(Path(folder))
        tokenizer = cls(vocab, rules, max_length=max_length)
        try:
            tokenizer._specials.encode("a \u00c5\ufb01 \u4f7f")  # so that what the library refuses is said here
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise BadInput(f"{folder} holds a tokenizer that cannot be built ({error}).") from None
        return tokenizer

    def save(self, folder: Path, *, max_length: int | None = None) -> tuple[str, ...]:
        """Writes the files transformers knows, under its names, and gives these names."""
        folder, roles = Path(folder), self.vocab.roles
        steps = {step[0] for step in self.rules.normalizer}
        settings: dict[str, Any] = {
            "tokenizer_class": "XLMRobertaTokenizer" if len(self.vocab.frame.between) > 1 else "AlbertTokenizer",
            "do_lower_case": "Lowercase" in steps,
            "keep_accents": "StripAccents" not in steps,
            "bos_token": roles[2],
            "eos_token": roles[3],
            **dict(zip(ROLES, roles, strict=True)),
        }
        if longest := max_length or self.max_length:
            settings["model_max_length"] = longest
        write_bytes(folder / "tokenizer.json", self._specials.to_str(pretty=True).encode())
        write_json(folder / "tokenizer_config.json", settings)
        return "tokenizer.json", "tokenizer_config.json"

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of all that decides the ids of plain text."""
        plain = replace(self.rules, added=tuple(one for one in self.rules.added if not one.special))
        what = [self.vocab.tokens, self.vocab.roles, asdict(plain)]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def ids_batch(self, texts: list[str]) -> list[list[int]]:
        """Ids and nothing else, the fastest way; special tokens spelled in a text are plain text."""
        encoded = self._plain.encode_batch_fast(list(map(repair, texts)), add_special_tokens=False)
        return [one.ids for one in encoded]

    def word_starts_batch(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Ids, and whether each begins a word."""
        return [(one.ids, one.word_starts) for one in self.encode_batch(texts)]

    def encode(self, text: str, *, specials: bool = False, masks: bool = False) -> Encoding:
        """The whole text, with nothing added. Special tokens spelled in it are plain text, unless `specials` makes
        them special, or `masks` the mask token alone. Without rjieba each Chinese character counts as a word."""
        return self.encode_batch([text], specials=specials, masks=masks)[0]

    def encode_batch(self, texts: list[str], *, specials: bool = False, masks: bool = False) -> list[Encoding]:
        tokenizer = self._specials if specials else self._masks if masks else self._plain
        encoded = tokenizer.encode_batch(list(map(repair, texts)), add_special_tokens=False)
        return [_encoding(text, one) for text, one in zip(texts, encoded, strict=True)]

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text; padding, opening and separating tokens are left out."""
        unseen = {self.vocab.pad, self.vocab.cls, self.vocab.sep}
        return "".join(self.spelled(i) for i in map(int, ids) if i not in unseen).removeprefix(" ")

    def spelled(self, token: int) -> str:
        """A token as it stands in a text, with its space."""
        return self.vocab.tokens[token].replace(SPACE, " ")

    @cached_property
    def _specials(self) -> Tokenizer:
        return self._build(self.rules)

    @cached_property
    def _plain(self) -> Tokenizer:
        return self._as_text(self.rules)

    @cached_property
    def _masks(self) -> Tokenizer:
        mask = self.vocab.roles[4]
        added = tuple(replace(one, special=one.special and one.token != mask) for one in self.rules.added)
        return self._as_text(replace(self.rules, added=added))

    def _as_text(self, rules: Rules) -> Tokenizer:
        """Special tokens are pieces, too, and would be found in a text: here they are spelled as no text is."""
        hidden = {one.token for one in rules.added if one.special}
        shown = replace(rules, added=tuple(one for one in rules.added if not one.special))
        return self._build(shown, tuple(f"\0\1{i}\0" if t in hidden else t for i, t in enumerate(self.vocab.tokens)))

    def _build(self, rules: Rules, tokens: tuple[str, ...] = ()) -> Tokenizer:
        # Added tokens may stand behind the pieces.
        pieces = list(zip(tokens or self.vocab.tokens, rules.scores, strict=False))
        tokenizer = Tokenizer(models.Unigram(pieces, rules.unknown, False))
        tokenizer.normalizer = normalizers.Sequence([_normalizer(step) for step in rules.normalizer])
        space = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=rules.scheme)
        first = [pre_tokenizers.WhitespaceSplit()] if rules.by_space else []
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*first, space])
        tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=rules.scheme)
        tokenizer.post_processor = self._processor()
        for one in rules.added:
            flags = {name: value for name, value in asdict(one).items() if name != "token"}
            tokenizer.add_tokens([AddedToken(one.token, **flags)])
        return tokenizer

    def _processor(self) -> Any:
        """What puts the frame around texts in other people's programs."""
        frame, names = self.vocab.frame, self.vocab.tokens
        opening, between, closing = (
            "".join(f"{names[i]}:{segment} " for i in part)
            for part, segment in ((frame.opening, 0), (frame.between, 0), (frame.closing, frame.second_segment))
        )
        ids = {*frame.opening, *frame.between, *frame.closing}
        return processors.TemplateProcessing(
            single=f"{opening}$A:0 {closing.replace(':1 ', ':0 ')}".strip(),
            pair=f"{opening}$A:0 {between}$B:{frame.second_segment} {closing}".strip(),
            special_tokens=[(names[i], i) for i in sorted(ids)],
        )


def _normalizer(step: Step) -> Any:
    kind, *settings = step
    if kind == "Precompiled":
        return normalizers.Precompiled(base64.b64decode(settings[0]))
    if kind == "Replace":
        text, regex, content = settings
        return normalizers.Replace(Regex(regex) if regex else text, content)
    return getattr(normalizers, kind)()


def _encoding(text: str, encoded: Any) -> Encoding:
    """Offsets without the space in front; of the pieces of one character the first may start a word."""
    ids, offsets = np.array(encoded.ids, np.int32), np.array(encoded.offsets, np.int32).reshape(-1, 2)
    starts = np.ones(len(ids), bool)
    if len(ids):
        starts[1:] = offsets[1:, 0] >= offsets[:-1, 1]
        blank = np.array([one.isspace() for one in text])
        offsets[:, 0] += blank[offsets[:, 0]] & (np.diff(offsets, axis=1)[:, 0] > 1)
        lone = np.array([token == SPACE for token in encoded.tokens])
        border = word_borders(text)
        starts &= border[offsets[:, 0]] | (lone & border[offsets[:, 1]])
        starts[1:] &= ~lone[:-1] | ~starts[:-1]
        starts[0] = True
    return Encoding(ids, offsets, starts, tuple(encoded.tokens))
