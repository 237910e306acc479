"""The types that carry tensors, and the bases `Encoder` and `Goal` of everything that is trained. Read this first.

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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from firth.nn.attention import Source


CONTEXT_RANK = -1
"""The rank of tokens that are not predicted: they see each other, and all predicted tokens see them."""
MEMORY_RANK = -2
"""The rank of the memory: it sees only itself, all others see it, and no gradient goes into it."""


@dataclass(frozen=True)
class PredictionOrder:
    """An order of prediction for each sequence: a token's state has read the tokens of its own rank and below."""

    ranks_N: Tensor
    """Each token's place in the order of its sequence, from 0; `CONTEXT_RANK` and `MEMORY_RANK` come before it."""
    queries_P: Tensor
    """The predicted tokens, sequence after sequence: each is predicted from the ranks below its own."""
    query_bounds_B1: Tensor
    """int32: where the queries of each sequence begin."""
    max_queries: int
    """The most queries of a sequence."""

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "PredictionOrder":
        ranks_N = change(self.ranks_N)
        queries_P = change(self.queries_P)
        return PredictionOrder(ranks_N, queries_P, change(self.query_bounds_B1), self.max_queries)


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
    prefix_B: Tensor | None = None
    """If set, all tokens see the first so many of their sequence, and those after them causally (UniLM)."""
    order: "PredictionOrder | None" = None
    """If set, the order in which a network with two streams predicts tokens (XLNet)."""

    @property
    def num_tokens(self) -> int:
        return self.ids_N.shape[0]

    def to(self, device: torch.device | str, *, non_blocking: bool = True) -> Self:
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Tensor):
                changed[each.name] = change(value)
        targets = {name: change(value) for name, value in self.targets.items()}
        source = None if self.source is None else self.source._map(change)
        order = None if self.order is None else self.order.mapped(change)
        return replace(self, targets=targets, source=source, order=order, **changed)


@dataclass(frozen=True)
class States:
    """What an encoder says about a batch."""

    last_ND: Tensor
    table_VD: Tensor
    """The input embedding, so that a head can tie to it; where a source was read, the output layer's matrix."""
    pooled_BD: Tensor | None = None
    layers: tuple[Tensor, ...] = ()
    """Embeddings and every layer's output, on request."""
    attention: tuple[tuple[Tensor, ...], ...] = ()
    """On request: for each layer, for each sequence, its H x L x L weights."""
    cross_attention: tuple[tuple[Tensor, ...], ...] = ()
    """On request, where a source was read: for each layer, for each sequence, its H x L x S weights."""
    source: "Source | None" = None
    """What a decoder read."""
    output_NE: Tensor | None = None
    """What the output layer of an encoder-decoder reads: `last_ND`, in some shapes scaled or projected."""
    output_bias_V: Tensor | None = None
    """The bias of that output layer, if there is one."""
    queries_PD: Tensor | None = None
    """Where the batch has an order: the states of its queries, which have not read their own token."""


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
    reads_source: bool = False
    """Whether it is an encoder-decoder (`firth.nn.encoder_decoder`).

    Given a batch with a `source`, its states are the decoder's. Given one without, they are those of the encoder half.
    """
    reads_prefix: bool = False
    """Whether it honours `Batch.prefix_B`."""
    has_two_streams: bool = False
    """Whether it honours `Batch.order`, and then gives `States.queries_PD`."""
    cls_last: bool = False
    """Whether the last token of a sequence stands for all of it, as in XLNet, and not the first."""
    text_layer: str = "none"
    """The layer between a text's vector and the scores of a classifier, a name in `firth.nn.heads.LAYERS`."""
    token_layer: str = "none"
    """The same between the state of a token and the scores of a tagger."""

    @property
    def init_std(self) -> float:
        """Of the weights that heads over it begin with."""
        return float(getattr(self.config, "init_std", 0.02))

    @property
    def table_width(self) -> int:
        """Columns of `States.table_VD`: the width, unless the embedding is factorised."""
        return self.width

    @property
    def num_decoder_layers(self) -> int:
        """Blocks whose keys and values a cache keeps: all of them, unless it is an encoder-decoder."""
        return self.num_layers

    def encode_source(self, source: Batch) -> "Source":
        """What the decoder reads of a source; only where `reads_source`."""
        raise NotImplementedError

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        raise NotImplementedError


class Goal(nn.Module):
    """Something to learn over an encoder. It owns its head and never keeps the encoder.

    An objective makes its own labels (`firth/objectives/objective.py`); a task reads labels that people wrote
    (`firth/tasks/task.py`).
    """

    Config: ClassVar[type]
    config: Any
    word_losses: ClassVar[Mapping[str, str]] = {}
    """Its losses over the vocabulary, which a model without context would bring to the unigram floor, and what each
    predicts (such as `next token`); it always has the first."""
    needs_layers: bool = False
    """Whether it reads the states of all layers."""

    def loss(self, states: States, batch: Batch) -> Loss:
        raise NotImplementedError

    def counts(self, batch: Batch) -> Mapping[str, int]:
        """The denominators of the loss's sums, known before the first backward."""
        raise NotImplementedError

    def rewrite(self, batch: Batch) -> tuple[Batch, Loss]:
        """What the encoder reads instead of this batch, and the loss of the network that wrote it.

        Overridden by goals with a second network, such as ELECTRA's generator. All goals share one pass of the encoder.
        """
        return batch, Loss({})

    def nothing_learned(self, figures: Mapping[str, float]) -> str:
        """What the training figures show if this goal has not learned anything; empty if it has.

        Asked once, some way into a run. Losses over the vocabulary are compared with the unigram floor elsewhere.
        """
        return ""


def as_tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def parameter_count(modules: Iterable[nn.Module]) -> int:
    parameters: set[nn.Parameter] = set()
    for module in modules:
        parameters.update(module.parameters())
    return sum(parameter.numel() for parameter in parameters)
