"""More training rows by a masked language model (Jiao et al. 2019, algorithm 1, with BERT for all words).

In: rows. Out: copies of them in which some words are replaced by one of the likeliest words at their place. Which words
are replaced, and by which candidate, is a function of the seed, the row and the copy. The copies are kept in a file,
because a resumed run must see the same ones.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from firth import rng
from firth.errors import BadInput, FirthError
from firth.files import read_json, write_json
from firth.inference.model import load
from firth.train.parallel import current_world
from firth.types import Example

REPLACED_SHARE = 0.4
"""Share of the words that are replaced."""
CANDIDATES = 15
"""Likeliest words that a replacement is drawn from."""
WORD = re.compile(r"[\u3400-\u9fff]|\w+")
"""A Chinese character or a word."""
Span = tuple[int, int]
"""The first character of a word, and the one behind its last."""
FIRST_ROW = 1_000_000_000
"""Copies have row numbers of their own, above those of any file."""


class Augmented:
    """Makes copies of rows."""

    def __init__(self, masked_lm: Path, *, copies: int, seed: int) -> None:
        self.model = load(masked_lm)
        self.model.require_mask_filler()  # raises if it fills no masks
        self.copies = copies
        self.key = rng.key(seed, "augmented rows")

    def rows(self, examples: Sequence[Example], *, file: Path) -> list[Example]:
        """The copies of all rows, read from the file if it has them."""
        with current_world().main_first():
            if file.exists():
                texts = read_json(file)
            else:
                texts = self._all_texts(examples)
                file.parent.mkdir(parents=True, exist_ok=True)
                write_json(file, texts)
        copies: list[Example] = []
        originals: list[Example] = []
        for example in examples:
            originals += [example] * self.copies
        if len(originals) != len(texts):
            raise BadInput(f"{file} is of other rows; begin the compression again in another folder.")
        for number, (example, new_texts) in enumerate(zip(originals, texts, strict=True)):
            copies.append(replace(example, texts=tuple(new_texts), row=FIRST_ROW + number))
        return copies

    def _all_texts(self, examples: Sequence[Example]) -> list[list[str]]:
        all_texts: list[list[str]] = []
        for example in examples:
            for copy in range(self.copies):
                texts = []
                for place, text in enumerate(example.texts):
                    texts.append(self._changed(text, counters=(example.row, copy, place)))
                all_texts.append(texts)
        return all_texts

    def _changed(self, text: str, *, counters: tuple[int, int, int]) -> str:
        """The text with some of its words replaced; as it is if it is too long for the model."""
        # A text may spell the mask itself. The model fills it, too, but it stays.
        spelled = [match.span() for match in re.finditer(re.escape(self._mask), text)]
        spans = self._drawn_words(text, spelled, counters=counters)
        if not spans:
            return text
        try:
            fills = self.model.fill(self._masked(text, spans), top=CANDIDATES)
        except FirthError:
            return text
        all_masks = sorted([*spans, *spelled])
        per_mask = len(fills) // len(all_masks)
        parts: list[str] = []
        end_before = 0
        for number, (start, end) in enumerate(spans):
            first_fill = all_masks.index((start, end)) * per_mask
            pick = int(rng.below(self.key, per_mask, *counters, number, 1))
            word = fills[first_fill + pick].token
            if word.startswith("##"):
                # A piece that continues a word is no word.
                word = text[start:end]
            parts += [text[end_before:start], word]
            end_before = end
        return "".join([*parts, text[end_before:]])

    def _drawn_words(self, text: str, spelled: Sequence[Span], *, counters: tuple[int, int, int]) -> list[Span]:
        """The words to replace, drawn at random; none that overlaps a mask which the text spells."""
        drawn: list[Span] = []
        for number, match in enumerate(WORD.finditer(text)):
            first, last = match.span()
            is_spelled_mask = any(start < last and first < end for start, end in spelled)
            draw = rng.uniform(self.key, *counters, number, 0)
            if not is_spelled_mask and draw < REPLACED_SHARE:
                drawn.append((first, last))
        return drawn

    @property
    def _mask(self) -> str:
        """How the model's mask is spelled."""
        vocab = self.model.checkpoint.tokenizer.vocab
        return vocab.tokens[vocab.mask]

    def _masked(self, text: str, spans: Sequence[Span]) -> str:
        parts: list[str] = []
        end_before = 0
        for start, end in spans:
            parts += [text[end_before:start], self._mask]
            end_before = end
        return "".join([*parts, text[end_before:]])
