"""Classify by a prompt (PET, Schick & Schütze 2021): a pattern with a mask around the text, and words for each label.

In: rows with one or two texts, as for `classify`, a pattern such as `{text} It was [MASK].` and words such as
`positive=great,negative=terrible`. Out: one label. A label's score is the mean of the masked LM's scores of its words
at the mask. So a model with a masked-LM head answers without any training (zero-shot), and training begins there.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from firth.data.items import Item, encoded_texts, pack_windows, shorten, window
from firth.errors import BadConfig, Unsupported
from firth.models import language_of
from firth.nn.blocks import initialise
from firth.nn.heads import VocabularyHead
from firth.tasks.classify import ClassifyHead, ClassifyScorer
from firth.tasks.classify_reader import ClassifyConfig, ClassifyReader
from firth.tasks.predicting import evaluating
from firth.tasks.task import Examples, Labels, Task
from firth.tensors import Batch, Encoder, Goal, States
from firth.tokenizers import Tokenizer
from firth.types import Example

TEXT = "{text}"
SECOND = "{second}"
MASK = "[MASK]"
SLOT = re.compile(r"(\{text\}|\{second\}|\[MASK\])")
ANY_MASK = re.compile(re.escape(MASK), re.IGNORECASE)
"""The mask as people type it."""
EQUALS = re.compile("[=＝]")
SLASH = re.compile("[/／]")
"""Between a label and its words, and between words; a Chinese keyboard writes the wide ones."""

LabelWords = str | Mapping[str, str | Sequence[str]]
"""The words of each label: `positive=great/good,negative=bad`, or the same as a dict."""
USUAL_PATTERNS = {"en": "{text} It was [MASK].", "zh": "{text} 总之很[MASK]。"}
WORDS = {"en": "positive=great,negative=terrible", "zh": "好评=好,差评=差"}
"""An example of words for labels, by the language of the labels or texts."""


@dataclass(frozen=True)
class PromptConfig(ClassifyConfig):
    pattern: str = ""
    """The text with a question around it: {text} and {second} are the row's texts, [MASK] is the word to guess. By
    default `{text} It was [MASK].`, or `{text} 总之很[MASK]。` if the labels' words are Chinese."""
    label_words: str = ""
    """The words of each label: positive=great,negative=terrible; several words of one label: positive=great/good."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind != "one" or len(self.label_columns) > 1 or self.head != "linear":
            raise BadConfig("A prompt chooses one name of one label column; it needs kind=one.")
        slots = SLOT.findall(self.sentence)
        has_both = slots.count(TEXT) == 1 and slots.count(MASK) == 1
        if not has_both or slots.count(SECOND) > 1:
            raise BadConfig(
                f"A pattern has {TEXT} once, {MASK} once, and {SECOND} at most once; it is '{self.pattern}'."
            )
        words_by_label(self.label_words)

    @property
    def sentence(self) -> str:
        """The pattern, or the usual one for the language of the labels' words."""
        if self.pattern:
            return ANY_MASK.sub(MASK, self.pattern)
        words_of_labels = words_by_label(self.label_words).values()
        all_words = " ".join(chain.from_iterable(words_of_labels))
        return USUAL_PATTERNS[language_of(all_words)]


def example_of(texts: str | Iterable[str]) -> str:
    """A pattern and words for labels, as a message suggests them to someone with labels or texts like these."""
    language = language_of(texts)
    return f"`pattern='{USUAL_PATTERNS[language]}'` and {words_example(texts)}"


def words_example(texts: str | Iterable[str]) -> str:
    """The words of labels alone."""
    return f"`label_words='{WORDS[language_of(texts)]}'`"


def words_by_label(text: str) -> dict[str, tuple[str, ...]]:
    """`positive=great/good,negative=bad` as a mapping; raises for any other form."""
    found: dict[str, tuple[str, ...]] = {}
    if not text:
        return found
    for part in _parts_of_labels(text):
        label, *rest = EQUALS.split(part, maxsplit=1)
        label = label.strip()
        words = [word.strip() for word in SLASH.split("".join(rest))]
        words = [word for word in words if word]
        if not label or not words or label in found:
            raise BadConfig(
                f"'{part.strip()}' does not give words to a label; write {example_of(text)}, each label once."
            )
        found[label] = tuple(words)
    return found


def _parts_of_labels(text: str) -> list[str]:
    """The text cut at commas. A wide one may belong to a label: it cuts only what gives words on both sides of it."""
    parts: list[str] = []
    for part in text.split(","):
        pieces = part.split("，")
        has_words = all(EQUALS.search(piece) for piece in pieces)
        parts += pieces if has_words else [part]
    return parts


def words_as_text(words: LabelWords) -> str:
    """`{"positive": ["great", "good"]}` as `positive=great/good`; a text stays as it is."""
    if isinstance(words, str):
        return words
    parts = []
    for label, given in words.items():
        joined = given if isinstance(given, str) else "/".join(given)
        parts.append(f"{label}={joined}")
    return ",".join(parts)


@dataclass(frozen=True)
class PromptReader(ClassifyReader):
    config: PromptConfig


class PromptHead(ClassifyHead):
    """The masked-LM head of the model, for a few words only."""

    name = "prompt"
    config: PromptConfig
    word_ids_W: Tensor
    """The tokens of all words, label after label; known once a text was encoded."""
    owners_W: Tensor
    """The label of each word."""
    prior_T: Tensor
    """What is subtracted from the scores: those of the pattern without a text."""

    def __init__(self, config: PromptConfig, encoder: Encoder, *, labels: Labels) -> None:
        super().__init__(config, encoder, labels=labels)
        # A prompt has no layer over a pooled vector.
        self.head = nn.Identity()  # type: ignore[assignment]
        (names,) = labels.values()
        self.words = _words_of(names, config)
        num_words = [len(words) for words in self.words]
        shape = encoder.config
        self.vocabulary = VocabularyHead(
            encoder.width,
            encoder.vocab_size,
            table_width=encoder.table_width,
            activation_name=getattr(shape, "activation", "gelu"),
            norm_eps=getattr(shape, "norm_eps", 1e-12),
        )
        initialise(self.vocabulary, std=encoder.init_std)
        owners_W = torch.repeat_interleave(torch.arange(len(names)), torch.tensor(num_words))
        self.register_buffer("owners_W", owners_W, persistent=False)
        self.register_buffer("word_ids_W", torch.zeros(sum(num_words), dtype=torch.long), persistent=False)
        self.register_buffer("prior_T", torch.zeros(len(names)))
        self._mask_id = 0

    def start_from(self, goals: Mapping[str, Goal]) -> None:
        trained = _trained_vocabulary(goals)
        if trained is None:
            raise Unsupported(
                "This model has no masked-LM head, so it cannot guess the word of a prompt; use `few='contrast'`."
            )
        self.vocabulary.load_state_dict(trained.state_dict())

    @torch.no_grad()
    def calibrate_prompt(self, encoder: Encoder, tokenizer: Tokenizer) -> None:
        """Calibrates (Zhao et al. 2021): the scores of the pattern without a text are what its words get anyway."""
        num_texts = 1 + (SECOND in self.config.sentence)
        empty = Example(("",) * num_texts)
        [item] = self.encode([empty], tokenizer, max_length=encoder.max_positions, training=False)
        batch = pack_windows(item.windows)
        with evaluating(encoder, self):
            scores_1T = self.scores(encoder(batch), batch)
        self.prior_T.add_(scores_1T[0])

    # Sequences

    def encode(self, examples: Examples, tokenizer: Tokenizer, *, max_length: int, training: bool) -> list[Item]:
        self._find_tokens(tokenizer)
        pieces = self._pattern_pieces(tokenizer)
        room = self._room(pieces, tokenizer, max_length=max_length)
        items = []
        for example, encoded in zip(examples, encoded_texts(examples, tokenizer), strict=True):
            texts = [encoding.ids for encoding in encoded]
            items.append(self._item(example, texts, pieces, room=room, tokenizer=tokenizer))
        return items

    def text_places(self, num_tokens: Sequence[int], tokenizer: Tokenizer, *, max_length: int) -> list[tuple[int, int]]:
        """Where the texts of an example are in its sequence, by their numbers of tokens: (first position, tokens)."""
        pieces = self._pattern_pieces(tokenizer)
        room = self._room(pieces, tokenizer, max_length=max_length)
        kept = self._kept(num_tokens, room=room)
        starts: dict[str, int] = {}
        position = len(tokenizer.vocab.frame.opening)
        for piece in pieces:
            if isinstance(piece, str):
                starts[piece] = position
                position += kept[piece]
            else:
                position += len(piece)
        return [(starts[slot], size) for slot, size in kept.items()]

    def _room(self, pieces: Sequence[np.ndarray | str], tokenizer: Tokenizer, *, max_length: int) -> int:
        """How many tokens the texts may have."""
        room = max_length - tokenizer.vocab.frame.size(1)
        for piece in pieces:
            if isinstance(piece, np.ndarray):
                room -= len(piece)
        if room < 1:
            raise BadConfig(f"The pattern '{self.config.sentence}' leaves no room for a text in {max_length} tokens.")
        return room

    def _kept(self, num_tokens: Sequence[int], *, room: int) -> dict[str, int]:
        """How many tokens of each text are read, by the text's place in the pattern."""
        has_second = SECOND in self.config.sentence
        if len(num_tokens) != 1 + has_second:
            needs = "two texts" if has_second else "one text"
            raise BadConfig(f"The pattern '{self.config.sentence}' takes {needs}; a row has {len(num_tokens)}.")
        if not has_second:
            return {TEXT: min(num_tokens[0], room)}
        first, second = shorten(num_tokens[0], num_tokens[1], room)
        return {TEXT: first, SECOND: second}

    def _item(
        self,
        example: Example,
        texts: Sequence[np.ndarray],
        pieces: Sequence[np.ndarray | str],
        *,
        room: int,
        tokenizer: Tokenizer,
    ) -> Item:
        """The pattern with an example's texts, which are cut to fit."""
        kept = self._kept([len(text) for text in texts], room=room)
        cut_texts: dict[str, np.ndarray] = {}
        for text, (slot, size) in zip(texts, kept.items(), strict=True):
            cut_texts[slot] = text[:size]
        filled = []
        for piece in pieces:
            ids = cut_texts[piece] if isinstance(piece, str) else piece
            filled.append(ids)
        num_tokens = sum(len(text) for text in texts)
        made = window(tokenizer.vocab, np.concatenate(filled))
        return Item(example, (made,), num_tokens, num_tokens - sum(kept.values()))

    def _pattern_pieces(self, tokenizer: Tokenizer) -> list[np.ndarray | str]:
        """The pattern as tokens and the names of texts, in order."""
        pieces: list[np.ndarray | str] = []
        for part in SLOT.split(self.config.sentence):
            if part == MASK:
                pieces.append(np.array([self._mask_id]))
            elif part in (TEXT, SECOND):
                pieces.append(part)
            elif part.strip():
                # A space before a mask or a text belongs to what follows.
                encoding = tokenizer.encode(part.rstrip())
                pieces.append(np.asarray(encoding.ids))
        return pieces

    def _find_tokens(self, tokenizer: Tokenizer) -> None:
        """The tokens of the mask and of the labels' words."""
        self._mask_id = int(tokenizer.vocab.mask)
        ids = []
        for words in self.words:
            ids += [_token_of(word, tokenizer) for word in words]
        self.word_ids_W.copy_(torch.tensor(ids))

    # Scores

    def mask_positions(self, batch: Batch) -> Tensor:
        """Where the mask of each sequence is; a text has none, because special tokens are plain text there."""
        return torch.nonzero(batch.ids_N == self._mask_id)[:, 0]

    def scores(self, states: States, batch: Batch) -> Tensor:
        """The scores of every sequence, each of which has one mask."""
        masks_B = self.mask_positions(batch)
        masks_BD = self.dropout(states.last_ND.index_select(0, masks_B))
        hidden_BE = self.vocabulary.hidden(masks_BD)
        words_WE = states.table_VD.index_select(0, self.word_ids_W)
        bias_W = self.vocabulary.bias.index_select(0, self.word_ids_W)
        scores_BW = hidden_BE @ words_WE.T.to(hidden_BE.dtype) + bias_W
        # The mean over the words of each label.
        num_labels = len(self.prior_T)
        zeros_BT = scores_BW.new_zeros(len(scores_BW), num_labels)
        totals_BT = zeros_BT.index_add(1, self.owners_W, scores_BW)
        counts_T = torch.bincount(self.owners_W, minlength=num_labels)
        return totals_BT / counts_T - self.prior_T


def _words_of(names: Sequence[str], config: PromptConfig) -> list[tuple[str, ...]]:
    """The words of each label; raises unless every label has some."""
    words = words_by_label(config.label_words)
    if not words:
        raise BadConfig(f"A prompt needs words for its labels ({', '.join(names)}), such as {example_of(names)}.")
    for name in names:
        if name not in words:
            raise BadConfig(f"No words are given for the label '{name}'; the labels are {', '.join(names)}.")
    for name in words:
        if name not in names:
            raise BadConfig(f"There are words for '{name}', which is no label; the labels are {', '.join(names)}.")
    return [words[name] for name in names]


def _token_of(word: str, tokenizer: Tokenizer) -> int:
    """The one token of a word; raises if it has several, because there is one mask."""
    # A piece of byte-level BPE or SentencePiece contains the space before it.
    space = " " if tokenizer.pieces_hold_spaces else ""
    ids = tokenizer.encode(f"{space}{word}").ids
    if len(ids) != 1:
        raise BadConfig(f"The word '{word}' is {len(ids)} tokens of this model; a label's word must be one token.")
    token = int(ids[0])
    if token == tokenizer.vocab.unk:
        raise BadConfig(f"This model does not know the word '{word}'; choose another one for its label.")
    return token


def _trained_vocabulary(goals: Mapping[str, Goal]) -> VocabularyHead | None:
    """The masked-LM head of the encoder itself; that of a generator reads other states."""
    for goal in goals.values():
        corrective = getattr(goal, "corrective", None)
        if corrective is not None and not getattr(goal, "fills_masks_itself", False):
            continue
        head = getattr(corrective or goal, "head", None)
        if isinstance(head, VocabularyHead):
            return head
    return None


PROMPT = Task(PromptConfig, PromptReader, PromptHead, ClassifyScorer, untrained={})
