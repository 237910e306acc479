"""Tag every word of a text: the state of its first piece (Devlin et al. 2018, section 5.3), or the sum of features
written by hand -> softmax, HMM, MEMM or CRF.

In: sentences of tagged words. Out: one tag a word, of the best legal sequence, and the entities (or words) they mark,
with their places in the text. A text longer than the model is read in overlapping windows; each word takes its scores
from the window that shows most of its surroundings, and the whole text is decoded as one chain.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from firth import metrics
from firth.config import check_shares, resolve
from firth.data.items import Item, pack_items
from firth.errors import BadConfig, BadInput
from firth.nn import schemes, taggers
from firth.nn.recurrent import both_ways
from firth.tasks import conll, segmenting
from firth.tasks.conll import Sentence, spelled
from firth.tasks.task import Balance, Details, Head, Labels, Reader, Scorer, Task, TaskConfig
from firth.tasks.word_windows import feature_items, in_word_order, word_item
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers import Tokenizer
from firth.tokenizers.templates import Templates
from firth.tokenizers.word_list import Words
from firth.types import Example, Prediction, Problem, Span

CHUNK = 1 << 16
"""Words decoded at once."""


@dataclass(frozen=True)
class TagConfig(TaskConfig):
    format: Literal["columns", "words", "tagged"] = "columns"
    """A word and its tag a line, or a sentence a line: words parted by spaces (to segment) or word/tag (to tag)."""
    drop_tags: bool = False
    """Whether words parted by spaces end in a slash and a tag, which is dropped."""
    word_column: int = 1
    """The column of the word, counted from 1."""
    tag_column: int = -1
    """The column of the tag, counted from 1; -1 is the last."""
    word_index: bool = False
    """Whether a digit after each character (its place in its word) is to be dropped."""
    scheme: Literal["guess", "BIO", "BIOES", "BMES", "IO", "none"] = "guess"
    """How tags mark entities; none where they do not."""
    repair: bool = False
    """Give every entity legal tags: I- at its start becomes B- (the older form of BIO), M- at its end E-."""
    forbidden: tuple[str, ...] = ()
    """Pairs of tags that may not follow one another besides, such as 'O I-PER'; ^ is the start, $ the end."""
    tagger: Literal["softmax", "hmm", "memm", "crf"] = "softmax"
    """Each word by itself, counted, or with learned scores for neighbours: normalised by step or by sentence."""
    head: Literal["auto", "linear", "lstm", "none"] = "auto"
    """What makes scores of states: a linear layer, one above a BiLSTM, or none where they are scores (features).
    auto is lstm where the encoder looks at no neighbours, as word vectors do not, and linear elsewhere."""
    lstm_width: int = 128
    """Width of each direction of the BiLSTM."""
    unit: Literal["guess", "word", "character", "space"] = "guess"
    """What a raw text is cut into; at spaces only where words are given."""
    dropout: float = 0.1
    """Share of the states set to zero in training."""
    solver: Literal["auto", "loop", "lbfgs", "counts"] = "auto"
    """How weights are found: the usual loop, or for features L-BFGS (memm, crf) and counting (hmm)."""
    l1: float = 0.0
    """With L-BFGS: times the sum of absolute weights; many become zero."""
    l2: float = 0.1
    """With L-BFGS: times the sum of squared weights."""
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
        if min(self.l1, self.l2, self.smoothing) < 0 or min(self.iterations, self.lstm_width) < 1:
            raise BadConfig("l1, l2 and smoothing must be at least 0, iterations and lstm_width at least 1.")
        check_shares(dropout=self.dropout)


@dataclass(frozen=True)
class TagReader(Reader):
    config: TagConfig
    endings = (".conll", ".bio", ".iob", ".bmes", ".tsv")

    def read(self, path: Path, problems: list[Problem], *, labelled: bool = True) -> list[Sentence]:
        if self.config.format == "words":
            return list(conll.read_words(path, problems, drop_tags=self.config.drop_tags))
        if self.config.format == "tagged":
            found = list(conll.read_tagged(path, problems, labelled=labelled))
        else:
            columns = conll.read_columns(
                path,
                problems,
                word_column=self.config.word_column,
                tag_column=self.config.tag_column,
                word_index=self.config.word_index,
                labelled=labelled,
            )
            found = list(columns)
        return _repaired(found, self.config.scheme) if self.config.repair and labelled else found

    def learn(self, examples: Sequence[Example]) -> TagConfig:
        tags = sorted({tag for example in examples for tag in example.gold})
        scheme = schemes.guess_scheme(tags) if self.config.scheme == "guess" else self.config.scheme
        words = [end - start for e in examples if isinstance(e, Sentence) for start, end in e.words]
        single = float(np.mean(np.array(words) == 1))
        guess: Any = "space" if self.config.format == "tagged" else "character" if single > 0.9 else "word"
        known = len(segmenting.hashes(segmenting.gold_words(examples))) if set(tags) <= segmenting.MARKS else 0
        unit = guess if self.config.unit == "guess" else self.config.unit
        return replace(self.config, scheme=scheme, unit=unit, known_words=known)

    def labels_of(self, examples: Sequence[Example]) -> Labels:
        tags = {tag for example in examples for tag in example.gold}
        if len(tags) < 2:
            raise BadInput(f"All words have the same tag ({', '.join(tags)}); there is nothing to learn.")
        # A tag's partner may be missing from few rows (B- without any I-): it is added, so that the set is whole.
        whole = {partner for tag in tags for partner in schemes.partners(tag, self.config.scheme)}
        whole |= segmenting.MARKS if self.config.format == "words" else set()
        return {"tag": tuple(sorted(tags | whole))}

    def problems(self, examples: Sequence[Example], labels: Labels) -> Iterator[Problem]:
        (tags,) = labels.values()
        index = {tag: i for i, tag in enumerate(tags)}
        legal = schemes.legal_transitions(tags, self.config.scheme, forbidden=self.config.forbidden)
        for example in examples:
            strange = next((place for place, tag in enumerate(example.gold) if tag not in index), None)
            if strange is not None:
                what = f"the tag '{example.gold[strange]}' never occurs in training"
                remedy = "add training rows with it or remove the sentence"
                yield _problem_at(strange, example, self.config, what, remedy)
                continue
            place = legal.first_break(torch.tensor([index[tag] for tag in example.gold]))
            if place is not None:
                what, remedy = _illegal(example.gold, place, self.config)
                yield _problem_at(place, example, self.config, what, remedy)

    def balance(self, examples: Sequence[Example]) -> Balance:
        return {"tag": dict(sorted(Counter(tag for example in examples for tag in example.gold).items()))}

    def example(self, value: object) -> Example:
        if isinstance(value, Mapping):
            value = value.get("words", value.get("text"))
        if isinstance(value, str):
            return conll.split(value, unit=self.config.unit)
        words: list[Any] = list(value) if isinstance(value, Iterable) else [None]
        if all(isinstance(word, str) and word.strip() for word in words):
            return conll.sentence(words)
        raise BadInput(f"An input must be a text or a list of words; it is {value!r:.80}.")


class TagHead(Head):
    name = "tag"
    config: TagConfig

    def __init__(self, config: TagConfig, encoder: Encoder, *, labels: Labels) -> None:
        super().__init__(config, encoder, labels=labels)
        (self.tags,) = labels.values()
        legal = schemes.legal_transitions(self.tags, config.scheme, forbidden=config.forbidden)
        kind = resolve(taggers.TABLE, config.tagger, "tagger")
        has_lstm, width = config.head == "lstm", encoder.width
        self.lstm = nn.LSTM(width, config.lstm_width, bidirectional=True) if has_lstm else None
        width = 2 * config.lstm_width if has_lstm else width
        self.tagger: taggers.Tagger = kind(width, legal, linear=config.head != "none")
        self.dropout = nn.Dropout(config.dropout)
        self.segments = set(self.tags) <= segmenting.MARKS
        self.known_words_U: Tensor
        self.register_buffer("known_words_U", torch.zeros(config.known_words, dtype=torch.long))

    def encode(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, training: bool
    ) -> list[Item]:
        if isinstance(tokenizer, Templates):
            return feature_items([example for example in examples if isinstance(example, Sentence)], tokenizer)
        rows = [example for example in examples if isinstance(example, Sentence)]
        shown = [spelled(row) for row in rows] if self.segments or isinstance(tokenizer, Words) else rows
        encodings = tokenizer.encode_batch([row.texts[0] for row in shown])
        return [
            replace(word_item(seen, encoding, tokenizer.vocab, max_length=max_length), example=row)
            for row, seen, encoding in zip(rows, shown, encodings, strict=True)
        ]

    def batch(self, items: Sequence[Item]) -> Batch:
        packed, _ = pack_items(items)
        index = {tag: i for i, tag in enumerate(self.tags)}
        starts = iter(packed.bounds_B1.tolist())
        rows = [in_word_order(item, [w.facts + next(starts) for w in item.windows]) for item in items]
        tags = [index[tag] for item in items for tag in item.example.gold]
        bounds = np.cumsum([0, *map(len, rows)]).astype(np.int32)
        targets = {
            "rows_W": torch.from_numpy(np.concatenate(rows)),
            "tags_W": torch.tensor(tags, dtype=torch.long),
            "words_B1": torch.from_numpy(bounds),
        }
        return replace(packed, targets=targets)

    def loss(self, states: States, batch: Batch) -> Loss:
        words_WD = self.dropout(self._read(states, batch).index_select(0, batch.targets["rows_W"]))
        tags_W, bounds_B1 = batch.targets["tags_W"], batch.targets["words_B1"]
        total = self.tagger.loss(words_WD, tags_W, bounds_B1=bounds_B1)
        right = (self.tagger.unary(words_WD.detach()).argmax(1) == tags_W).sum()
        return Loss({self.name: total}, {f"{self.name}_correct": right})

    def _read(self, states: States, batch: Batch) -> Tensor:
        """The states the tagger scores."""
        if self.lstm is None:
            return states.last_ND
        return both_ways(self.lstm, self.dropout(states.last_ND), batch.bounds_B1)

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {self.name: len(batch.targets["tags_W"])}

    def before_training(self, examples: Sequence[Example]) -> None:
        if self.config.known_words:
            known = segmenting.hashes(segmenting.gold_words(examples))[: self.config.known_words]
            self.known_words_U.zero_()[: len(known)] = torch.from_numpy(known)

    def outputs(self, states: States, batch: Batch) -> list[np.ndarray]:
        scores_NT: Tensor = self.tagger.unary(self._read(states, batch)).float()
        return np.split(scores_NT.cpu().numpy(), batch.bounds_B1[1:-1].tolist())

    def decide(self, item: Item, outputs: list[np.ndarray]) -> Prediction:
        return self.decide_all([item], [outputs])[0]

    def decide_all(self, items: Sequence[Item], outputs: Sequence[list[np.ndarray]]) -> list[Prediction]:
        unary = [
            in_word_order(item, [scores[w.facts] for w, scores in zip(item.windows, arrays, strict=True)])
            for item, arrays in zip(items, outputs, strict=True)
        ]
        predictions: list[Prediction] = []
        if not unary:
            return predictions
        chunks = np.cumsum([len(scores) for scores in unary]) // CHUNK
        for chunk in np.split(np.arange(len(unary)), np.flatnonzero(np.diff(chunks)) + 1):
            predictions += self._decoded([items[i] for i in chunk], [unary[i] for i in chunk])
        return predictions

    def _decoded(self, items: Sequence[Item], unary: Sequence[np.ndarray]) -> list[Prediction]:
        bounds = np.cumsum([0, *map(len, unary)])
        parted = np.union1d(bounds, segmenting.gaps(items, bounds)) if self.segments else bounds
        device = self.known_words_U.device
        scores_NT = torch.from_numpy(np.concatenate(unary)).to(device)
        decoded = self.tagger.decode_unary(scores_NT, torch.from_numpy(parted.astype(np.int32)).to(device))
        tags = np.split(decoded.tags_N.cpu().numpy(), bounds[1:-1])
        sure = np.split(decoded.confidence_N.float().cpu().numpy(), bounds[1:-1])
        return [self.prediction(*row) for row in zip(items, tags, sure, strict=True)]

    def prediction(self, item: Item, tags: np.ndarray, sure: np.ndarray) -> Prediction:
        example, names = item.example, tuple(self.tags[i] for i in tags)
        assert isinstance(example, Sentence)
        spans = []
        for kind, first, last in metrics.entities(names, self.config.scheme) if self.config.scheme != "none" else ():
            start, end = example.words[first][0], example.words[last - 1][1]
            spans.append(Span(kind, start, end, example.texts[0][start:end], min(sure[first:last].tolist())))
        text = segmenting.with_tags(example, names) if self.config.scheme == "none" else None if spans else ""
        text = " ".join(span.text for span in spans) if self.segments else text
        return Prediction(names, float(sure.mean()) if len(sure) else 1.0, spans=tuple(spans), text=text)


@dataclass(frozen=True)
class TagScorer(Scorer):
    config: TagConfig
    known_words_U: np.ndarray | None = None
    """Hashes of the words of segmented training text, if it is known."""

    @classmethod
    def of(cls, head: Head) -> Self:
        assert isinstance(head, TagHead)
        return cls(head.config, head.labels, head.known_words_U.cpu().numpy())

    @property
    def tags(self) -> tuple[str, ...]:
        (tags,) = self.labels.values()
        return tags

    @property
    def main_metric(self) -> str:
        return "accuracy" if self.config.scheme == "none" else "f1"

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, float]:
        gold, guessed = [e.gold for e in examples], [p.label for p in predictions]
        figures = {"accuracy": metrics.token_accuracy(gold, guessed)}
        if self.config.scheme == "none":
            return figures
        if set(self.tags) <= segmenting.MARKS:
            rows = [example for example in examples if isinstance(example, Sentence)]
            return {**segmenting.score(rows, guessed, known=self.known_words_U), **figures}
        row = metrics.entity_f1(gold, guessed, scheme=self.config.scheme).micro
        return {"f1": row.f1, "precision": row.precision, "recall": row.recall, **figures}

    def details(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> Details:
        gold, guessed = [e.gold for e in examples], [p.label for p in predictions]
        if self.config.scheme == "none":
            flat = [[tag for tags in side for tag in tags] for side in (gold, guessed)]
            return {"per_label": metrics.as_rows(metrics.f1(*flat, labels=self.tags))}
        return {"per_label": metrics.as_rows(metrics.entity_f1(gold, guessed, scheme=self.config.scheme))}

    def baseline(self, train: Sequence[Example], examples: Sequence[Example]) -> list[Prediction]:
        counts = Counter(tag for example in train for tag in example.gold)
        if self.config.scheme == "BMES" and "S" in self.tags:
            usual = "S"  # the most frequent tag, B, would make no legal sequence
        else:
            usual = min(counts, key=lambda tag: (-counts[tag], tag))
        return [Prediction((usual,) * len(example.gold)) for example in examples]

    def error(self, prediction: Prediction, example: Example) -> float:
        return float(np.mean([g != p for g, p in zip(example.gold, prediction.label, strict=True)] or [0.0]))


TAG = Task(TagConfig, TagReader, TagHead, TagScorer)


def _repaired(sentences: list[Sentence], scheme: str) -> list[Sentence]:
    """The sentences with legal tags; a file of I- alone is taken for the older form of BIO."""
    if scheme == "guess":
        guessed = schemes.guess_scheme(sorted({tag for sentence in sentences for tag in sentence.gold}))
        scheme = "BIO" if guessed == "IO" else guessed
    if scheme in ("IO", "none"):
        return sentences
    return [conll.repaired(sentence, scheme) for sentence in sentences]


def _illegal(tags: Sequence[str], place: int, config: TagConfig) -> tuple[str, str]:
    """What is wrong with the tag at `place`, or with the end of the sentence, and the remedy."""
    before = tags[place - 1] if place else schemes.START
    tag = tags[place] if place < len(tags) else schemes.END
    if [before, tag] in [pair.split() for pair in config.forbidden]:
        remedy = "mend the tags, or remove the pair from tasks.tag.forbidden"
        return f"word {min(place + 1, len(tags))}: '{before} {tag}' is a forbidden pair", remedy
    remedy = "mend the tags, or fine-tune with tasks.tag.repair=true or tasks.tag.scheme=none"
    if place == len(tags):
        _, kind = metrics.split_tag(before)
        return f"the sentence ends inside {kind or 'a word'} (its last tag is {before})", remedy
    shown = before if place else "the start"
    return f"word {place + 1}: {tag} after {shown} is illegal in {config.scheme}", remedy


def _problem_at(place: int, example: Example, config: TagConfig, what: str, remedy: str) -> Problem:
    """A problem with a word's tag; in a file of columns each word has its own line, the end counts as the last."""
    line = example.row + min(place, len(example.gold) - 1) if config.format == "columns" else example.row
    return Problem(line, what, remedy, example_row=example.row)
