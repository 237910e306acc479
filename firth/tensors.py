"""The nouns of tensors and the three bases everything trained is built from. Read this first.

Shape legend (suffix of every tensor name, one letter a dimension):
    N tokens of all sequences of a batch, end to end      B sequences        B1 = B + 1 bounds
    L length of a sequence or group (padded)              G sequences of a group of similar length
    S tokens that are attended to, where these are not the N or L: a decoder's source, all that a cache holds
    P positions that are predicted                        V vocabulary       D width     F feed-forward width
    H heads                                               K width of a head (D / H)
    E width of the input embedding where it is not D
    T labels (tags)                                       M parts (characters, n-grams, features)

Sequences lie end to end, without padding: attention never crosses a bound, everything else sees N tokens.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from firth.errors import Unsupported
from firth.types import Example, Prediction, Problem


@dataclass(frozen=True)
class Batch:
    """Sequences end to end: the shape everything runs on."""

    ids_N: Tensor
    positions_N: Tensor
    segments_N: Tensor
    bounds_B1: Tensor
    """int32 cumulative lengths; where shapes are static the tail repeats N (sequences of length zero)."""
    max_length: int
    targets: Mapping[str, Tensor] = field(default_factory=dict)
    goal: str = ""
    parts_M: Tensor | None = None
    """Where a token has many ids (characters, n-grams, features): those of all tokens, end to end."""
    part_bounds_N1: Tensor | None = None
    """Where each token's parts begin."""
    source: "Batch | None" = None
    """What a decoder reads: one sequence for each of this batch."""

    @property
    def num_tokens(self) -> int:
        return self.ids_N.shape[0]

    def to(self, device: torch.device | str, *, non_blocking: bool = True) -> Self:
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Any) -> Self:
        changed = {f.name: change(v) for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}
        targets = {name: change(value) for name, value in self.targets.items()}
        source = None if self.source is None else self.source._map(change)
        return replace(self, targets=targets, source=source, **changed)


@dataclass(frozen=True)
class States:
    """What an encoder says about a batch."""

    last_ND: Tensor
    table_VD: Tensor
    """The input embedding, so that a head can tie to it."""
    pooled_BD: Tensor | None = None
    layers: tuple[Tensor, ...] = ()
    """Embeddings and every layer's output, on request."""
    attention: tuple[tuple[Tensor, ...], ...] = ()
    """On request: for each layer, for each sequence, its H x L x L weights."""


@dataclass(frozen=True)
class Loss:
    """Sums, not means: a step divides by the counts of all its micro-batches and ranks, so its mean is right."""

    sums: Mapping[str, Tensor]
    """What is minimised: one sum for each name in the goal's `counts`."""
    tallies: Mapping[str, Tensor] = field(default_factory=dict)
    """Sums to look at: `<name>_correct` is divided by the same count for reports, and `<any>` by `<any>_of`. They are
    numbers of tokens or the like, except `<any>_loss`."""

    def __add__(self, other: "Loss") -> "Loss":
        return Loss({**self.sums, **other.sums}, {**self.tallies, **other.tallies})


UNLIMITED = 1_000_000
"""The `max_positions` of an encoder that reads sequences of any length."""


class Encoder(nn.Module):
    """Batch -> states. `Config` is a frozen dataclass; `width` and `vocab_size` are what heads need to know."""

    Config: ClassVar[type]
    config: Any
    width: int
    vocab_size: int
    max_positions: int = UNLIMITED
    """The longest sequence, special tokens included."""
    num_layers: int = 0
    """Blocks that `States.layers` shows above the embeddings."""
    causal: bool = False
    """Whether a token's state knows nothing of the tokens after it."""
    supports_cache: bool = False
    """Whether `forward` takes a `cache`, a `firth.nn.kv_cache.KeyValueCache`, and then reads only new tokens."""
    shows_attention: bool = False
    """Whether `States.attention` holds the weights when asked for."""

    @property
    def init_std(self) -> float:
        """Of the weights that heads over it begin with."""
        return float(getattr(self.config, "init_std", 0.02))

    @property
    def table_width(self) -> int:
        """Columns of `States.table_VD`: the width, unless the embedding is factorised."""
        return self.width

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        raise NotImplementedError


class Goal(nn.Module):
    """Something to learn over an encoder. It owns its head and never keeps the encoder."""

    Config: ClassVar[type]
    config: Any
    word_losses: ClassVar[Mapping[str, str]] = {}
    """Its losses over the vocabulary, which a model without context would bring to the unigram floor, and what each
    predicts (such as `next token`); it always has the first."""

    def loss(self, states: States, batch: Batch) -> Loss:
        raise NotImplementedError

    def counts(self, batch: Batch) -> Mapping[str, int]:
        """The denominators of the loss's sums, known before the first backward."""
        raise NotImplementedError

    def step(self, encoder: Encoder, batch: Batch) -> Loss:
        """Overridden by goals that look at the encoder's input or run a second network."""
        return self.loss(encoder(batch), batch)


class Objective(Goal):
    """A goal that makes its own labels. Of several, the first cuts the stream, and all corrupt in order.

    What needs no gradients is no goal of the loop but a `firth/objectives/solver.py`.
    """

    requires: ClassVar[tuple[str, ...]] = ()
    """Objectives that must have corrupted a pack before this one can."""

    def set_tokenizer(self, tokenizer: Any) -> None:
        """Told once, before any training, what made the ids; overridden by objectives that read words of their own."""

    def warning(self) -> str:
        """What a person should know before they train with it; overridden where there is something."""
        return ""

    def nothing_learned(self, figures: Mapping[str, float]) -> str:
        """What the training figures show if this objective has not learned anything; empty if it has.

        Asked once, some way into a run. Losses over the vocabulary are compared with the unigram floor elsewhere.
        """
        return ""

    def sequences(self, stream: Any, epoch: int) -> Any:
        """Cuts a stream of documents into a plan: which tokens make up each sequence of this epoch."""
        raise NotImplementedError

    def corrupt(self, pack: Any, epoch: int) -> None:
        """Changes a pack's ids and adds the targets of this objective, as numpy arrays."""
        raise NotImplementedError


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

    def encode(self, examples: Sequence[Example], tokenizer: Any, *, max_length: int, training: bool) -> Sequence[Any]:
        """Examples -> `firth.data.items.Item`s, one each: the windows the encoder will read."""
        raise NotImplementedError

    def batch(self, items: Sequence[Any]) -> Batch:
        """Items with their gold -> one batch with the targets `loss` needs."""
        raise NotImplementedError

    def outputs(self, states: States, batch: Batch) -> list[np.ndarray]:
        """What the head says of each sequence of a batch (which has no targets here)."""
        raise NotImplementedError

    def decide(self, item: Any, outputs: list[np.ndarray]) -> Prediction:
        """An item's prediction from the outputs of all its windows."""
        raise NotImplementedError

    def decide_all(self, items: Sequence[Any], outputs: Sequence[list[np.ndarray]]) -> list[Prediction]:
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


def as_tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def parameter_count(modules: Iterable[nn.Module]) -> int:
    return sum(p.numel() for p in {p for module in modules for p in module.parameters()})
