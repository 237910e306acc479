"""Tag every word of a text: the state of its first piece (Devlin et al. 2018, section 5.3), or the sum of features
written by hand -> softmax, HMM, MEMM or CRF.

In: sentences of tagged words. Out: one tag a word, of the best legal sequence, and the entities (or words) they mark,
with their places in the text. A text longer than the model is read in overlapping windows; each word takes its scores
from the window that shows most of its surroundings, and the whole text is decoded as one chain.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from firth import metrics
from firth.config import check_shares, resolve
from firth.data.items import Item, pack_items
from firth.errors import BadConfig, BadInput
from firth.nn import schemes, taggers
from firth.nn.heads import scoring_layer
from firth.nn.recurrent import bidirectional
from firth.tasks import conll, segmenting
from firth.tasks.conll import Sentence, spelled
from firth.tasks.task import (
    Balance,
    Details,
    Examples,
    Figures,
    Head,
    Items,
    Labels,
    Predictions,
    Reader,
    Scorer,
    Task,
    TaskConfig,
    gold_labels,
    index_of,
    most_frequent,
    predicted_labels,
)
from firth.tasks.word_windows import feature_items, in_word_order, word_item, word_scores
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
        lengths = []
        for example in examples:
            if isinstance(example, Sentence):
                lengths += [end - start for start, end in example.words]
        # Words of one character are Chinese text, cut into characters.
        share_of_single = float(np.mean(np.array(lengths) == 1))
        return "character" if share_of_single > 0.9 else "word"

    def labels_of(self, examples: Examples) -> Labels:
        tags = _all_tags(examples)
        if len(tags) < 2:
            raise BadInput(f"All words have the same tag ({', '.join(tags)}); there is nothing to learn.")
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
                yield self._problem_at(place, example, what, "add training rows with it or remove the sentence")
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
        counts = Counter(tag for example in examples for tag in example.gold)
        return {"tag": dict(sorted(counts.items()))}

    def example(self, value: object) -> Example:
        if isinstance(value, Mapping):
            value = value.get("words", value.get("text"))
        if isinstance(value, str):
            return conll.split(value, unit=self.config.unit)
        given = list(value) if isinstance(value, Iterable) else [None]
        words = [word for word in given if isinstance(word, str) and word.strip()]
        if len(words) < len(given):
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


class TagHead(Head):
    name = "tag"
    config: TagConfig
    known_words_U: Tensor
    """Hashes of the words of segmented training text; saved, because scores tell known words from unknown ones."""

    def __init__(self, config: TagConfig, encoder: Encoder, *, labels: Labels) -> None:
        super().__init__(config, encoder, labels=labels)
        (self.tags,) = labels.values()
        self.segments = set(self.tags) <= segmenting.MARKS
        width = encoder.width
        self.lstm = None
        if config.head == "lstm":
            self.lstm = nn.LSTM(width, config.lstm_width, bidirectional=True)
            width = 2 * config.lstm_width
        legal = schemes.legal_transitions(self.tags, config.scheme, forbidden=config.forbidden)
        tagger_class = resolve(taggers.TABLE, config.tagger, "tagger")
        self.tagger: taggers.Tagger = tagger_class(width, legal, linear=config.head != "none")
        self.layer = scoring_layer(encoder, encoder.token_layer if self.lstm is None else "none")
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("known_words_U", torch.zeros(config.known_words, dtype=torch.long))

    # Sequences

    def encode(self, examples: Examples, tokenizer: Tokenizer, *, max_length: int, training: bool) -> list[Item]:
        sentences = [example for example in examples if isinstance(example, Sentence)]
        if isinstance(tokenizer, Templates):
            return feature_items(sentences, tokenizer)
        # Spaces between all words keep a token from covering two of them.
        shown = sentences
        if self.segments or isinstance(tokenizer, Words):
            shown = [spelled(sentence) for sentence in sentences]
        encodings = tokenizer.encode_batch([sentence.texts[0] for sentence in shown])
        items = []
        for sentence, shown_sentence, encoding in zip(sentences, shown, encodings, strict=True):
            item = word_item(shown_sentence, encoding, tokenizer.vocab, max_length=max_length)
            items.append(replace(item, example=sentence))
        return items

    def batch(self, items: Items) -> Batch:
        packed, _ = pack_items(items)
        index = index_of(self.tags)
        window_starts = iter(packed.bounds_B1.tolist())
        rows: list[np.ndarray] = []
        tags: list[int] = []
        for item in items:
            # The rows of the words' first pieces, counted from the start of the batch.
            rows_in_batch = [window.facts + next(window_starts) for window in item.windows]
            rows.append(in_word_order(item, rows_in_batch))
            tags += [index[tag] for tag in item.example.gold]
        word_bounds = np.cumsum([0, *map(len, rows)]).astype(np.int32)
        targets = {
            "rows_W": torch.from_numpy(np.concatenate(rows)),
            "tags_W": torch.tensor(tags, dtype=torch.long),
            "words_B1": torch.from_numpy(word_bounds),
        }
        return replace(packed, targets=targets)

    # Learning

    def loss(self, states: States, batch: Batch) -> Loss:
        tags_W = batch.targets["tags_W"]
        states_ND = self._tagger_inputs(states, batch)
        words_WD = self.dropout(states_ND.index_select(0, batch.targets["rows_W"]))
        total = self.tagger.loss(words_WD, tags_W, bounds_B1=batch.targets["words_B1"])
        # Without the chain: counting the Viterbi path's right tags would cost too much in every step.
        best_W = self.tagger.unary(words_WD.detach()).argmax(1)
        return Loss({self.name: total}, {f"{self.name}_correct": (best_W == tags_W).sum()})

    def _tagger_inputs(self, states: States, batch: Batch) -> Tensor:
        """The states that the tagger scores: the encoder's, or those of the BiLSTM above them."""
        if self.lstm is None:
            inputs_ND: Tensor = self.layer(states.last_ND)
            return inputs_ND
        return bidirectional(self.lstm, self.dropout(states.last_ND), batch.bounds_B1)

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {self.name: len(batch.targets["tags_W"])}

    def before_training(self, examples: Examples) -> None:
        """Keeps the words of segmented text."""
        if not self.config.known_words:
            return
        known = segmenting.hashes(segmenting.gold_words(examples))[: self.config.known_words]
        # Held-out rows may leave fewer words than the file has.
        self.known_words_U.zero_()[: len(known)] = torch.from_numpy(known)

    # Predicting

    def outputs(self, states: States, batch: Batch) -> list[np.ndarray]:
        scores_NT: Tensor = self.tagger.unary(self._tagger_inputs(states, batch)).float()
        return np.split(scores_NT.cpu().numpy(), batch.bounds_B1[1:-1].tolist())

    def decide(self, item: Item, outputs: list[np.ndarray]) -> Prediction:
        return self.decide_all([item], [outputs])[0]

    def decide_all(self, items: Items, outputs: Sequence[list[np.ndarray]]) -> list[Prediction]:
        scores = [word_scores(item, arrays) for item, arrays in zip(items, outputs, strict=True)]
        predictions: list[Prediction] = []
        if not scores:
            return predictions
        # Items are decoded together until they have CHUNK words.
        chunk_numbers = np.cumsum([len(item_scores) for item_scores in scores]) // CHUNK
        chunk_starts = np.flatnonzero(np.diff(chunk_numbers)) + 1
        chunk_bounds = [0, *chunk_starts.tolist(), len(scores)]
        for start, end in pairwise(chunk_bounds):
            predictions += self._decode(items[start:end], scores[start:end])
        return predictions

    def _decode(self, items: Items, scores: Sequence[np.ndarray]) -> list[Prediction]:
        """The predictions of some items, from the scores of their words."""
        bounds = np.cumsum([0, *map(len, scores)])
        chain_bounds = self.chain_bounds(items, bounds)
        device = self.known_words_U.device
        scores_NT = torch.from_numpy(np.concatenate(scores)).to(device)
        bounds_B1 = torch.from_numpy(chain_bounds.astype(np.int32)).to(device)
        decoded = self.tagger.decode_unary(scores_NT, bounds_B1)
        tags = np.split(decoded.tags_N.cpu().numpy(), bounds[1:-1])
        confidences = np.split(decoded.confidence_N.float().cpu().numpy(), bounds[1:-1])
        predictions = []
        for item, item_tags, confidence in zip(items, tags, confidences, strict=True):
            predictions.append(self.prediction(item, item_tags, confidence))
        return predictions

    def chain_bounds(self, items: Items, bounds: np.ndarray) -> np.ndarray:
        """Where each chain of tags begins: with each text, and in a segmenter also after each space."""
        if not self.segments:
            return bounds
        return np.union1d(bounds, segmenting.gaps(items, bounds))

    def prediction(self, item: Item, tags: np.ndarray, confidence: np.ndarray) -> Prediction:
        """A text's tags as a prediction; `confidence` has a probability for each word."""
        example = item.example
        assert isinstance(example, Sentence)
        names = tuple(self.tags[i] for i in tags)
        spans = self._spans(example, names, confidence)
        if self.segments:
            text: str | None = " ".join(span.text for span in spans)
        elif self.config.scheme == "none":
            text = segmenting.with_tags(example, names)
        else:
            text = None if spans else ""
        probability = float(confidence.mean()) if len(confidence) else 1.0
        return Prediction(names, probability, spans=tuple(spans), text=text)

    def _spans(self, example: Sentence, tags: Sequence[str], confidence: np.ndarray) -> list[Span]:
        """The entities (or words) that tags mark; each is as likely as its least likely tag."""
        if self.config.scheme == "none":
            return []
        spans = []
        for kind, first, last in metrics.entities(tags, self.config.scheme):
            start = example.words[first][0]
            end = example.words[last - 1][1]
            text = example.texts[0][start:end]
            probability = float(confidence[first:last].min())
            spans.append(Span(kind, start, end, text, probability))
        return spans


@dataclass(frozen=True)
class TagScorer(Scorer):
    config: TagConfig
    known_words_U: np.ndarray | None = None
    """Hashes of the words of segmented training text, if there are any."""

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

    def score(self, predictions: Predictions, examples: Examples) -> Figures:
        gold = gold_labels(examples)
        predicted = predicted_labels(predictions)
        accuracy = metrics.token_accuracy(gold, predicted)
        if self.config.scheme == "none":
            return {"accuracy": accuracy}
        if set(self.tags) <= segmenting.MARKS:
            sentences = [example for example in examples if isinstance(example, Sentence)]
            figures = segmenting.score(sentences, predicted, known=self.known_words_U)
            return {**figures, "accuracy": accuracy}
        row = metrics.entity_f1(gold, predicted, scheme=self.config.scheme).micro
        return {"f1": row.f1, "precision": row.precision, "recall": row.recall, "accuracy": accuracy}

    def details(self, predictions: Predictions, examples: Examples) -> Details:
        gold = gold_labels(examples)
        predicted = predicted_labels(predictions)
        if self.config.scheme == "none":
            gold_tags = list(chain.from_iterable(gold))
            predicted_tags = list(chain.from_iterable(predicted))
            table = metrics.f1(gold_tags, predicted_tags, labels=self.tags)
        else:
            table = metrics.entity_f1(gold, predicted, scheme=self.config.scheme)
        return {"per_label": metrics.as_rows(table)}

    def baseline(self, train: Examples, examples: Examples) -> list[Prediction]:
        if self.config.scheme == "BMES" and "S" in self.tags:
            # The most frequent tag, B, would make no legal sequence.
            tag = "S"
        else:
            tag = most_frequent(tag for example in train for tag in example.gold)
        return [Prediction((tag,) * len(example.gold)) for example in examples]

    def error(self, prediction: Prediction, example: Example) -> float:
        """The share of wrong tags."""
        if not example.gold:
            return 0.0
        gold = np.array(example.gold)
        predicted = np.array(prediction.label)
        return float(np.mean(gold != predicted))


TAG = Task(TagConfig, TagReader, TagHead, TagScorer)
