"""The settings of classification, and the reader of its rows: which names and groups there are, and what is wrong.

In: tables of texts and labels. Out: examples, and the config with what the rows say of it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

import numpy as np

from firth.config import check_counts, check_shares
from firth.errors import BadConfig, BadInput
from firth.tasks import classify_labels, columns, glue
from firth.tasks.classify_scores import Names
from firth.tasks.task import (
    Balance,
    Examples,
    Labels,
    Reader,
    TaskConfig,
    gold_labels,
    index_of,
    layer_for,
    pooling_for,
)
from firth.tensors import Encoder
from firth.types import Example, Problem


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
            both_orders=preset.reads_both_orders(self.both_orders),
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
                raise BadInput(
                    f"all rows have the same {group} ({', '.join(names)}), so there is nothing to learn; add rows with "
                    "another one."
                )
            self._refuse_swapped(examples, num_labels=len(names))
        return {group: self._in_order(names) for group, names in found.items()}

    def _refuse_swapped(self, examples: Examples, *, num_labels: int) -> None:
        """Raises if the texts look like labels and the labels like texts: hardly a label occurs twice, but texts do."""
        num_texts = len({example.texts for example in examples})
        labels_are_many = num_labels > 2 * num_texts and num_labels > len(examples) / 2
        if self.config.kind == "one" and labels_are_many:
            raise BadInput(
                f"there are {num_labels:,} labels for {len(examples):,} rows but only {num_texts:,} different texts: "
                "are `text_column=` and `label_columns=` swapped?"
            )

    def _in_order(self, names: Iterable[str]) -> Names:
        """The names in the order of `label_names`, then those that it does not have."""
        order = index_of(self.config.label_names)

        def place(name: str) -> tuple[int, str]:
            return order.get(name, len(order)), name

        return tuple(sorted(names, key=place))

    def problems(self, examples: Examples, labels: Labels) -> Iterator[Problem]:
        if not labels:
            return
        for example in examples:
            golds = classify_labels.names_by_group(example.gold, kind=self.config.kind)
            for (group, known), gold in zip(labels.items(), golds, strict=True):
                unknown = sorted(gold - {*known})
                if unknown:
                    what = f"the {group} '{unknown[0]}' never occurs in training"
                    yield Problem(example.row, what, "add training rows with it or remove the row", is_unknown=True)

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
