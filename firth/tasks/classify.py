"""Classify a text or a pair (Devlin et al. 2018, section 4.1): [CLS] or the mean -> dropout -> linear.

In: rows with one or two texts. Out: one name (softmax), any of several names (sigmoid), one name for each of several
label columns (a softmax each, losses summed), or a number (squared error). A text longer than the model is read in
overlapping windows; the scores of its windows are averaged, in training as in prediction.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth.data.items import Item, pack_items, text_items
from firth.nn.blocks import initialise
from firth.nn.dropout import Dropout
from firth.nn.heads import scoring_layer
from firth.nn.pooling import pooled_rows
from firth.nn.tree import TreeHead
from firth.tasks import classify_labels, classify_scores
from firth.tasks.calibration import best_temperature_of
from firth.tasks.classify_reader import ClassifyConfig as ClassifyConfig
from firth.tasks.classify_reader import ClassifyReader as ClassifyReader
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
    most_frequent,
    predicted_labels,
)
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers import Tokenizer
from firth.types import Example, Prediction

HEADS: dict[str, type[nn.Linear] | type[TreeHead]] = {"linear": nn.Linear, "tree": TreeHead}


class ClassifyHead(Head):
    name = "classify"
    config: ClassifyConfig
    weights_T: Tensor
    """The weight of each name in the loss."""

    def __init__(self, config: ClassifyConfig, encoder: Encoder, *, labels: Labels) -> None:
        super().__init__(config, encoder, labels=labels)
        self.dropout = Dropout(config.dropout)
        # The scores of all groups of names lie side by side; a number is one score.
        sizes = [len(names) for names in labels.values()] or [1]
        self.slices = []
        end = 0
        for size in sizes:
            self.slices.append(slice(end, end + size))
            end += size
        width = encoder.width
        if config.pooling == "concat":
            width = 3 * width
        self.layer = scoring_layer(encoder, self.config.layer)
        self.head: nn.Linear | TreeHead = HEADS[config.head](width, sum(sizes))
        initialise(self.head, std=encoder.init_std)
        self.register_buffer("weights_T", torch.ones(sum(sizes)), persistent=False)

    # Sequences

    def encode(self, examples: Examples, tokenizer: Tokenizer, *, max_length: int, training: bool) -> list[Item]:
        max_windows = self.config.max_windows if training else None
        both_orders = bool(self.config.both_orders)
        return text_items(examples, tokenizer, max_length=max_length, max_windows=max_windows, both_orders=both_orders)

    def batch(self, items: Items) -> Batch:
        packed, owners_B = pack_items(items)
        golds = [item.example.gold for item in items]
        if self.config.kind == "number":
            gold = classify_labels.number_targets(golds, centre=self.config.centre, scale=self.config.scale)
        elif self.config.kind == "many":
            gold = classify_labels.many_targets(golds, self.labels)
        else:
            gold = classify_labels.one_targets(golds, self.labels)
        return replace(packed, targets={"owners_B": owners_B, "gold_E": gold})

    # Learning

    def before_training(self, examples: Examples) -> None:
        """Builds the Huffman tree, and sets the weight of every name, from how often the names occur."""
        if isinstance(self.head, TreeHead):
            (names,) = self.labels.values()
            counts = Counter(example.gold for example in examples)
            self.head.plant(np.array([counts[name] for name in names]))
        if self.config.class_weights == "balanced":
            weights = classify_labels.balanced_weights(gold_labels(examples), self.labels, kind=self.config.kind)
            self.weights_T.copy_(torch.tensor(weights))

    def loss(self, states: States, batch: Batch) -> Loss:
        return self.loss_from_scores(self.example_scores(states, batch), batch)

    def example_scores(self, states: States, batch: Batch) -> Tensor:
        """E x T: the scores of every example, the means over its windows."""
        scores_BT = self.scores(states, batch)
        return means_of_windows(scores_BT, batch.targets["owners_B"], len(batch.targets["gold_E"])).float()

    def loss_from_scores(self, scores_ET: Tensor, batch: Batch) -> Loss:
        gold = batch.targets["gold_E"]
        if self.config.kind == "number":
            return Loss({self.name: F.mse_loss(scores_ET[:, 0], gold, reduction="sum")})
        if self.config.kind == "many":
            return self._many_loss(scores_ET, gold)
        return self._one_loss(scores_ET, gold)

    def _many_loss(self, scores_ET: Tensor, gold_ET: Tensor) -> Loss:
        smoothing = self.config.label_smoothing
        # Each name is a choice of two: half of the smoothed weight goes to either.
        smooth_ET = gold_ET * (1 - smoothing) + smoothing / 2
        each_ET = F.binary_cross_entropy_with_logits(scores_ET, smooth_ET, weight=self.weights_T, reduction="none")
        total = each_ET.mean(1).sum()
        is_given_ET = scores_ET > _logit(self.config.threshold)
        is_gold_ET = gold_ET > 0.5
        right_E = (is_given_ET == is_gold_ET).float().mean(1)
        return Loss({self.name: total}, {f"{self.name}_correct": right_E.sum()})

    def _one_loss(self, scores_ET: Tensor, gold_EG: Tensor) -> Loss:
        """The cross-entropies of all groups, summed; a row counts as right by the share of its right groups."""
        smoothing = self.config.label_smoothing
        total = scores_ET.new_zeros(())
        right_E = scores_ET.new_zeros(len(gold_EG))
        for group, part in enumerate(self.slices):
            group_ET = scores_ET[:, part]
            gold_E = gold_EG[:, group]
            each_E = F.cross_entropy(group_ET, gold_E, reduction="none", label_smoothing=smoothing)
            weights_E = self.weights_T[part][gold_E]
            total = total + (each_E * weights_E).sum()
            right_E = right_E + (group_ET.argmax(1) == gold_E) / len(self.slices)
        return Loss({self.name: total}, {f"{self.name}_correct": right_E.sum()})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {self.name: len(batch.targets["gold_E"])}

    def calibrate(self, predictions: Predictions, examples: Examples) -> float:
        """Divides the scores by a temperature (Guo et al. 2017): the weights of the layer are scaled, so that other
        programs that open the model have the same probabilities."""
        has_one_group = self.config.kind == "one" and len(self.labels) == 1
        if not self.config.calibrate or not has_one_group or not isinstance(self.head, nn.Linear):
            return 1.0
        temperature = best_temperature_of(predictions, examples)
        with torch.no_grad():
            for parameter in self.head.parameters():
                parameter.div_(temperature)
        return temperature

    def scores(self, states: States, batch: Batch) -> Tensor:
        """The scores of every sequence."""
        pooled_BD = pooled_rows(states, batch.bounds_B1, self.config.pooling)
        scores_BT: Tensor = self.head(self.dropout(self.layer(pooled_BD)))
        return scores_BT

    # Predicting

    def outputs(self, states: States, batch: Batch) -> list[np.ndarray]:
        return list(as_array(self.scores(states, batch)))

    def decide(self, item: Item, outputs: list[np.ndarray]) -> Prediction:
        scores_T = np.mean(outputs, 0)
        if self.config.kind == "number":
            # The head learned standardised numbers.
            return Prediction(float(scores_T[0]) * self.config.scale + self.config.centre)
        if self.config.kind == "many":
            return classify_labels.decide_many(scores_T, self.labels, threshold=self.config.threshold)
        return classify_labels.decide_one(scores_T, self.labels, self.slices)


def means_of_windows(scores_BT: Tensor, owners_B: Tensor, num_examples: int) -> Tensor:
    """The mean over the windows of each example; `owners_B` says whose each window is."""
    if len(scores_BT) == num_examples:
        return scores_BT
    totals_ET = scores_BT.new_zeros(num_examples, scores_BT.shape[1]).index_add(0, owners_B, scores_BT)
    num_windows_E = torch.bincount(owners_B, minlength=num_examples)
    return totals_ET / num_windows_E[:, None]


def _logit(probability: float) -> float:
    """The score with this probability; no score has the probability 0."""
    if not probability:
        return -math.inf
    return math.log(probability / (1 - probability))


@dataclass(frozen=True)
class ClassifyScorer(Scorer):
    config: ClassifyConfig

    @property
    def main_metric(self) -> str:
        default = {"one": "accuracy", "many": "micro_f1", "number": "spearman"}
        return self.config.metric or default[self.config.kind]

    def score(self, predictions: Predictions, examples: Examples) -> Figures:
        gold = gold_labels(examples)
        predicted = predicted_labels(predictions)
        if self.config.kind == "number":
            return classify_scores.number_figures(gold, predicted)
        if self.config.kind == "many":
            return classify_scores.many_figures(gold, predicted, self.labels)
        if len(self.labels) == 1:
            return classify_scores.one_figures(gold, predicted, positive=self.config.positive)
        return classify_scores.grouped_figures(gold, predicted, self.labels, positive=self.config.positive)

    def details(self, predictions: Predictions, examples: Examples) -> Details:
        if self.config.kind == "number" or len(self.labels) > 1:
            return {}
        gold = gold_labels(examples)
        predicted = predicted_labels(predictions)
        (names,) = self.labels.values()
        if self.config.kind == "many":
            return classify_scores.many_details(gold, predicted, names)
        return classify_scores.one_details(gold, predicted, names)

    def baseline(self, train: Examples, examples: Examples) -> list[Prediction]:
        """The mean, the most frequent set of names, or the most frequent name of each group."""
        golds = gold_labels(train)
        if self.config.kind == "number":
            label: object = float(np.mean(golds))
        elif len(self.labels) > 1:
            label = classify_scores.most_frequent_names(golds)
        else:
            label = most_frequent(golds)
        return [Prediction(label) for _ in examples]

    def error(self, prediction: Prediction, example: Example) -> float:
        if self.config.kind == "number":
            return abs(float(prediction.label) - float(example.gold))
        if prediction.label == example.gold:
            return 0.0
        return prediction.probability


CLASSIFY = Task(ClassifyConfig, ClassifyReader, ClassifyHead, ClassifyScorer)
