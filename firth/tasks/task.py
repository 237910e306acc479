"""What a task is: settings and three parts, each with one job.

A `Reader` turns labelled files into examples and needs no network. A `Head` turns examples into the sequences an
encoder reads, and an encoder's states into a loss or into predictions. A `Scorer` compares predictions with gold labels
and needs no network either. A `Task` names these classes; `firth/tasks/__init__.py` says in which order they run.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypedDict, TypeVar, cast

import numpy as np
from torch import Tensor

from firth.data.items import Item
from firth.errors import Unsupported
from firth.tasks.calibration import CalibrationSummary
from firth.tensors import Batch, Encoder, Goal, States
from firth.tokenizers import Tokenizer
from firth.types import Example, Prediction, Problem

Examples = Sequence[Example]
Predictions = Sequence[Prediction]
Items = Sequence[Item]

Pooling = TypeVar("Pooling", bound=str)

Figures = dict[str, float]
"""Metrics by name."""

Labels = Mapping[str, tuple[str, ...]]
"""The names a task chooses from, by group; most tasks have one group, some have none."""

Balance = dict[str, dict[str, int]]
"""How often each name occurs, by group."""

OnProgress = Callable[[float, str], None]
"""Called with the number of windows read so far, and a note for the progress bar."""


@dataclass(frozen=True)
class TaskConfig:
    """The settings of a task: how its files are read, what its head is, how it is scored. A run saves them all."""

    def with_preset(self) -> Self:
        """The settings with all that their preset implies, so that saved settings say everything."""
        return self

    def for_encoder(self, encoder: Encoder) -> Self:
        """The settings as this encoder needs them; overridden by tasks that pool tokens."""
        return self


def pooling_for(pooling: Pooling, encoder: Encoder) -> Pooling | Literal["last"]:
    """The pooling for an encoder. The first token of a causal one has read only itself; XLNet's `<cls>` is the last."""
    if pooling == "cls" and (encoder.causal or encoder.cls_last):
        return "last"
    return pooling


LayerKind = Literal["auto", "none", "tanh", "gelu", "relu", "gelu-norm"]


def layer_for(layer: LayerKind, encoder: Encoder, *, pooling: str) -> LayerKind:
    """The layer between a text's vector and its scores: `auto` becomes the one that this encoder usually has."""
    if pooling == "concat":
        return "none"
    if layer == "auto":
        return cast(LayerKind, encoder.text_layer)
    return layer


@dataclass(frozen=True)
class Reader:
    """Labelled files -> examples, labels and problems. It needs no network."""

    config: TaskConfig
    endings: ClassVar[tuple[str, ...]] = (".tsv", ".csv", ".json", ".jsonl")
    """Files that `predict` reads with `read`; each line of any other file is a text."""

    @property
    def between_rows(self) -> str:
        """What must stand between two rows, where a line is not a row."""
        return ""

    def locate(self, path: Path) -> TaskConfig:
        """The config with the columns that only the training file's header tells, for files that have fewer columns."""
        return self.config

    def read(self, path: Path, problems: list[Problem], *, labelled: bool = True) -> Sequence[Example]:
        """The rows of a file. A row that cannot be used is appended to `problems` and is not among the examples.

        A file whose form fits no row (a missing column) raises `BadInput`. With `labelled=False` gold may be missing.
        """
        raise NotImplementedError

    def files(self, path: Path) -> tuple[Path, ...]:
        """All files that `read(path)` opens; overridden if a file has another one that belongs to it."""
        return (path,)

    def learn(self, examples: Examples) -> TaskConfig:
        """The config with what only the training rows tell, such as a tag scheme."""
        return self.config

    def labels_of(self, examples: Examples) -> Labels:
        """The names that occur, in an order that depends on nothing but the names."""
        return {}

    def problems(self, examples: Examples, labels: Labels) -> Iterable[Problem]:
        """What else is wrong with examples once the labels are known; those of bad rows are not used."""
        return ()

    def group(self, example: Example) -> Hashable:
        """Rows of one group are held out together or not at all: the same text, the same passage."""
        return example.texts

    def balance(self, examples: Examples) -> Balance:
        """How often each name occurs, by group."""
        names = Counter(example.gold for example in examples if isinstance(example.gold, str))
        if not names:
            return {}
        return {"label": dict(sorted(names.items()))}

    def example(self, value: object) -> Example:
        """An input of `predict` (a text, several texts, or a row with named columns) as an example without gold."""
        raise NotImplementedError


class Head(Goal):
    """Examples -> sequences, and states -> a loss or predictions.

    It is what a run trains and what `head.safetensors` holds. Of the encoder only its width and config may be read; the
    encoder is not kept.
    """

    name: str
    """The table's name; a second task of the same kind in one run gets a number, as in `classify-2`."""
    config: TaskConfig
    labels: Labels
    embeds: str = ""
    """The pooling whose vectors this head makes comparable by cosine; empty if there is none."""

    def __init__(self, config: TaskConfig, encoder: Encoder, *, labels: Labels) -> None:
        super().__init__()
        self.config = config.for_encoder(encoder)
        self.labels = labels

    def encode(self, examples: Examples, tokenizer: Tokenizer, *, max_length: int, training: bool) -> Sequence[Item]:
        """Examples -> items, one each: the windows the encoder will read."""
        raise NotImplementedError

    def token_problems(self, examples: Examples, tokenizer: Tokenizer, *, max_length: int) -> Iterable[Problem]:
        """What is wrong with training rows that only their tokens show, such as a target longer than the model."""
        return ()

    def batch(self, items: Items) -> Batch:
        """Items with their gold -> one batch with the targets that `loss` needs."""
        raise NotImplementedError

    def outputs(self, states: States, batch: Batch) -> list[np.ndarray]:
        """One array for each sequence of a batch, which has no targets here."""
        raise NotImplementedError

    def decide(self, item: Item, outputs: list[np.ndarray]) -> Prediction:
        """An item's prediction from the outputs of all its windows."""
        raise NotImplementedError

    def decide_all(self, items: Items, outputs: Sequence[list[np.ndarray]]) -> list[Prediction]:
        """All items' predictions; overridden if deciding many at once is faster."""
        return [self.decide(item, arrays) for item, arrays in zip(items, outputs, strict=True)]

    def start_from(self, goals: Mapping[str, Goal]) -> None:
        """Called once before training with the heads of pre-training; overridden by heads that begin as one of them."""

    def calibrate_prompt(self, encoder: Encoder, tokenizer: Tokenizer) -> None:
        """Called once after `start_from`; finds what the head needs to know of the encoder as it is."""

    def before_training(self, examples: Examples) -> None:
        """Called once with the training rows; learns from their labels what the loss needs, such as class weights."""

    def tune(self, predictions: Predictions, examples: Examples) -> list[Prediction]:
        """Finds on dev what gradients cannot (a threshold) and keeps it; returns the predictions with it."""
        return list(predictions)

    def calibrate(self, predictions: Predictions, examples: Examples) -> float:
        """Makes the probabilities of the trained head agree with how often it is right on dev.

        Returns the temperature that the scores are divided by from now on; 1 if nothing is changed. Overridden by heads
        whose scores can be scaled.
        """
        return 1.0


class GeneratingHead(Head):
    """A head whose predictions are texts that the model writes: it runs the encoder itself, token by token."""

    def generate(self, encoder: Encoder, items: Items, *, advance: OnProgress | None = None) -> list[Prediction]:
        """A prediction for each item, in order; `advance` is told how many are done."""
        raise NotImplementedError

    def outputs(self, states: States, batch: Batch) -> list[np.ndarray]:
        raise Unsupported("A model that writes has no scores of labels.")


class Confusion(TypedDict):
    labels: list[str]
    counts: list[list[int]]
    """A row for each gold label, a column for each predicted one."""


class Details(TypedDict, total=False):
    """What a report shows besides figures."""

    confusion: Confusion
    per_label: list[list[str | float]]
    """Label, precision, recall, F1 and the number of gold rows."""
    calibration: CalibrationSummary
    """How far the probabilities can be trusted."""


@dataclass(frozen=True)
class Scorer:
    """Predictions and gold labels -> figures. It needs no network."""

    config: TaskConfig
    labels: Labels

    @classmethod
    def of(cls, head: Head) -> Self:
        """The scorer for a head's predictions; overridden if it needs more of the head than its config and labels."""
        return cls(head.config, head.labels)

    @property
    def main_metric(self) -> str:
        """The figure of `score` that the best epoch is picked by; higher is better."""
        raise NotImplementedError

    def score(self, predictions: Predictions, examples: Examples) -> Figures:
        raise NotImplementedError

    def details(self, predictions: Predictions, examples: Examples) -> Details:
        return {}

    def error(self, prediction: Prediction, example: Example) -> float:
        """How wrong a prediction is, from 0 for right; reports show the worst."""
        raise NotImplementedError

    def baseline(self, train: Examples, examples: Examples) -> list[Prediction]:
        """Predictions for `examples` made from the labels of `train` alone, without reading any text."""
        raise NotImplementedError

    def perfect(self, example: Example) -> Prediction:
        """The prediction that is exactly the gold label."""
        return Prediction(example.gold)


# Small things that several tasks need


def gold_labels(examples: Examples) -> list[Any]:
    return [example.gold for example in examples]


def predicted_labels(predictions: Predictions) -> list[Any]:
    return [prediction.label for prediction in predictions]


def as_array(outputs: Tensor) -> np.ndarray:
    """A head's outputs in single precision, off the device."""
    array: np.ndarray = outputs.float().cpu().numpy()
    return array


def different_texts(examples: Examples) -> list[str]:
    """All texts of some examples, each once, in order."""
    texts: dict[str, None] = {}
    for example in examples:
        texts.update(dict.fromkeys(example.texts))
    return list(texts)


def index_of(names: Sequence[str]) -> dict[str, int]:
    """The place of each name."""
    return {name: place for place, name in enumerate(names)}


Name = TypeVar("Name", bound=str | int | tuple[str, ...])


def most_frequent(names: Iterable[Name]) -> Name:
    """The most frequent of some names; of several equally frequent ones the first in sorted order."""
    counts = Counter(names)
    return min(counts, key=lambda name: (-counts[name], name))


@dataclass(frozen=True)
class Task:
    """The classes a task is made of."""

    Config: type[TaskConfig]
    reader: type[Reader]
    head: type[Head]
    scorer: type[Scorer]
    untrained: Mapping[str, object] | None = None
    """Settings with which a model does the task without fine-tuning; None if it cannot."""
    new_backbone: Literal["model", "transformer"] = "model"
    """What learns the task if no model is named: a name of `finetuning.backbones.BACKBONES`."""

    def untrained_options(self, options: Mapping[str, object]) -> Mapping[str, object]:
        """The user's options over the settings for a model that was not fine-tuned."""
        if self.untrained is None:
            raise Unsupported(f"{self.head.name} needs a model that was fine-tuned for it; `firth finetune` makes one.")
        return {**self.untrained, **options}
