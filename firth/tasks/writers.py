"""How encoders learn to write a target from a source, and how they write one: a `Writer` for each kind of network.

In: pairs of token ids. Out: batches with labels, their loss, and the scores of next tokens that `nn.decoding.write`
asks for. An encoder-decoder reads the source with its encoder and writes with its decoder. Another kind of network is
another class here and a line in `writer_for`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from firth.data.items import Item, Window, pack_windows, window
from firth.data.packing import pack_tokens
from firth.errors import Unsupported
from firth.nn.attention import Source
from firth.nn.decoding import NextScores
from firth.nn.encoder_decoder import EncoderDecoder, output_loss, output_scores
from firth.nn.kv_cache import KeyValueCache
from firth.tasks.prefix_writer import LABELS, PrefixWriter
from firth.tensors import Batch, Encoder, States
from firth.tokenizers.vocab import Vocab


class Writer(Protocol):
    """What one kind of network needs to learn and to write."""

    def room(self, max_length: int, vocab: Vocab) -> int:
        """Tokens of a target that fit into a sequence of `max_length` tokens."""
        ...

    def longest(self, max_positions: int) -> int:
        """Tokens of the longest text that is written, the one that ends it included."""
        ...

    def source_window(self, source: np.ndarray, vocab: Vocab, *, max_length: int) -> Window:
        """The source as the network reads it; what does not fit is cut off at the end."""
        ...

    def batch(self, items: Sequence[Item], targets: Sequence[np.ndarray], vocab: Vocab) -> Batch:
        """Sources with their targets, and the labels that `loss` needs."""
        ...

    def training_input(self, batch: Batch) -> Batch:
        """What the network reads instead of a batch while it learns."""
        ...

    def loss(self, states: States, batch: Batch, *, smoothing: float) -> tuple[Tensor, dict[str, Tensor]]:
        """The cross-entropy summed over all labels, and tallies: how many of them have the highest score."""
        ...

    def next_scores(self, encoder: Encoder, items: Sequence[Item], vocab: Vocab, *, longest: int) -> NextScores:
        """The scores of next tokens of the targets of some sources; no target gets longer than `longest`."""
        ...


Way = Literal["", "source", "prefix"]
"""How a model writes: as an encoder-decoder, or with source and target in one sequence; empty is the first."""


def can_write(encoder: Encoder) -> bool:
    """Whether an encoder writes as it is, without an output layer that a task adds."""
    return encoder.reads_source


def writer_for(encoder: Encoder, way: Way) -> Writer:
    """How an encoder writes; raises for one that cannot."""
    if way == "prefix":
        if not encoder.reads_prefix or encoder.causal:
            raise Unsupported("Only a BERT writes with way=prefix; leave it out.")
        return PrefixWriter(encoder)
    if isinstance(encoder, EncoderDecoder):
        return SourceWriter(encoder.config.start_token)
    raise Unsupported(
        "This model reads but cannot write; fine-tuning with `task='rewrite'` makes an encoder-decoder of a BERT, "
        "or a new one if no model is named."
    )


@dataclass(frozen=True)
class SourceWriter:
    """An encoder-decoder: the decoder reads `[start] t1 .. tn` and is to write `t1 .. tn [end]`."""

    start_token: int | None
    """With which every target begins; None: the vocabulary's [CLS]."""

    def start(self, vocab: Vocab) -> int:
        return vocab.cls if self.start_token is None else self.start_token

    def room(self, max_length: int, vocab: Vocab) -> int:
        # The token that begins a target, or ends it.
        return max_length - 1

    def longest(self, max_positions: int) -> int:
        return max_positions

    def source_window(self, source: np.ndarray, vocab: Vocab, *, max_length: int) -> Window:
        return window(vocab, source[: max_length - vocab.frame.size()])

    def batch(self, items: Sequence[Item], targets: Sequence[np.ndarray], vocab: Vocab) -> Batch:
        start = self.start(vocab)
        inputs = []
        labels = []
        for target in targets:
            inputs.append(np.concatenate([[start], target]))
            labels.append(np.concatenate([target, [vocab.sep]]))
        labels_N = torch.from_numpy(np.concatenate(labels).astype(np.int64))
        return replace(pack_tokens(inputs), source=pack_sources(items), targets={LABELS: labels_N})

    def training_input(self, batch: Batch) -> Batch:
        return batch

    def loss(self, states: States, batch: Batch, *, smoothing: float) -> tuple[Tensor, dict[str, Tensor]]:
        total, correct = output_loss(states, batch.targets[LABELS], smoothing=smoothing)
        return total, {"correct": correct}

    def next_scores(self, encoder: Encoder, items: Sequence[Item], vocab: Vocab, *, longest: int) -> NextScores:
        assert isinstance(encoder, EncoderDecoder)
        return SourceScores(encoder, pack_sources(items), start=self.start(vocab), longest=longest)


def pack_sources(items: Sequence[Item]) -> Batch:
    return pack_windows([item.windows[0] for item in items])


class SourceScores:
    """The scores of next tokens by an encoder-decoder with a key-value cache; each step reads one token a target."""

    def __init__(self, encoder: EncoderDecoder, source: Batch, *, start: int, longest: int) -> None:
        self.encoder = encoder
        self.device = encoder.tokens.weight.device
        self.start = start
        num_texts = len(source.bounds_B1) - 1
        self.source: Source | None = encoder.encode_source(source.to(self.device))
        self.cache = KeyValueCache(encoder.num_decoder_layers, num_texts, longest)
        self.num_texts = num_texts

    def first(self) -> Tensor:
        scores_BV = self._read([self.start] * self.num_texts)
        # The cache holds all that is needed of it.
        self.source = None
        return scores_BV

    def next(self, parents: list[int], tokens: list[int]) -> Tensor:
        self.cache.keep(torch.tensor(parents))
        return self._read(tokens)

    def _read(self, tokens: list[int]) -> Tensor:
        ids_N = torch.tensor(tokens)
        bounds_B1 = torch.arange(len(tokens) + 1, dtype=torch.int32)
        # The cache holds all tokens before this one, so their number is its position.
        positions_N = self.cache.lengths_B.clone()
        batch = Batch(ids_N, positions_N, torch.zeros_like(ids_N), bounds_B1, 1).to(self.device)
        states: States = self.encoder(batch, cache=self.cache, source=self.source)
        return output_scores(states)
