"""Causal language model: the next token from those before it (Radford et al. 2018, equation 1), or both ways at once.

Cut: all documents end to end, each followed by an end-of-text token (the vocabulary's separator), in full windows that
begin elsewhere every epoch. Nothing is corrupted. Loss: cross-entropy at every token that has a next one, computed in
pieces (`nn/likelihood.py`), so that the scores of all tokens over the vocabulary never exist at once.

With directions=both (Peters et al. 2018, equation 1) the first half of a state's columns has read the tokens up to its
own and predicts the one after it; the second half has read the sequence from its end and predicts the one before it.
Both use the same output layer. The encoder must not see the tokens it predicts; nothing here can check that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from firth import rng
from firth.data.joined import full_windows, join
from firth.data.packing import Pack, Plan
from firth.data.stream import CorpusView
from firth.errors import BadConfig
from firth.nn.blocks import initialise
from firth.nn.likelihood import IGNORE, summed_cross_entropy
from firth.objectives.objective import Objective
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers.vocab import Frame, Vocab

FORWARD = "causal_lm"
BACKWARD = "causal_lm_backward"


class CausalLM(Objective):
    word_losses = {FORWARD: "next token", BACKWARD: "token before"}
    gives_perplexity = True

    @dataclass(frozen=True)
    class Config:
        directions: Literal["forward", "both"] = "forward"
        """Predict the token after each, or with the other half of each state also the token before it."""
        tied: bool = True
        """Whether the scores are products with the input embedding; otherwise with a separate matrix."""
        bias: bool = False
        """Whether every token of the vocabulary has a bias."""
        num_words: int = 0
        """Predict only the vocabulary's first tokens, the most frequent, and all others as unknown; 0 predicts all."""

        def __post_init__(self) -> None:
            if self.num_words < 0:
                raise BadConfig(f"num_words must be at least 0; it is {self.num_words}.")

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config = config
        self.max_length = max_length
        self.seed = seed
        self.end = vocab.sep
        self.frame = Frame(opening=vocab.frame.opening)
        self.names: tuple[str, ...] = (FORWARD,)
        if config.directions == "both":
            self.names = (FORWARD, BACKWARD)

        # Each direction has its own part of a state's columns.
        width = encoder.width // len(self.names)
        self.project: nn.Module = nn.Identity()
        if config.tied and width != encoder.table_width:
            self.project = nn.Linear(width, encoder.table_width)
        self.size = min(config.num_words or encoder.vocab_size, encoder.vocab_size)
        self.unknown = vocab.unk
        self.out = None if config.tied else nn.Linear(width, self.size, bias=False)
        self.bias = nn.Parameter(torch.zeros(self.size)) if config.bias else None
        initialise(self, std=encoder.init_std)
        if self.out is not None:
            # Scores get the scale of a state's columns.
            nn.init.normal_(self.out.weight, std=width**-0.5)

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        size = self.max_length - self.frame.size()
        shift = int(rng.below(rng.key(self.seed, "windows", epoch), size))
        joined = join(stream, end=self.end)
        windows_S12 = full_windows(joined, size, shift=shift)
        # A lone token has no neighbour to predict.
        sizes_S = windows_S12[:, 0, 1] - windows_S12[:, 0, 0]
        return Plan(windows_S12[sizes_S > 1], frame=self.frame, joined=joined)

    def corrupt(self, pack: Pack, epoch: int) -> None:
        last_tokens = pack.bounds_B1[1:] - 1
        pack.targets[f"{FORWARD}_labels"] = self._neighbours(pack, 1, without=last_tokens)
        if BACKWARD in self.names:
            first_tokens = pack.bounds_B1[:-1]
            pack.targets[f"{BACKWARD}_labels"] = self._neighbours(pack, -1, without=first_tokens)

    def _neighbours(self, pack: Pack, step: int, *, without: np.ndarray) -> np.ndarray:
        """The label of every token: the token one step on (1) or back (-1); tokens in `without` have none."""
        labels = np.full(pack.num_tokens, IGNORE, np.int64)
        labels[: len(pack.ids_N)] = np.roll(pack.ids_N, -step)
        labels[labels >= self.size] = self.unknown
        labels[without] = IGNORE
        return labels

    def loss(self, states: States, batch: Batch) -> Loss:
        sums = {}
        tallies = {}
        columns = states.last_ND.chunk(len(self.names), 1)
        for name, x_ND in zip(self.names, columns, strict=True):
            total, correct = self.summed(x_ND, batch.targets[f"{name}_labels"], states.table_VD)
            sums[name] = total
            tallies[f"{name}_correct"] = correct
        return Loss(sums, tallies)

    def counts(self, batch: Batch) -> Mapping[str, int]:
        counts = {}
        for name in self.names:
            is_label_N = batch.targets[f"{name}_labels"] != IGNORE
            counts[name] = int(is_label_N.sum())
        return counts

    def scores(self, x_PD: Tensor, table_VD: Tensor) -> Tensor:
        """Scores over the vocabulary from the states (or halves of states) of some tokens."""
        projected_PE = self.project(x_PD)
        weight_VE, bias_V = self._output(table_VD)
        return linear(projected_PE, weight_VE, bias_V)

    def known(self, labels_N: Tensor) -> Tensor:
        """Labels with the unknown token in place of those that are never predicted."""
        return torch.where(labels_N < self.size, labels_N, self.unknown)

    def summed(self, x_ND: Tensor, labels_N: Tensor, table_VD: Tensor) -> tuple[Tensor, Tensor]:
        """The cross-entropy summed over all labels, and how many labels have the highest score."""
        projected_NE = self.project(x_ND)
        weight_VE, bias_V = self._output(table_VD)
        return summed_cross_entropy(projected_NE, weight_VE, bias_V, labels_P=labels_N)

    def _output(self, table_VD: Tensor) -> tuple[Tensor, Tensor | None]:
        """The matrix and the bias of the output layer."""
        if self.out is None:
            return table_VD[: self.size], self.bias
        return self.out.weight, self.bias


def next_tokens(batch: Batch) -> Tensor:
    """The label of every token of a batch without filler: the token after it in its sequence."""
    labels_N = batch.ids_N.roll(-1)
    last_B = batch.bounds_B1[1:].long() - 1
    return labels_N.index_fill(0, last_B, IGNORE)
