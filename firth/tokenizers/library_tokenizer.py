"""What WordPiece, BPE and unigram tokenizers have in common: each is built in the tokenizers library in three ways.

In: a vocabulary and the rules that decide ids. Out: encodings in which special tokens spelled in a text are recognised,
or read as plain text, or only the mask token is recognised.
"""

import hashlib
import json
from dataclasses import asdict, replace
from functools import cached_property
from typing import Generic, TypeVar

from tokenizers import Encoding as LibraryEncoding
from tokenizers import Tokenizer

from firth.tokenizers.bpe_folder import BPERules
from firth.tokenizers.capabilities import Capabilities
from firth.tokenizers.library import with_plain_mask, without_specials
from firth.tokenizers.segmentation import repair
from firth.tokenizers.unigram_folder import UnigramRules
from firth.tokenizers.vocab import Vocab
from firth.tokenizers.wordpiece_folder import WordPieceRules
from firth.types import Encoding

Rules = TypeVar("Rules", WordPieceRules, BPERules, UnigramRules)


class LibraryTokenizer(Capabilities, Generic[Rules]):
    """Immutable; safe to use from several threads."""

    def __init__(self, vocab: Vocab, rules: Rules, *, max_length: int | None = None) -> None:
        self.vocab = vocab
        self.rules: Rules = rules
        self.max_length = max_length

    def encode(self, text: str, *, specials: bool = False, masks: bool = False) -> Encoding:
        """The whole text, with nothing added.

        Special tokens spelled in it are plain text; with `specials` they are recognised, with `masks` only the mask
        token is. Without rjieba each Chinese character counts as a word.
        """
        return self.encode_batch([text], specials=specials, masks=masks)[0]

    def encode_batch(self, texts: list[str], *, specials: bool = False, masks: bool = False) -> list[Encoding]:
        if specials:
            tokenizer = self._specials_tokenizer
        elif masks:
            tokenizer = self._mask_tokenizer
        else:
            tokenizer = self._plain_tokenizer
        repaired = [repair(text) for text in texts]
        encoded = tokenizer.encode_batch(repaired, add_special_tokens=False)
        return [self._encoding(text, row) for text, row in zip(texts, encoded, strict=True)]

    def _encoding(self, text: str, encoded: LibraryEncoding) -> Encoding:
        """The library's encoding with word starts."""
        raise NotImplementedError

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of everything that decides the ids of plain text."""
        content = [self.vocab.tokens, self.vocab.roles, *self._fingerprinted()]
        spelled = json.dumps(content, sort_keys=True)
        return hashlib.sha256(spelled.encode()).hexdigest()

    def _fingerprinted(self) -> list[object]:
        """What decides the ids besides the vocabulary."""
        rules = replace(self.rules, added=without_specials(self.rules.added))
        return [asdict(rules)]

    # The library's tokenizers: each reads special tokens in a text differently.

    @cached_property
    def _specials_tokenizer(self) -> Tokenizer:
        """Recognises special tokens in a text."""
        return self._build(self.rules)

    @cached_property
    def _plain_tokenizer(self) -> Tokenizer:
        """Reads special tokens in a text as plain text."""
        return self._build_plain(self.rules)

    @cached_property
    def _mask_tokenizer(self) -> Tokenizer:
        """Recognises the mask token only."""
        added = with_plain_mask(self.rules.added, mask=self.vocab.roles[4])
        return self._build_plain(replace(self.rules, added=added))

    def _build_plain(self, rules: Rules) -> Tokenizer:
        tokenizer = self._build(rules)
        tokenizer.encode_special_tokens = True  # the library's name for reading them as plain text
        return tokenizer

    def _build(self, rules: Rules) -> Tokenizer:
        """A tokenizer of the library by these rules."""
        raise NotImplementedError
