"""Classify a text or a pair (Devlin et al. 2018, section 4.1): [CLS] or the mean -> dropout -> linear.

In: rows with one or two texts. Out: one name (softmax), any of several names (sigmoid), one name for each of several
label columns (a softmax each, losses summed), or a number (squared error). A text longer than the model is read in
overlapping windows; the scores of its windows are averaged, in training as in prediction.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth.config import check_counts, check_shares
from firth.data.items import Item, pack_items, text_items
from firth.errors import BadConfig, BadInput
from firth.nn.blocks import initialise
from firth.nn.pooling import pooled_rows
from firth.nn.tree import TreeHead
from firth.tasks import classify_scores, columns, glue
from firth.tasks.task import Balance, Details, Head, Labels, Reader, Scorer, Task, TaskConfig
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers import Tokenizer
from firth.types import Example, Prediction, Problem

HEADS: dict[str, Any] = {"linear": nn.Linear, "tree": TreeHead}


@dataclass(frozen=True)
class ClassifyConfig(TaskConfig):
    preset: str = ""
    """A GLUE set by name: cola, sst-2, mrpc, stsb, qqp, mnli, qnli, rte or wnli."""
    text_column: str = ""
    """The column of the text; a number counts the columns of a file without a header."""
    second_column: str = ""
    """The column of the second text, for pairs."""
    label_columns: tuple[str, ...] = ()
    """The column of the label; several columns are several questions about one text."""
    label_names: tuple[str, ...] = ()
    """Names for labels that a file gives as numbers from 0."""
    kind: Literal["one", "many", "number"] = "one"
    """What a label is: one name, any number of names, or a number."""
    label_separator: str = ","
    """What stands between the names of a label of kind many."""
    pooling: Literal["cls", "mean", "last", "concat"] = "cls"
    """What stands for a text: its first token (through the model's pooler, if it has one; of causal models the
    last), the mean, or last token, maximum and mean side by side."""
    both_orders: bool | None = None
    """Read a pair in both orders, in training and prediction, and average the scores, as GPT does where the order
    says nothing; by default only with the presets mrpc, stsb and qqp."""
    head: Literal["linear", "tree"] = "linear"
    """What scores the names: a row each, or choices on the way down a Huffman tree."""
    dropout: float = 0.1
    """Share of the pooled vector set to zero in training."""
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
        metric, positive = self.metric or preset.main, self.positive or preset.positive
        orders = preset.symmetric if self.both_orders is None else self.both_orders
        return replace(self, kind=preset.kind, metric=metric, positive=positive, both_orders=orders)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ClassifyReader(Reader):
    config: ClassifyConfig

    def locate(self, path: Path) -> ClassifyConfig:
        return replace(self.config, text_column=columns.text_column(path, self.config))

    def read(self, path: Path, problems: list[Problem], *, labelled: bool = True) -> list[Example]:
        return columns.read(path, self.config, problems, labelled=labelled)

    def learn(self, examples: Sequence[Example]) -> ClassifyConfig:
        if self.config.kind != "number" or self.config.spread:
            return self.config
        golds = np.array([example.gold for example in examples], np.float64)
        return replace(self.config, centre=float(golds.mean()), spread=float(golds.std()) or 1.0)

    def labels_of(self, examples: Sequence[Example]) -> Labels:
        if self.config.kind == "number":
            return {}
        groups = self.config.label_columns or ("label",)
        found: list[set[str]] = [set() for _ in groups]
        for example in examples:
            for names, gold in zip(found, _groups(example.gold, self.config), strict=True):
                names |= gold
        for group, names in zip(groups, found, strict=True):
            if len(names) < 2:
                raise BadInput(f"All rows have the same {group} ({', '.join(names)}); there is nothing to learn.")
        order = {name: i for i, name in enumerate(self.config.label_names)}
        return {
            group: tuple(sorted(names, key=lambda name: (order.get(name, len(order)), name)))
            for group, names in zip(groups, found, strict=True)
        }

    def problems(self, examples: Sequence[Example], labels: Labels) -> Iterator[Problem]:
        for example in examples if labels else ():
            for group, known, gold in zip(labels, labels.values(), _groups(example.gold, self.config), strict=True):
                if strange := sorted(gold - {*known}):
                    yield Problem(
                        example.row,
                        f"the {group} '{strange[0]}' never occurs in training",
                        "add training rows with it or remove the row",
                    )

    def balance(self, examples: Sequence[Example]) -> Balance:
        if self.config.kind == "number":
            return {}
        counts: list[Counter[str]] = [Counter() for _ in self.config.label_columns or ("label",)]
        for example in examples:
            for count, names in zip(counts, _groups(example.gold, self.config), strict=True):
                count.update(names)
        return dict(
            zip(self.config.label_columns or ("label",), (dict(sorted(c.items())) for c in counts), strict=True)
        )

    def example(self, value: object) -> Example:
        return columns.example(value, self.config)


class ClassifyHead(Head):
    name = "classify"
    config: ClassifyConfig

    def __init__(self, config: ClassifyConfig, encoder: Encoder, *, labels: Labels) -> None:
        super().__init__(config, encoder, labels=labels)
        self.dropout = nn.Dropout(config.dropout)
        sizes = [len(names) for names in labels.values()] or [1]
        width = encoder.width * (3 if config.pooling == "concat" else 1)
        self.head = HEADS[config.head](width, sum(sizes))
        initialise(self.head, std=encoder.init_std)
        self.slices = [slice(end - size, end) for size, end in zip(sizes, np.cumsum(sizes).tolist(), strict=True)]
        self.register_buffer("weights_T", torch.ones(sum(sizes)), persistent=False)

    def encode(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, training: bool
    ) -> list[Item]:
        limit = self.config.max_windows if training else None
        orders = bool(self.config.both_orders)
        return text_items(examples, tokenizer, max_length=max_length, max_windows=limit, both_orders=orders)

    def batch(self, items: Sequence[Item]) -> Batch:
        packed, owners_B = pack_items(items)
        golds = [item.example.gold for item in items]
        return replace(packed, targets={"owners_B": owners_B, "gold_E": self._targets(golds)})

    def _targets(self, golds: Sequence[Any]) -> Tensor:
        """E numbers, E x T marks, or E x groups indices within each group."""
        if self.config.kind == "number":
            values = (np.array(golds, np.float64) - self.config.centre) / (self.config.spread or 1.0)
            return torch.from_numpy(values).float()
        indices = [{name: i for i, name in enumerate(names)} for names in self.labels.values()]
        if self.config.kind == "one":
            rows = [
                [index[name] for index, (name,) in zip(indices, _groups(gold, self.config), strict=True)]
                for gold in golds
            ]
            return torch.tensor(rows)
        marks_ET = torch.zeros(len(golds), len(indices[0]))
        for row, gold in enumerate(golds):
            marks_ET[row, [indices[0][name] for name in gold]] = 1
        return marks_ET

    def before_training(self, examples: Sequence[Example]) -> None:
        """Sets the weight of every name from how often it occurs; the mean over the rows is 1."""
        if isinstance(self.head, TreeHead):
            tally = Counter(example.gold for example in examples)
            self.head.plant(np.array([tally[name] for names in self.labels.values() for name in names]))
        if self.config.class_weights == "none":
            return
        weights: list[float] = []
        for at, names in enumerate(self.labels.values()):
            counts = Counter(name for example in examples for name in _groups(example.gold, self.config)[at])
            weights += [sum(counts.values()) / (len(names) * max(counts[name], 1)) for name in names]
        self.get_buffer("weights_T").copy_(torch.tensor(weights))

    def loss(self, states: States, batch: Batch) -> Loss:
        gold, weights_T = batch.targets["gold_E"], self.get_buffer("weights_T")
        scores_ET = self._merged(self.scores(states, batch), batch.targets["owners_B"], len(gold)).float()
        if self.config.kind == "number":
            return Loss({self.name: F.mse_loss(scores_ET[:, 0], gold, reduction="sum")})
        smoothing = self.config.label_smoothing
        if self.config.kind == "many":
            smooth = gold * (1 - smoothing) + smoothing / 2
            each_ET = F.binary_cross_entropy_with_logits(scores_ET, smooth, weight=weights_T, reduction="none")
            right = ((scores_ET > _logit(self.config.threshold)) == (gold > 0.5)).float().mean(1)
            return Loss({self.name: each_ET.mean(1).sum()}, {f"{self.name}_correct": right.sum()})
        total, right = scores_ET.new_zeros(()), scores_ET.new_zeros(len(gold))
        for at, part in enumerate(self.slices):
            group_ET, gold_E = scores_ET[:, part], gold[:, at]
            each_E = F.cross_entropy(group_ET, gold_E, reduction="none", label_smoothing=smoothing)
            total = total + (each_E * weights_T[part][gold_E]).sum()
            right = right + (group_ET.argmax(1) == gold_E) / len(self.slices)
        return Loss({self.name: total}, {f"{self.name}_correct": right.sum()})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {self.name: len(batch.targets["gold_E"])}

    def scores(self, states: States, batch: Batch) -> Tensor:
        """The head's scores of every sequence."""
        pooled_BD = pooled_rows(states, batch.bounds_B1, self.config.pooling)
        scores_BT: Tensor = self.head(self.dropout(pooled_BD))
        return scores_BT

    @staticmethod
    def _merged(scores_BT: Tensor, owners_B: Tensor, num_examples: int) -> Tensor:
        if len(scores_BT) == num_examples:
            return scores_BT
        totals_ET = scores_BT.new_zeros(num_examples, scores_BT.shape[1]).index_add(0, owners_B, scores_BT)
        return totals_ET / torch.bincount(owners_B, minlength=num_examples)[:, None]

    def outputs(self, states: States, batch: Batch) -> list[np.ndarray]:
        return list(self.scores(states, batch).float().cpu().numpy())

    def decide(self, item: Item, outputs: list[np.ndarray]) -> Prediction:
        scores_T = np.mean(outputs, 0)
        if self.config.kind == "number":
            return Prediction(float(scores_T[0]) * (self.config.spread or 1.0) + self.config.centre)
        (group, names), *others = self.labels.items()
        if self.config.kind == "many":
            shares = 1 / (1 + np.exp(-scores_T.astype(np.float64)))
            every = {name: float(share) for name, share in zip(names, shares, strict=True)}
            chosen = tuple(name for name in names if every[name] > self.config.threshold)
            sure = math.prod(p if name in chosen else 1 - p for name, p in every.items())
            return Prediction(chosen, sure, every)
        picks, sure, every = [], 1.0, {}
        for (group, names), part in zip(self.labels.items(), self.slices, strict=True):
            shares = np.exp(scores_T[part] - scores_T[part].max(), dtype=np.float64)
            shares /= shares.sum()
            picks.append(names[int(shares.argmax())])
            sure *= float(shares.max())
            every |= {f"{group}={n}" if others else n: float(s) for n, s in zip(names, shares, strict=True)}
        return Prediction(tuple(picks) if others else picks[0], sure, every)


@dataclass(frozen=True)
class ClassifyScorer(Scorer):
    config: ClassifyConfig

    @property
    def main_metric(self) -> str:
        usual = {"one": "accuracy", "many": "micro_f1", "number": "spearman"}
        return self.config.metric or usual[self.config.kind]

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, float]:
        gold, guessed = [e.gold for e in examples], [p.label for p in predictions]
        return classify_scores.figures(gold, guessed, self.labels, kind=self.config.kind, positive=self.config.positive)

    def details(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> Details:
        gold, guessed = [e.gold for e in examples], [p.label for p in predictions]
        return classify_scores.tables(gold, guessed, self.labels, kind=self.config.kind)

    def baseline(self, train: Sequence[Example], examples: Sequence[Example]) -> list[Prediction]:
        usual = classify_scores.usual([example.gold for example in train], self.labels, kind=self.config.kind)
        return [Prediction(usual) for _ in examples]

    def error(self, prediction: Prediction, example: Example) -> float:
        if self.config.kind == "number":
            return abs(float(prediction.label) - float(example.gold))
        return 0.0 if prediction.label == example.gold else prediction.probability


CLASSIFY = Task(ClassifyConfig, ClassifyReader, ClassifyHead, ClassifyScorer)


def _groups(gold: Any, config: ClassifyConfig) -> list[set[str]]:
    """The names of each label column."""
    if config.kind == "many":
        return [set(gold)]
    return [{name} for name in gold] if len(config.label_columns) > 1 else [{gold}]


def _logit(share: float) -> float:
    return math.log(share / (1 - share))
