"""The settings of tagging, and the reader of tagged sentences: which tags there are, and which sequences are legal.

In: files of tagged words. Out: sentences, the tags, and what is wrong with a row.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from firth import metrics
from firth.config import check_shares
from firth.errors import BadConfig, BadInput
from firth.nn import schemes
from firth.tasks import conll, segmenting
from firth.tasks.conll import Sentence
from firth.tasks.task import (
    Balance,
    Examples,
    Labels,
    Reader,
    TaskConfig,
    index_of,
)
from firth.types import Example, Problem


@dataclass(frozen=True)
class TagConfig(TaskConfig):
    format: Literal["columns", "words", "tagged"] = "columns"
    """One word and its tag a line, or one sentence a line: words with spaces between (to segment) or word/tag."""
    drop_tags: bool = False
    """With format=words: whether words end in a slash and a tag, which is dropped."""
    word_column: int = 1
    """The column of the word, counted from 1."""
    tag_column: int = -1
    """The column of the tag, counted from 1; -1 is the last."""
    word_index: bool = False
    """Whether a digit after each character (its place in its word) is to be dropped."""
    scheme: Literal["guess", "BIO", "BIOES", "BMES", "IO", "none"] = "guess"
    """How tags mark entities; none if they do not."""
    repair: bool = False
    """Give every entity legal tags: I- at its start becomes B- (the older form of BIO), M- at its end E-."""
    forbidden: tuple[str, ...] = ()
    """More pairs of tags that may not follow one another, such as 'O I-PER'; ^ is the start, $ the end."""
    tagger: Literal["softmax", "hmm", "memm", "crf"] = "softmax"
    """Each word by itself, counted, or with learned scores for neighbours: normalised by step or by sentence."""
    head: Literal["auto", "linear", "lstm", "none"] = "auto"
    """What turns states into scores: a linear layer, one above a BiLSTM, or none if they are scores (features).
    auto is lstm if the encoder does not look at neighbours, as word vectors do not, and linear otherwise."""
    lstm_width: int = 128
    """Width of each direction of the BiLSTM."""
    unit: Literal["guess", "word", "character", "space"] = "guess"
    """What a raw text is cut into; space cuts at spaces only."""
    dropout: float = 0.1
    """Share of the states set to zero in training."""
    solver: Literal["auto", "loop", "lbfgs", "counts"] = "auto"
    """How weights are found: the usual loop, or for features L-BFGS (memm, crf) and counting (hmm)."""
    l1: float = 0.0
    """With L-BFGS: the factor of the sum of absolute weights; many weights become zero."""
    l2: float = 0.1
    """With L-BFGS: the factor of the sum of squared weights."""
    iterations: int = 100
    """With L-BFGS: steps at most."""
    pairs: Literal["auto", "all", "seen"] = "auto"
    """With L-BFGS: which pairs of feature and tag have a weight: all, or only those that occur in training, which
    needs a fraction of the memory; auto takes all unless they are more than 16.7 million."""
    smoothing: float = 0.01
    """With counting: added to every count that the rules allow."""
    known_words: int = 0
    """Different words of segmented training text; set by training, to tell known from unknown words in scores."""

    def __post_init__(self) -> None:
        if self.word_column < 1 or self.tag_column == 0:
            raise BadConfig("Columns are counted from 1; tag_column=-1 is the last.")
        smallest_factor = min(self.l1, self.l2, self.smoothing)
        smallest_count = min(self.iterations, self.lstm_width)
        if smallest_factor < 0 or smallest_count < 1:
            raise BadConfig("l1, l2 and smoothing must be at least 0, iterations and lstm_width at least 1.")
        check_shares(dropout=self.dropout)


@dataclass(frozen=True)
class TagReader(Reader):
    config: TagConfig
    endings = (".conll", ".bio", ".iob", ".bmes", ".tsv")

    @property
    def between_rows(self) -> str:
        return "" if self.config.format in ("words", "tagged") else "a blank line between sentences"

    def read(self, path: Path, problems: list[Problem], *, labelled: bool = True) -> list[Sentence]:
        config = self.config
        if config.format == "words":
            return list(conll.read_words(path, problems, drop_tags=config.drop_tags))
        if config.format == "tagged":
            sentences = conll.read_tagged(path, problems, labelled=labelled)
        else:
            sentences = conll.read_columns(
                path,
                problems,
                word_column=config.word_column,
                tag_column=config.tag_column,
                word_index=config.word_index,
                labelled=labelled,
            )
        found = list(sentences)
        if config.repair and labelled:
            return _repaired(found, config.scheme)
        return found

    def learn(self, examples: Examples) -> TagConfig:
        """The config with the scheme of the tags, the unit that texts are cut into, and the number of known words."""
        tags = sorted(_all_tags(examples))
        scheme = self.config.scheme
        if scheme == "guess":
            scheme = schemes.guess_scheme(tags)
        unit = self.config.unit
        if unit == "guess":
            unit = self._guess_unit(examples)
        num_known = 0
        if set(tags) <= segmenting.MARKS:
            num_known = len(segmenting.hashes(segmenting.gold_words(examples)))
        return replace(self.config, scheme=scheme, unit=unit, known_words=num_known)

    def _guess_unit(self, examples: Examples) -> Literal["word", "character", "space"]:
        if self.config.format == "tagged":
            return "space"
        is_single = []
        for example in examples:
            if isinstance(example, Sentence):
                is_single += [end - start == 1 for start, end in example.words]
        # Words of one character are Chinese text, cut into characters.
        share_of_single = float(np.mean(is_single))
        return "character" if share_of_single > 0.9 else "word"

    def labels_of(self, examples: Examples) -> Labels:
        tags = _all_tags(examples)
        if len(tags) < 2:
            raise BadInput(
                f"all words have the same tag ({', '.join(tags)}), so there is nothing to learn; add sentences with "
                "others."
            )
        # A tag's partner may be missing from few rows (B- without any I-). It is added, so that the set is complete.
        complete = set(tags)
        for tag in tags:
            complete.update(schemes.partners(tag, self.config.scheme))
        if self.config.format == "words":
            complete |= segmenting.MARKS
        return {"tag": tuple(sorted(complete))}

    def problems(self, examples: Examples, labels: Labels) -> Iterator[Problem]:
        (tags,) = labels.values()
        index = index_of(tags)
        legal = schemes.legal_transitions(tags, self.config.scheme, forbidden=self.config.forbidden)
        for example in examples:
            unknown = [place for place, tag in enumerate(example.gold) if tag not in index]
            if unknown:
                place = unknown[0]
                what = f"the tag '{example.gold[place]}' never occurs in training"
                problem = self._problem_at(place, example, what, "add training rows with it or remove the sentence")
                yield replace(problem, is_unknown=True)
                continue
            # The first place where the scheme is broken, if there is one.
            tags_N = torch.tensor([index[tag] for tag in example.gold])
            illegal = legal.first_break(tags_N)
            if illegal is not None:
                what, remedy = self._why_illegal(example.gold, illegal)
                yield self._problem_at(illegal, example, what, remedy)

    def _why_illegal(self, tags: Sequence[str], place: int) -> tuple[str, str]:
        """What is wrong with the tag at `place`, or with the end of the sentence, and the remedy."""
        before = tags[place - 1] if place else schemes.START
        tag = tags[place] if place < len(tags) else schemes.END
        forbidden_pairs = [pair.split() for pair in self.config.forbidden]
        if [before, tag] in forbidden_pairs:
            remedy = "correct the tags, or remove the pair from tasks.tag.forbidden"
            return f"word {min(place + 1, len(tags))}: '{before} {tag}' is a forbidden pair", remedy
        remedy = "correct the tags, or fine-tune with tasks.tag.repair=true or tasks.tag.scheme=none"
        if place == len(tags):
            _, kind = metrics.split_tag(before)
            return f"the sentence ends inside {kind or 'a word'} (its last tag is {before})", remedy
        shown = before if place else "the start"
        return f"word {place + 1}: {tag} after {shown} is illegal in {self.config.scheme}", remedy

    def _problem_at(self, place: int, example: Example, what: str, remedy: str) -> Problem:
        """A problem with the tag of the word at `place`."""
        line = example.row
        if self.config.format == "columns":
            # Each word has its own line; the end of the sentence counts as its last word.
            line += min(place, len(example.gold) - 1)
        return Problem(line, what, remedy, example_row=example.row)

    def balance(self, examples: Examples) -> Balance:
        counts: Counter[str] = Counter()
        for example in examples:
            counts.update(example.gold)
        return {"tag": dict(sorted(counts.items()))}

    def example(self, value: object) -> Example:
        given = value.get("words", value.get("text")) if isinstance(value, Mapping) else value
        if isinstance(given, str):
            return conll.split(given, unit=self.config.unit)
        units = list(given) if isinstance(given, Iterable) else [None]
        words = [word for word in units if isinstance(word, str) and word.strip()]
        if len(words) < len(units):
            raise BadInput(f"An input must be a text or a list of words; it is {value!r:.80}.")
        return conll.sentence(words)


def _all_tags(examples: Examples) -> set[str]:
    tags: set[str] = set()
    for example in examples:
        tags.update(example.gold)
    return tags


def _repaired(sentences: list[Sentence], scheme: str) -> list[Sentence]:
    """The sentences with legal tags; a file of I- alone is taken for the older form of BIO."""
    if scheme == "guess":
        guessed = schemes.guess_scheme(sorted(_all_tags(sentences)))
        scheme = "BIO" if guessed == "IO" else guessed
    if scheme in ("IO", "none"):
        return sentences
    return [conll.repaired(sentence, scheme) for sentence in sentences]
