"""Compare two texts: how alike are they?

In: pairs with scores or labels, pairs that belong together, or triplets (a text, one like it, one less like it). Out:
a similarity. Three ways: a siamese encoder, whose vectors' cosine is the similarity (Reimers & Gurevych 2019); a
cross-encoder, which reads both texts at once; or the pooled vectors of a model as it is, optionally whitened (Su et al.
2021), which needs no training. A text longer than the model is read in windows whose vectors are averaged by length.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth import metrics
from firth.data.items import Item, pack_items
from firth.errors import BadConfig
from firth.nn import similarity
from firth.nn.blocks import initialise
from firth.nn.dropout import Dropout
from firth.nn.heads import scoring_layer
from firth.nn.pooling import layered_rows, pooled_rows
from firth.ragged import bounds_of, owners_of
from firth.tasks import compare_scores
from firth.tasks.compare_reader import CompareConfig as CompareConfig
from firth.tasks.compare_reader import CompareReader as CompareReader
from firth.tasks.compare_reader import are_alike, gold_similarity
from firth.tasks.compare_scores import Similarity, Whitening, whitened_units, with_vectors
from firth.tasks.negatives import ignored_negatives
from firth.tasks.pair_windows import joined_items, separate_items
from firth.tasks.task import (
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
    pooling_for,
    predicted_labels,
)
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers import Tokenizer
from firth.types import Example, Prediction


class CompareHead(Head):
    name = "compare"
    config: CompareConfig

    def __init__(self, config: CompareConfig, encoder: Encoder, *, labels: Labels) -> None:
        super().__init__(config, encoder, labels=labels)
        self.whitening: Whitening | None = None
        self.needs_layers = self.config.pooling == "first-last"
        if config.way == "siamese":
            self.embeds = self.config.pooling
        if config.way == "cross":
            self.pair_pooling = pooling_for("cls", encoder)
            self.dropout = Dropout(config.dropout)
            self.layer = scoring_layer(encoder, self.config.layer)
            self.head = nn.Linear(encoder.width, 1)
            initialise(self.head, std=encoder.init_std)

    @property
    def compares_within_batch(self) -> bool:
        """Whether the other texts of a batch are negatives, so that the loss depends on the whole batch."""
        return self.config.way == "siamese" and self.config.loss == "ranking"

    @property
    def _num_orders(self) -> int:
        return 2 if self.config.both_orders else 1

    # Sequences

    def encode(self, examples: Examples, tokenizer: Tokenizer, *, max_length: int, training: bool) -> list[Item]:
        if self.config.way == "cross":
            both_orders = bool(self.config.both_orders)
            return joined_items(examples, tokenizer, max_length=max_length, both_orders=both_orders)
        max_windows = self.config.max_windows if training else None
        return separate_items(examples, tokenizer, max_length=max_length, max_windows=max_windows)

    def batch(self, items: Items) -> Batch:
        """T counts the texts of all examples, E the examples, C the texts that are compared with a first text."""
        packed, _ = pack_items(items)
        # The windows of each text, or of each pair for a cross-encoder.
        num_windows: list[int] = []
        for item in items:
            num_windows += item.facts
        gold_E = torch.tensor([self._learned_target(item.example) for item in items], dtype=torch.float32)
        targets = {
            "texts_B": torch.from_numpy(owners_of(num_windows)),
            "gold_E": gold_E,
        }
        if self.compares_within_batch:
            examples = [item.example for item in items]
            ignored_EC = ignored_negatives(examples, gold_E.numpy() > 0.5)
            targets["ignored_EC"] = torch.from_numpy(ignored_EC)
        return replace(packed, targets=targets)

    def _learned_target(self, example: Example) -> float:
        """The gold similarity as the loss uses it: a cross-encoder learns standardised scores."""
        spread = self.config.spread or 1.0
        return float((gold_similarity(example, self.config) - self.config.centre) / spread)

    # Learning

    def before_training(self, examples: Examples) -> None:
        if self.config.way == "pooled":
            raise BadConfig("way=pooled needs no training; measure it with `evaluate` and `task='compare'`.")

    def loss(self, states: States, batch: Batch) -> Loss:
        gold_E = batch.targets["gold_E"]
        if self.config.way == "cross":
            scores_B = self._pair_scores(states, batch).float()
            # K pairs of an example, each in O orders whose scores are averaged.
            scores_EK = scores_B.view(len(gold_E), -1, self._num_orders).mean(2)
            return Loss({self.name: similarity.cross(scores_EK, gold_E, kind=self.config.kind)})
        texts_TD = text_vectors(self._pooled(states, batch), batch)
        whole = self._siamese_loss(texts_TD, batch)
        widths = [width for width in self.config.matryoshka if width < texts_TD.shape[1]]
        if not widths:
            return whole
        total = whole.sums[self.name]
        for width in widths:
            cut = self._siamese_loss(texts_TD[:, :width], batch)
            total = total + cut.sums[self.name]
        return replace(whole, sums={self.name: total / (1 + len(widths))})

    def _siamese_loss(self, texts_TD: Tensor, batch: Batch) -> Loss:
        """The loss of the texts' vectors, whole or cut."""
        gold_E = batch.targets["gold_E"]
        # K texts of an example: two, or three of a triplet.
        unit_TD = F.normalize(texts_TD, dim=1)
        unit_EKD = unit_TD.view(len(gold_E), -1, texts_TD.shape[1])
        if self.compares_within_batch:
            ignored_EC = batch.targets["ignored_EC"]
            total, right = similarity.ranking(unit_EKD, gold_E > 0.5, ignored_EC=ignored_EC, scale=self.config.scale)
            return Loss({self.name: total}, {f"{self.name}_correct": right})
        cosine_E = (unit_EKD[:, 0] * unit_EKD[:, 1]).sum(1)
        if self.config.loss == "regression":
            return Loss({self.name: F.mse_loss(cosine_E, gold_E, reduction="sum")})
        if self.config.loss == "cosent":
            return Loss({self.name: similarity.cosent(cosine_E, gold_E, scale=self.config.scale)})
        return Loss({self.name: similarity.contrastive(cosine_E, gold_E, margin=self.config.margin)})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        gold_E = batch.targets["gold_E"]
        if self.compares_within_batch:
            return {self.name: int((gold_E > 0.5).sum())}
        return {self.name: len(gold_E)}

    def _pair_scores(self, states: States, batch: Batch) -> Tensor:
        """A cross-encoder's score of every sequence."""
        pooled_BD = pooled_rows(states, batch.bounds_B1, self.pair_pooling)
        scores_B1: Tensor = self.head(self.dropout(self.layer(pooled_BD)))
        return scores_B1[:, 0]

    def _pooled(self, states: States, batch: Batch) -> Tensor:
        """A vector for every sequence."""
        return layered_rows(states, batch.bounds_B1, self.config.pooling)

    # Predicting

    def outputs(self, states: States, batch: Batch) -> list[np.ndarray]:
        if self.config.way == "cross":
            return list(as_array(self._pair_scores(states, batch)))
        return list(as_array(self._pooled(states, batch)))

    def decide(self, item: Item, outputs: list[np.ndarray]) -> Prediction:
        if self.config.way == "cross":
            return self._decide_by_scores(outputs)
        # A text's vector is the mean of its windows', weighted by their lengths.
        lengths = np.array([len(window.ids) for window in item.windows], np.float32)
        bounds = bounds_of(item.facts).tolist()
        vectors = []
        for start, end in pairwise(bounds):
            vector = np.average(outputs[start:end], axis=0, weights=lengths[start:end])
            vectors.append(vector)
        return self._by_vectors(tuple(vectors))

    def _decide_by_scores(self, outputs: list[np.ndarray]) -> Prediction:
        scores_KO = np.reshape(outputs, (-1, self._num_orders))
        scores = scores_KO.mean(1).tolist()
        if len(scores) > 1:
            # Of a triplet, how much more like the first the second text is than the third.
            return Prediction(scores[0] - scores[1])
        if self.config.kind == "number":
            spread = self.config.spread or 1.0
            return Prediction(scores[0] * spread + self.config.centre)
        probability = 1 / (1 + np.exp(-scores[0]))
        return Prediction(float(probability))

    def _by_vectors(self, vectors: tuple[np.ndarray, ...]) -> Similarity:
        """The cosine of two texts; of a triplet, the difference of two."""
        first, *others = whitened_units(np.stack(vectors), self.whitening)
        cosines = [float(first @ other) for other in others]
        similarity_of_texts = cosines[0]
        if len(cosines) > 1:
            similarity_of_texts -= cosines[1]
        return with_vectors(similarity_of_texts, vectors)

    def tune(self, predictions: Predictions, examples: Examples) -> list[Prediction]:
        """Finds the whitening (which needs no labels) and the threshold with the best accuracy."""
        found = list(predictions)
        if self.config.whiten:
            vectors = compare_scores.vectors_by_text(found, examples)
            vectors_ND = np.stack(list(vectors.values()))
            self.whitening = compare_scores.fit_whitening(vectors_ND, self.config.whiten_width)
            found = [self._by_vectors(made.vectors) for made in found if isinstance(made, Similarity)]
        if self.config.kind == "one":
            similarities = predicted_labels(found)
            _, threshold = metrics.best_accuracy(are_alike(examples, self.config), similarities)
            self.config = replace(self.config, threshold=threshold)
        return found


def text_vectors(vectors_BD: Tensor, batch: Batch) -> Tensor:
    """A vector for each text: the sum of its windows', weighted by their lengths. Only its direction matters."""
    texts_B = batch.targets["texts_B"]
    weights_B1 = batch.bounds_B1.diff()[:, None].float()
    num_texts = int(texts_B[-1]) + 1
    zeros_TD = vectors_BD.new_zeros(num_texts, vectors_BD.shape[1])
    return zeros_TD.index_add(0, texts_B, vectors_BD * weights_B1)


@dataclass(frozen=True)
class CompareScorer(Scorer):
    config: CompareConfig
    whitening: Whitening | None = None
    """The whitening of the vectors before their cosines, if there is one."""

    @classmethod
    def of(cls, head: Head) -> Self:
        assert isinstance(head, CompareHead)
        return cls(head.config, head.labels, head.whitening)

    @property
    def main_metric(self) -> str:
        main_metrics = {"number": "spearman", "one": "auc", "positives": "mrr", "triplets": "accuracy"}
        return main_metrics[self.config.kind]

    def score(self, predictions: Predictions, examples: Examples) -> Figures:
        similarities = np.array(predicted_labels(predictions), np.float64)
        if self.config.kind == "number":
            gold = gold_labels(examples)
            return {"spearman": metrics.spearman(similarities, gold), "pearson": metrics.pearson(similarities, gold)}
        figures: dict[str, float] = {}
        if self.config.kind == "one":
            is_alike = np.array(are_alike(examples, self.config))
            figures = compare_scores.pair_figures(is_alike, similarities, self.config.threshold)
        if self.config.kind == "triplets":
            # A tie is half right.
            points = (similarities > 0) + 0.5 * (similarities == 0)
            figures = {"accuracy": float(points.mean())}
        return figures | self._rankings(predictions, examples)

    def _rankings(self, predictions: Predictions, examples: Examples) -> Figures:
        """How early each text finds the texts like it among all the others of the file."""
        vectors = compare_scores.vectors_by_text(predictions, examples)
        if vectors:
            vectors_ND = np.stack(list(vectors.values()))
            unit_ND = whitened_units(vectors_ND, self.whitening)
            vectors = dict(zip(vectors, unit_ND, strict=True))
        return compare_scores.ranking_figures(vectors, examples, are_alike(examples, self.config))

    def baseline(self, train: Examples, examples: Examples) -> list[Prediction]:
        if self.config.kind == "positives":
            # A direction of its own for each text finds partners by chance.
            return [_in_random_directions(example) for example in examples]
        mean = float(np.mean([gold_similarity(example, self.config) for example in train]))
        label = 0.0
        if self.config.kind == "number":
            label = mean
        elif self.config.kind == "one":
            label = float(mean >= 0.5)
        return [Prediction(label) for _ in examples]

    def perfect(self, example: Example) -> Prediction:
        vectors: tuple[np.ndarray, ...] = ()
        if self.config.kind == "positives":
            # Both texts of a pair have the same vector, and no other text is near it.
            vector = compare_scores.random_direction(example.texts[0])
            vectors = (vector, vector)
        return with_vectors(gold_similarity(example, self.config), vectors)

    def error(self, prediction: Prediction, example: Example) -> float:
        predicted = float(prediction.label)
        if self.config.kind == "triplets":
            return max(0.0, -predicted)
        gold = gold_similarity(example, self.config)
        is_right = (predicted >= self.config.threshold) == (gold > 0.5)
        if self.config.kind == "one" and is_right:
            return 0.0
        return abs(predicted - gold)


def _in_random_directions(example: Example) -> Similarity:
    vectors = [compare_scores.random_direction(text) for text in example.texts]
    return with_vectors(0.0, tuple(vectors))


COMPARE = Task(CompareConfig, CompareReader, CompareHead, CompareScorer, untrained={"way": "pooled"})
