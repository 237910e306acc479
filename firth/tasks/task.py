"""The base of all tasks: goals whose labels people wrote."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from firth.data.items import Item
from firth.errors import Unsupported
from firth.tensors import Batch, Encoder, Goal, States
from firth.tokenizers import Tokenizer
from firth.types import Example, Prediction, Problem

Labels = Mapping[str, tuple[str, ...]]
"""The names a task chooses from, by group; most tasks have one group, some have none."""


class Task(Goal):
    """A goal whose labels people wrote: it reads their files, says what its sequences are, and scores what it predicts.

    `firth/tasks/__init__.py` tells how the parts of a task meet.
    """

    name: str
    """The table's name; a second task of a kind in one run gets a number, as in `classify-2`."""
    main: str
    """The figure of `score` that epochs are picked on; higher is better."""
    endings: tuple[str, ...] = (".tsv", ".csv", ".json", ".jsonl")
    """Files that `predict` reads as this task's own; a line of any other is a text."""
    needs_layers: bool = False
    """Whether `outputs` reads the states of all layers."""
    embeds: str = ""
    """The pooling whose vectors this task makes comparable by cosine; empty where it makes none."""

    def __init__(self, config: Any, encoder: Encoder, *, labels: Labels) -> None:
        super().__init__()
        if encoder.causal and getattr(config, "pooling", "") == "cls":
            config = replace(config, pooling="last")  # the first token has read nothing but itself
        self.config, self.labels = config, labels

    @classmethod
    def untrained(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings with which a model answers as it is, where a task has such."""
        raise Unsupported(f"{cls.name} needs a model that was fine-tuned for it; `firth finetune` makes one.")

    @classmethod
    def resolve_config(cls, config: Any) -> Any:
        """The config with all that its preset implies."""
        return config

    @classmethod
    def locate(cls, config: Any, path: Path) -> Any:
        """The config with the columns that only the training file's header tells, for files that have fewer columns."""
        return config

    @classmethod
    def read(cls, path: Path, config: Any, problems: list[Problem], *, labelled: bool = True) -> Sequence[Example]:
        """The rows of a file; rows that cannot be used go to `problems` and not to the examples."""
        raise NotImplementedError

    @classmethod
    def learn(cls, config: Any, examples: Sequence[Example]) -> Any:
        """The config with what only the training rows tell, such as a tag scheme."""
        return config

    @classmethod
    def labels_of(cls, examples: Sequence[Example], config: Any) -> Labels:
        """The names that occur, in an order that depends on nothing but the names."""
        return {}

    @classmethod
    def problems(cls, examples: Sequence[Example], config: Any, labels: Labels) -> Iterable[Problem]:
        """What else is wrong with examples once the labels are known; those of bad rows are not used."""
        return ()

    @classmethod
    def group(cls, example: Example) -> Hashable:
        """Rows of one group are held out together or not at all: the same text, the same passage."""
        return example.texts

    @classmethod
    def balance(cls, examples: Sequence[Example], config: Any) -> dict[str, dict[str, int]]:
        """How often each name occurs, by group."""
        names = Counter(example.gold for example in examples if isinstance(example.gold, str))
        return {"label": dict(sorted(names.items()))} if names else {}

    @classmethod
    def example(cls, value: Any, config: Any) -> Example:
        """An input as a person gives it to `predict`, without gold."""
        raise NotImplementedError

    def encode(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, training: bool
    ) -> Sequence[Item]:
        """Examples -> items, one each: the windows the encoder will read."""
        raise NotImplementedError

    def batch(self, items: Sequence[Item]) -> Batch:
        """Items with their gold -> one batch with the targets `loss` needs."""
        raise NotImplementedError

    def outputs(self, states: States, batch: Batch) -> list[np.ndarray]:
        """What the head says of each sequence of a batch (which has no targets here)."""
        raise NotImplementedError

    def decide(self, item: Item, outputs: list[np.ndarray]) -> Prediction:
        """An item's prediction from the outputs of all its windows."""
        raise NotImplementedError

    def decide_all(self, items: Sequence[Item], outputs: Sequence[list[np.ndarray]]) -> list[Prediction]:
        """All items' predictions; overridden where deciding many at once is quicker."""
        return [self.decide(item, arrays) for item, arrays in zip(items, outputs, strict=True)]

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, float]:
        raise NotImplementedError

    def perfect(self, example: Example) -> Prediction:
        """What a model would say that knows the gold."""
        return Prediction(example.gold)

    def baseline(self, train: Sequence[Example], examples: Sequence[Example]) -> list[Prediction]:
        """What someone who reads only the labels of `train` would answer."""
        raise NotImplementedError

    def weigh(self, examples: Sequence[Example]) -> None:
        """Learns from the labels of the training rows what the loss needs, such as the weights of names."""

    def tune(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> list[Prediction]:
        """Finds on dev what cannot be learned by gradients (a threshold); gives the predictions with it."""
        return list(predictions)

    def details(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Any]:
        """What a report shows besides figures: `confusion` {labels, counts}, `per_label` rows of names and numbers."""
        return {}

    def error(self, prediction: Prediction, example: Example) -> float:
        """How badly wrong a prediction is, from 0 for right: reports show the worst."""
        raise NotImplementedError
