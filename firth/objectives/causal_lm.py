"""Causal language model: the next token from those before it (Radford et al. 2018, equation 1), or both ways at once.

Cut: all documents end to end with an end-of-text token (the vocabulary's separator) behind each, in full windows that
begin elsewhere every epoch. Nothing is corrupted. Loss: cross-entropy at every token that has a next one; the scores
over the vocabulary never all exist at once.

With directions=both (Peters et al. 2018, equation 1) the first half of a state's columns has read the tokens up to its
own and predicts the one after it; the second half has read the sequence from its end and predicts the one before it.
Both use the same scores. The encoder must be blind in these directions; nothing here can check that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from firth import chance
from firth.data.joined import full_windows, join
from firth.data.packing import Pack, Plan
from firth.data.stream import Stream
from firth.errors import BadConfig
from firth.nn.blocks import initialise
from firth.nn.likelihood import IGNORE, summed_cross_entropy
from firth.tensors import Batch, Encoder, Loss, Objective, States
from firth.tokenizers.vocab import Frame, Vocab

FORWARD, BACKWARD = "causal_lm", "causal_lm_backward"


class CausalLM(Objective):
    word_losses = {FORWARD: "next token", BACKWARD: "token before"}

    @dataclass(frozen=True)
    class Config:
        directions: Literal["forward", "both"] = "forward"
        """Predict the token after each, or with the other half of each state also the token before it."""
        tied: bool = True
        """Whether the scores are products with the input embedding; otherwise with a matrix of their own."""
        bias: bool = False
        """Whether every token of the vocabulary has a bias."""
        num_words: int = 0
        """Predict only the vocabulary's first tokens, the most frequent, and all others as unknown; 0 predicts all."""

        def __post_init__(self) -> None:
            if self.num_words < 0:
                raise BadConfig(f"num_words must be at least 0; it is {self.num_words}.")

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config, self.max_length, self.seed = config, max_length, seed
        self.end, self.frame = vocab.sep, Frame(opening=vocab.frame.opening)
        self.names = (FORWARD,) if config.directions == "forward" else (FORWARD, BACKWARD)
        width = encoder.width // len(self.names)
        projects = config.tied and width != encoder.table_width
        self.project = nn.Linear(width, encoder.table_width) if projects else nn.Identity()
        self.size, self.unknown = min(config.num_words or encoder.vocab_size, encoder.vocab_size), vocab.unk
        self.out = None if config.tied else nn.Linear(width, self.size, bias=False)
        self.bias = nn.Parameter(torch.zeros(self.size)) if config.bias else None
        initialise(self, std=encoder.init_std)
        if self.out is not None:
            nn.init.normal_(self.out.weight, std=width**-0.5)  # scores as large as a state's columns

    def sequences(self, stream: Stream, epoch: int) -> Plan:
        size = self.max_length - self.frame.size()
        shift = int(chance.below(chance.key(self.seed, "windows", epoch), size))
        joined = join(stream, end=self.end)
        windows_S12 = full_windows(joined, size, shift=shift)
        longer = windows_S12[:, 0, 1] - windows_S12[:, 0, 0] > 1  # a lone token has no neighbour
        return Plan(windows_S12[longer], frame=self.frame, joined=joined)

    def corrupt(self, pack: Pack, epoch: int) -> None:
        lasts, firsts = pack.bounds_B1[1:] - 1, pack.bounds_B1[:-1]
        for name, step, edges in zip(self.names, (1, -1), (lasts, firsts), strict=False):
            labels = np.full(pack.num_tokens, IGNORE, np.int64)
            labels[: len(pack.ids_N)] = np.roll(pack.ids_N, -step)
            labels[labels >= self.size] = self.unknown
            labels[edges] = IGNORE
            pack.targets[f"{name}_labels"] = labels

    def loss(self, states: States, batch: Batch) -> Loss:
        sums, tallies = {}, {}
        for name, x_ND in zip(self.names, states.last_ND.chunk(len(self.names), 1), strict=True):
            sums[name], tallies[f"{name}_correct"] = self.summed(x_ND, batch.targets[f"{name}_labels"], states.table_VD)
        return Loss(sums, tallies)

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {name: int((batch.targets[f"{name}_labels"] != IGNORE).sum()) for name in self.names}

    def scores(self, x_PD: Tensor, table_VD: Tensor) -> Tensor:
        """Scores over the vocabulary from the states (or halves of states) of some tokens."""
        return linear(self.project(x_PD), *self._output(table_VD))

    def known(self, labels_N: Tensor) -> Tensor:
        """Labels with the unknown token in place of those that are never predicted."""
        return torch.where(labels_N < self.size, labels_N, self.unknown)

    def summed(self, x_ND: Tensor, labels_N: Tensor, table_VD: Tensor) -> tuple[Tensor, Tensor]:
        """The cross-entropy summed over all labels, and how many of them score highest."""
        return summed_cross_entropy(self.project(x_ND), *self._output(table_VD), labels_P=labels_N)

    def _output(self, table_VD: Tensor) -> tuple[Tensor, Tensor | None]:
        return table_VD[: self.size] if self.out is None else self.out.weight, self.bias


def next_tokens(batch: Batch) -> Tensor:
    """The label of every token of a batch without filler: the token after it in its sequence."""
    labels_N = batch.ids_N.roll(-1)
    return labels_N.index_fill(0, batch.bounds_B1[1:].long() - 1, IGNORE)
