"""Tag every word of a text: the state of its first piece (Devlin et al. 2018, section 5.3), or the sum of features
written by hand -> softmax, HMM, MEMM or CRF.

In: sentences of tagged words. Out: one tag a word, of the best legal sequence, and the entities (or words) they mark,
with their places in the text. A text longer than the model is read in overlapping windows; each word takes its scores
from the window that shows most of its surroundings, and the whole text is decoded as one chain.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from firth import metrics
from firth.config import resolve
from firth.data.items import Item, pack_items
from firth.metrics.spans import Entity
from firth.nn import schemes, taggers
from firth.nn.dropout import Dropout
from firth.nn.heads import scoring_layer
from firth.nn.recurrent import bidirectional
from firth.ragged import bounds_of
from firth.tasks import segmenting
from firth.tasks.conll import Sentence, spelled
from firth.tasks.tag_reader import TagConfig as TagConfig
from firth.tasks.tag_reader import TagReader as TagReader
from firth.tasks.task import (
    Details,
    Examples,
    Figures,
    Head,
    Items,
    Labels,
    Predictions,
    Scorer,
    Task,
    as_array,
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
from firth.types import Example, Prediction, Span

CHUNK = 1 << 16
"""Words decoded at once."""


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
        layer = "none"
        if self.lstm is None:
            layer = encoder.token_layer
        self.layer = scoring_layer(encoder, layer)
        self.dropout = Dropout(config.dropout)
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
        word_bounds = bounds_of([len(row) for row in rows]).astype(np.int32)
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
        rows_W = batch.targets["rows_W"]
        words_WD = self.dropout(states_ND.index_select(0, rows_W))
        total = self.tagger.loss(words_WD, tags_W, bounds_B1=batch.targets["words_B1"])
        # Without the chain: counting the Viterbi path's right tags would cost too much in every step.
        best_W = self.tagger.unary(words_WD.detach()).argmax(1)
        is_right_W = best_W == tags_W
        return Loss({self.name: total}, {f"{self.name}_correct": is_right_W.sum()})

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
        words = segmenting.gold_words(examples)
        known = segmenting.hashes(words)[: self.config.known_words]
        # Held-out rows may leave fewer words than the file has.
        self.known_words_U.zero_()[: len(known)] = torch.from_numpy(known)

    # Predicting

    def outputs(self, states: States, batch: Batch) -> list[np.ndarray]:
        inputs_ND = self._tagger_inputs(states, batch)
        scores_NT = self.tagger.unary(inputs_ND)
        borders = batch.bounds_B1[1:-1].tolist()
        return np.split(as_array(scores_NT), borders)

    def decide(self, item: Item, outputs: list[np.ndarray]) -> Prediction:
        return self.decide_all([item], [outputs])[0]

    def decide_all(self, items: Items, outputs: Sequence[list[np.ndarray]]) -> list[Prediction]:
        scores = [word_scores(item, arrays) for item, arrays in zip(items, outputs, strict=True)]
        predictions: list[Prediction] = []
        if not scores:
            return predictions
        # Items are decoded together until they have CHUNK words.
        num_words = [len(item_scores) for item_scores in scores]
        chunk_numbers = np.cumsum(num_words) // CHUNK
        chunk_starts = np.flatnonzero(np.diff(chunk_numbers)) + 1
        chunk_bounds = [0, *chunk_starts.tolist(), len(scores)]
        for start, end in pairwise(chunk_bounds):
            predictions += self._decode(items[start:end], scores[start:end])
        return predictions

    def _decode(self, items: Items, scores: Sequence[np.ndarray]) -> list[Prediction]:
        """The predictions of some items, from the scores of their words."""
        bounds = bounds_of([len(row) for row in scores])
        chain_bounds = self.chain_bounds(items, bounds)
        device = self.known_words_U.device
        scores_NT = torch.from_numpy(np.concatenate(scores)).to(device)
        bounds_B1 = torch.from_numpy(chain_bounds.astype(np.int32)).to(device)
        decoded = self.tagger.decode_unary(scores_NT, bounds_B1)
        borders = bounds[1:-1]
        tags = np.split(decoded.tags_N.cpu().numpy(), borders)
        confidences = np.split(as_array(decoded.confidence_N), borders)
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
        spans = self._spans(item, names, confidence)
        if self.segments:
            text: str | None = " ".join(span.text for span in spans)
        elif self.config.scheme == "none":
            text = segmenting.with_tags(example, names)
        else:
            text = None if spans else ""
        probability = 1.0
        if len(confidence):
            probability = float(confidence.mean())
        return Prediction(names, probability, spans=tuple(spans), text=text)

    def _spans(self, item: Item, tags: Sequence[str], confidence: np.ndarray) -> list[Span]:
        """The entities (or words) that tags mark; each is as likely as its least likely tag."""
        example = item.example
        assert isinstance(example, Sentence)
        spans = []
        for kind, first, last in self._marked(item, tags):
            start = example.words[first][0]
            end = example.words[last - 1][1]
            text = example.texts[0][start:end]
            probability = float(confidence[first:last].min())
            spans.append(Span(kind, start, end, text, probability))
        return spans

    def _marked(self, item: Item, tags: Sequence[str]) -> list[Entity]:
        """What the tags mark: its kind, its first word and the one after its last."""
        if self.segments:
            gaps = set(segmenting.gaps([item], np.zeros(1, np.int64)).tolist())
            return [("", first, end) for first, end in segmenting.word_runs(tags, gaps=gaps)]
        if self.config.scheme == "none":
            return []
        return metrics.entities(tags, self.config.scheme)


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
            tag = most_frequent(chain.from_iterable(example.gold for example in train))
        return [Prediction((tag,) * len(example.gold)) for example in examples]

    def error(self, prediction: Prediction, example: Example) -> float:
        """The share of wrong tags."""
        if not example.gold:
            return 0.0
        gold = np.array(example.gold)
        predicted = np.array(prediction.label)
        return float(np.mean(gold != predicted))


TAG = Task(TagConfig, TagReader, TagHead, TagScorer)
