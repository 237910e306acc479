"""Classify a text or a pair (Devlin et al. 2018, section 4.1): [CLS] or the mean -> dropout -> linear.

In: rows with one or two texts. Out: one name (softmax), any of several names (sigmoid), one name for each of several
label columns (a softmax each, losses summed), or a number (squared error). A text longer than the model is read in
overlapping windows; the scores of its windows are averaged, in training as in prediction.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth.config import check_counts, check_shares
from firth.data.items import Item, pack_items, text_items
from firth.errors import BadConfig, BadInput
from firth.nn.blocks import initialise
from firth.nn.heads import scoring_layer
from firth.nn.pooling import pooled_rows
from firth.nn.tree import TreeHead
from firth.tasks import classify_labels, classify_scores, columns, glue
from firth.tasks.calibration import best_temperature_of
from firth.tasks.classify_scores import Names
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
    layer_for,
    most_frequent,
    pooling_for,
    predicted_labels,
)
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers import Tokenizer
from firth.types import Example, Prediction, Problem

HEADS: dict[str, type[nn.Linear] | type[TreeHead]] = {"linear": nn.Linear, "tree": TreeHead}


@dataclass(frozen=True)
class ClassifyConfig(TaskConfig):
    preset: str = ""
    """A GLUE set by name: cola, sst-2, mrpc, stsb, qqp, mnli, qnli, rte or wnli."""
    text_column: str = ""
    """The column of the text; a number counts the columns of a file without a header."""
    second_column: str = ""
    """The column of the second text, for pairs."""
    num_texts: int = 0
    """Texts of a row, 1 or 2; found on the training rows, and other files are refused; 0 takes both."""
    label_columns: tuple[str, ...] = ()
    """The column of the label; several columns are several questions about one text."""
    label_names: tuple[str, ...] = ()
    """Names for labels that a file gives as numbers from 0."""
    kind: Literal["one", "many", "number"] = "one"
    """What a label is: one name, any number of names, or a number."""
    label_separator: str = ","
    """The text between the names of a label of kind many."""
    pooling: Literal["cls", "mean", "last", "concat"] = "cls"
    """A text's vector: its first token (through the model's pooler, if it has one; of causal models the last token),
    the mean, or last token, maximum and mean side by side."""
    both_orders: bool | None = None
    """Read a pair in both orders, in training and prediction, and average the scores, as GPT does if the order has no
    meaning; by default only with the presets mrpc, stsb and qqp."""
    layer: Literal["auto", "none", "tanh", "gelu", "relu", "gelu-norm"] = "auto"
    """A layer between the text's vector and the scores; auto is the one that the kind of model usually has."""
    head: Literal["linear", "tree"] = "linear"
    """What scores the names: a row each, or choices on the way down a Huffman tree."""
    dropout: float = 0.1
    """Share of the pooled vector set to zero in training."""
    calibrate: bool = True
    """Whether probabilities are calibrated on the rows that epochs are picked on (by a temperature, with kind=one)."""
    label_smoothing: float = 0.0
    """Share of a label's weight given to all names alike (Szegedy et al. 2016)."""
    class_weights: Literal["none", "balanced"] = "none"
    """Whether rare names weigh more in the loss: balanced gives every name the same total."""
    threshold: float = 0.5
    """Probability above which a name of kind many is given."""
    max_windows: int = 4
    """Windows of a long text used in training; prediction reads all."""
    metric: str = ""
    """The figure to pick epochs on; by default the preset's, else accuracy, micro F1 or Spearman."""
    positive: str = ""
    """The name that the binary F1 is about."""
    centre: float = 0.0
    """Of kind number, what is subtracted from a label before it is learned; found on the training rows."""
    spread: float = 0.0
    """What the rest is divided by; 0 takes mean and deviation of the training rows."""

    def for_encoder(self, encoder: Encoder) -> Self:
        pooling = pooling_for(self.pooling, encoder)
        return replace(self, pooling=pooling, layer=layer_for(self.layer, encoder, pooling=pooling))

    def __post_init__(self) -> None:
        if self.kind != "one" and len(self.label_columns) > 1:
            raise BadConfig(f"Several label columns need kind=one; it is {self.kind}.")
        if self.kind == "number" and (self.label_smoothing or self.class_weights != "none"):
            raise BadConfig("Label smoothing and class weights are for names, not for kind=number.")
        if self.head == "tree" and (self.kind != "one" or len(self.label_columns) > 1):
            raise BadConfig("head=tree chooses one name of one label column; it needs kind=one.")
        check_shares(dropout=self.dropout, label_smoothing=self.label_smoothing, threshold=self.threshold)
        check_counts(max_windows=self.max_windows)

    def with_preset(self) -> Self:
        if not self.preset:
            return self
        preset = glue.preset(self.preset)
        return replace(
            self,
            kind=preset.kind,
            metric=self.metric or preset.main,
            positive=self.positive or preset.positive,
            both_orders=preset.symmetric if self.both_orders is None else self.both_orders,
        )

    @property
    def scale(self) -> float:
        """The divisor of numbers; 1 before it is learned."""
        return self.spread or 1.0

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of labels: the label columns, or one group without them."""
        return self.label_columns or ("label",)


@dataclass(frozen=True)
class ClassifyReader(Reader):
    config: ClassifyConfig

    def locate(self, path: Path) -> ClassifyConfig:
        return replace(self.config, text_column=columns.text_column(path, self.config))

    def read(self, path: Path, problems: list[Problem], *, labelled: bool = True) -> list[Example]:
        examples = columns.read(path, self.config, problems, labelled=labelled)
        if examples and not self._suits(examples[0]):
            raise BadInput(
                f"The rows of {path} have {_texts(len(examples[0].texts))}, but the model was trained on rows with "
                f"{_texts(self.config.num_texts)}; name the columns with `text_column=` and `second_column=`."
            )
        return examples

    def learn(self, examples: Examples) -> ClassifyConfig:
        """The config with the number of texts of a row; of numbers, with their mean and deviation."""
        config = replace(self.config, num_texts=len(examples[0].texts))
        if config.kind != "number" or config.spread:
            return config
        golds = np.array(gold_labels(examples), np.float64)
        return replace(config, centre=float(golds.mean()), spread=float(golds.std()) or 1.0)

    def _suits(self, example: Example) -> bool:
        """Whether it has as many texts as the training rows."""
        return self.config.num_texts in (0, len(example.texts))

    def labels_of(self, examples: Examples) -> Labels:
        if self.config.kind == "number":
            return {}
        found: dict[str, set[str]] = {group: set() for group in self.config.groups}
        for example in examples:
            golds = classify_labels.names_by_group(example.gold, kind=self.config.kind)
            for names, gold in zip(found.values(), golds, strict=True):
                names |= gold
        for group, names in found.items():
            if len(names) < 2:
                raise BadInput(f"All rows have the same {group} ({', '.join(names)}); there is nothing to learn.")
            self._refuse_swapped(examples, num_labels=len(names))
        return {group: self._in_order(names) for group, names in found.items()}

    def _refuse_swapped(self, examples: Examples, *, num_labels: int) -> None:
        """Raises if the texts look like labels and the labels like texts: hardly a label occurs twice, but texts do."""
        num_texts = len({example.texts for example in examples})
        if self.config.kind == "one" and num_labels > 2 * num_texts and num_labels > len(examples) / 2:
            raise BadInput(
                f"There are {num_labels:,} labels for {len(examples):,} rows but only {num_texts:,} different texts: "
                "are `text_column=` and `label_columns=` swapped?"
            )

    def _in_order(self, names: Iterable[str]) -> Names:
        """The names in the order of `label_names`, then those that it does not have."""
        order = index_of(self.config.label_names)
        return tuple(sorted(names, key=lambda name: (order.get(name, len(order)), name)))

    def problems(self, examples: Examples, labels: Labels) -> Iterator[Problem]:
        if not labels:
            return
        for example in examples:
            golds = classify_labels.names_by_group(example.gold, kind=self.config.kind)
            for (group, known), gold in zip(labels.items(), golds, strict=True):
                unknown = sorted(gold - {*known})
                if unknown:
                    what = f"the {group} '{unknown[0]}' never occurs in training"
                    yield Problem(example.row, what, "add training rows with it or remove the row")

    def balance(self, examples: Examples) -> Balance:
        if self.config.kind == "number":
            return {}
        counts: dict[str, Counter[str]] = {group: Counter() for group in self.config.groups}
        for example in examples:
            golds = classify_labels.names_by_group(example.gold, kind=self.config.kind)
            for counter, names in zip(counts.values(), golds, strict=True):
                counter.update(names)
        return {group: dict(sorted(counter.items())) for group, counter in counts.items()}

    def example(self, value: object) -> Example:
        example = columns.example(value, self.config)
        if not self._suits(example):
            raise BadInput(
                f"An input has {_texts(len(example.texts))}, but the model was trained on rows with "
                f"{_texts(self.config.num_texts)}."
            )
        return example


def _texts(number: int) -> str:
    return "one text" if number == 1 else f"{number} texts"


class ClassifyHead(Head):
    name = "classify"
    config: ClassifyConfig
    weights_T: Tensor
    """The weight of each name in the loss."""

    def __init__(self, config: ClassifyConfig, encoder: Encoder, *, labels: Labels) -> None:
        super().__init__(config, encoder, labels=labels)
        self.dropout = nn.Dropout(config.dropout)
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
        is_given_ET = scores_ET > _logit(self.config.threshold)
        right_E = (is_given_ET == (gold_ET > 0.5)).float().mean(1)
        return Loss({self.name: each_ET.mean(1).sum()}, {f"{self.name}_correct": right_E.sum()})

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
        return list(self.scores(states, batch).float().cpu().numpy())

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
