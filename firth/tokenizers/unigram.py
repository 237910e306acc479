"""Text -> ids by a unigram language model over pieces, as SentencePiece does (Kudo 2018).

In: text; out: ids, the characters that each id covers, and where words begin. A text is cut into the pieces whose
probabilities have the largest product. Such vocabularies are read from the folders of ALBERT, XLNet, XLM-R and T5;
they are not trained here. The tokenizers library does the encoding.
"""

import base64
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from tokenizers import Encoding as LibraryEncoding
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from firth.errors import Unsupported
from firth.files import write_bytes, write_json
from firth.tokenizers.byte_words import word_borders
from firth.tokenizers.library import add_tokens, library_errors_as_bad_input, without_specials
from firth.tokenizers.library_tokenizer import LibraryTokenizer
from firth.tokenizers.segmentation import repair
from firth.tokenizers.unigram_folder import DEBERTA, SPACE, Step, UnigramRules, read_folder
from firth.tokenizers.vocab import Vocab
from firth.tokenizers.wordpiece_folder import ROLES
from firth.types import Encoding

T5_CLASS = "T5Tokenizer"


class Unigram(LibraryTokenizer[UnigramRules]):
    """Immutable; safe to use from several threads."""

    words_by_text = True
    pieces_hold_spaces = True

    def __init__(self, vocab: Vocab, rules: UnigramRules, *, max_length: int | None = None) -> None:
        super().__init__(vocab, rules, max_length=max_length)
        self.continues = np.zeros(len(vocab), bool)

    @classmethod
    def train(cls, texts: Iterable[str], config: object, *, fewer: bool = False) -> "Unigram":
        raise Unsupported("firth reads unigram vocabularies but learns none; use `tokenizer='bpe'` or wordpiece.")

    @classmethod
    def load(cls, folder: Path) -> "Unigram":
        """The tokenizer that the files of `folder` describe."""
        vocab, rules, max_length = read_folder(Path(folder))
        tokenizer = cls(vocab, rules, max_length=max_length)
        with library_errors_as_bad_input(folder):
            # Some errors appear only when a text is encoded: one with a ligature, a composed letter and Chinese.
            tokenizer._specials_tokenizer.encode("a \u00c5\ufb01 \u4f7f")
        return tokenizer

    def save(self, folder: Path, *, max_length: int | None = None) -> tuple[str, ...]:
        """Writes the files of a transformers tokenizer and returns their names."""
        folder = Path(folder)
        roles = self.vocab.roles
        normalizer_names = {step[0] for step in self.rules.normalizer}
        settings: dict[str, str | bool | int] = {
            "tokenizer_class": self._class_name(),
            "do_lower_case": "Lowercase" in normalizer_names,
            "keep_accents": "StripAccents" not in normalizer_names,
            "bos_token": "<s>" if "<s>" in self.vocab.ids else roles[2],
            "eos_token": "</s>" if "</s>" in self.vocab.ids else roles[3],
        }
        settings.update(zip(ROLES, roles, strict=True))
        if settings["tokenizer_class"] == T5_CLASS:
            # T5 has no opening token and no mask; firth's roles follow from the vocabulary.
            for name in ("bos_token", "cls_token", "sep_token", "mask_token", "do_lower_case", "keep_accents"):
                settings.pop(name, None)
            settings["extra_ids"] = sum(token.startswith("<extra_id_") for token in self.vocab.tokens)
        longest = max_length or self.max_length
        if longest:
            settings["model_max_length"] = longest
        write_bytes(folder / "tokenizer.json", self._specials_tokenizer.to_str(pretty=True).encode())
        write_json(folder / "tokenizer_config.json", settings)
        return "tokenizer.json", "tokenizer_config.json"

    def _class_name(self) -> str:
        """The class in transformers that frames texts in the same way."""
        frame = self.vocab.frame
        if self.vocab.cls == self.vocab.pad:
            return T5_CLASS
        if frame.closing[-1:] == (self.vocab.cls,):
            return "XLNetTokenizer"
        if not frame.opening:
            return "PreTrainedTokenizerFast"  # mBART's, whose frame depends on the language
        if len(frame.between) > 1:
            return "XLMRobertaTokenizer"
        # A class with rules of its own, such as DebertaV2Tokenizer, would not use those of the file.
        return "PreTrainedTokenizerFast" if self.vocab.roles == DEBERTA else "AlbertTokenizer"

    def ids_batch(self, texts: list[str]) -> list[list[int]]:
        """Only the ids, which is fastest; special tokens spelled in a text are plain text."""
        repaired = [repair(text) for text in texts]
        encoded = self._plain_tokenizer.encode_batch_fast(repaired, add_special_tokens=False)
        return [row.ids for row in encoded]

    def word_starts_batch(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each text its ids, and whether each begins a word."""
        return [(encoding.ids, encoding.word_starts) for encoding in self.encode_batch(texts)]

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text; padding, opening and separating tokens are left out."""
        hidden = {self.vocab.pad, self.vocab.cls, self.vocab.sep}
        shown = [i for i in map(int, ids) if i not in hidden]
        text = "".join(self.spelled(i) for i in shown)
        return text.removeprefix(" ")

    def spelled(self, token: int) -> str:
        """A token as it appears in a text, with its space."""
        return self.vocab.tokens[token].replace(SPACE, " ")

    def _encoding(self, text: str, encoded: LibraryEncoding) -> Encoding:
        """The library's encoding with offsets that leave out the space in front of a word, and with word starts.

        A token starts a word if it begins where a word does, or if it is the space mark in front of that word.
        """
        ids = np.array(encoded.ids, np.int32)
        offsets = np.array(encoded.offsets, np.int32).reshape(-1, 2)
        starts = np.ones(len(ids), bool)
        if len(ids):
            # Of several pieces of one character only the first may start a word.
            starts[1:] = offsets[1:, 0] >= offsets[:-1, 1]
            is_space = np.array([character.isspace() for character in text])
            is_longer = np.diff(offsets, axis=1)[:, 0] > 1
            # " word" begins at its letter; a space that is a token by itself keeps its place.
            offsets[:, 0] += is_space[offsets[:, 0]] & is_longer
            is_lone_space = np.array([token == SPACE for token in encoded.tokens])
            is_border = word_borders(text)
            begins_at_border = is_border[offsets[:, 0]]
            ends_at_border = is_border[offsets[:, 1]]
            starts &= begins_at_border | (is_lone_space & ends_at_border)
            starts[1:] &= ~is_lone_space[:-1] | ~starts[:-1]  # a lone space that starts a word is its only start
            starts[0] = True
        return Encoding(ids, offsets, starts, tuple(encoded.tokens))

    def _build_plain(self, rules: UnigramRules) -> Tokenizer:
        """Special tokens are also pieces of the model, so a text could match them: here no text can spell them."""
        special = {one.token for one in rules.added if one.special}
        tokens = []
        for i, token in enumerate(self.vocab.tokens):
            if token in special:
                tokens.append(f"\0\1{i}\0")
            else:
                tokens.append(token)
        plain_rules = replace(rules, added=without_specials(rules.added))
        return self._build_with(plain_rules, tuple(tokens))

    def _build(self, rules: UnigramRules) -> Tokenizer:
        return self._build_with(rules, self.vocab.tokens)

    def _build_with(self, rules: UnigramRules, tokens: tuple[str, ...]) -> Tokenizer:
        """The tokenizer with these spellings of the tokens."""
        # Not strict: added tokens behind the pieces have no score.
        pieces = list(zip(tokens, rules.scores, strict=False))
        tokenizer = Tokenizer(models.Unigram(pieces, rules.unknown, False))  # False: no byte fallback
        tokenizer.normalizer = normalizers.Sequence([_normalizer(step) for step in rules.normalizer])
        cuts: list[pre_tokenizers.PreTokenizer] = []
        if rules.by_space:
            cuts.append(pre_tokenizers.WhitespaceSplit())
        cuts.append(pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=rules.scheme))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
        tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=rules.scheme)
        tokenizer.post_processor = self._post_processor()
        add_tokens(tokenizer, rules.added)
        return tokenizer

    def _post_processor(self) -> processors.PostProcessor:
        """Adds the frame of special tokens when other programs load the saved files.

        A template is a list such as `[CLS]:0 $A:0 [SEP]:0`, where the number is the segment.
        """
        frame = self.vocab.frame
        second = frame.second_segment
        single = [
            *self._template_items(frame.opening, segment=0),
            "$A:0",
            *self._template_items(frame.closing, segment=0),
        ]
        pair = [
            *self._template_items(frame.opening, segment=0),
            "$A:0",
            *self._template_items(frame.between, segment=0),
            f"$B:{second}",
            *self._template_items(frame.closing, segment=second),
        ]
        if frame.last_segment is not None:
            last = self._template_items(frame.closing[-1:], segment=frame.last_segment)
            single[-1:] = last
            pair[-1:] = last
        ids = {*frame.opening, *frame.between, *frame.closing}
        return processors.TemplateProcessing(
            single=" ".join(single),
            pair=" ".join(pair),
            special_tokens=[(self.vocab.tokens[i], i) for i in sorted(ids)],
        )

    def _template_items(self, ids: tuple[int, ...], *, segment: int) -> list[str]:
        return [f"{self.vocab.tokens[i]}:{segment}" for i in ids]


def _normalizer(step: Step) -> normalizers.Normalizer:
    kind, *settings = step
    if kind == "Precompiled":
        return normalizers.Precompiled(base64.b64decode(settings[0]))
    if kind == "Replace":
        text, regex, content = settings
        pattern = Regex(regex) if regex else text
        return normalizers.Replace(pattern, content)
    if kind == "Strip":
        (side,) = settings
        return normalizers.Strip(left=side != "right", right=side != "left")
    normalizer: normalizers.Normalizer = getattr(normalizers, kind)()
    return normalizer
