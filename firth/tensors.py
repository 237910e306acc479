"""The nouns of tensors and the three bases everything trained is built from. Read this first.

Shape legend (suffix of every tensor name, one letter a dimension):
    N tokens of all sequences of a batch, end to end      B sequences        B1 = B + 1 bounds
    L length of a sequence or group (padded)              G sequences of a group of similar length
    P positions that are predicted                        V vocabulary       D width     F feed-forward width
    H heads                                               K width of a head (D / H)
    T labels (tags)                                       M parts (characters, n-grams, features)

Sequences lie end to end, without padding: attention never crosses a bound, everything else sees N tokens.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn


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

    @property
    def num_tokens(self) -> int:
        return self.ids_N.shape[0]

    def to(self, device: torch.device | str, *, non_blocking: bool = True) -> Self:
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Any) -> Self:
        changed = {f.name: change(v) for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}
        return replace(self, targets={name: change(value) for name, value in self.targets.items()}, **changed)


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
    """Sums to look at, `<name>_correct`: divided by the same counts for reports."""

    def __add__(self, other: "Loss") -> "Loss":
        return Loss({**self.sums, **other.sums}, {**self.tallies, **other.tallies})


class Encoder(nn.Module):
    """Batch -> states. `Config` is a frozen dataclass; `width` and `vocab_size` are what heads need to know."""

    Config: ClassVar[type]
    config: Any
    width: int
    vocab_size: int

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        raise NotImplementedError


class Goal(nn.Module):
    """Something to learn over an encoder. It owns its head and never keeps the encoder."""

    Config: ClassVar[type]
    config: Any

    def loss(self, states: States, batch: Batch) -> Loss:
        raise NotImplementedError

    def counts(self, batch: Batch) -> Mapping[str, int]:
        """The denominators of the loss's sums, known before the first backward."""
        raise NotImplementedError

    def step(self, encoder: Encoder, batch: Batch) -> Loss:
        """Overridden by goals that look at the encoder's input or run a second network."""
        return self.loss(encoder(batch), batch)


class Objective(Goal):
    """A goal that makes its own labels. Of several, the first cuts the stream, and all corrupt in order."""

    def sequences(self, stream: Any, epoch: int) -> Any:
        """Cuts a stream of documents into a plan: which tokens make up each sequence of this epoch."""
        raise NotImplementedError

    def corrupt(self, pack: Any, epoch: int) -> None:
        """Changes a pack's ids and adds the targets of this objective, as numpy arrays."""
        raise NotImplementedError


def as_tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def parameter_count(modules: Iterable[nn.Module]) -> int:
    return sum(p.numel() for p in {p for module in modules for p in module.parameters()})
