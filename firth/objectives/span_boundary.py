"""Span boundary objective (Joshi et al. 2019, section 3.2): a masked span's tokens from the two tokens around it.

Corruption: none of its own; it comes after masked LM with unit=span and takes the runs of tokens chosen there. Loss:
cross-entropy of each such token from the states just before and behind its run and the token's place in it, through
two layers (equation 2) and the input embedding.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from firth.data.packing import Pack, Plan, runs
from firth.data.stream import Stream
from firth.errors import BadConfig
from firth.nn.blocks import activation, initialise
from firth.objectives.masked_lm import IGNORE
from firth.tensors import Batch, Encoder, Loss, Objective, States
from firth.tokenizers.vocab import Vocab


class SpanBoundary(Objective):
    after = ("masked_lm",)
    word_losses = {"span_boundary": "span-boundary token"}

    @dataclass(frozen=True)
    class Config:
        max_targets: int = 20
        """Tokens of a span that are predicted, counted from its left; spans that touch are one."""
        position_width: int = 200
        """Width of the embedding of a token's place in its span."""

        def __post_init__(self) -> None:
            if min(self.max_targets, self.position_width) < 1:
                raise BadConfig("max_targets and position_width must be at least 1.")

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config, self.vocab, self.max_length, self.seed = config, vocab, max_length, seed
        shape, width = encoder.config, encoder.width
        self.places = nn.Embedding(config.max_targets, config.position_width)
        self.first, self.second = (
            nn.Linear(2 * width + config.position_width, width),
            nn.Linear(width, encoder.table_width),
        )
        self.first_norm = nn.LayerNorm(width, eps=shape.norm_eps)
        self.second_norm = nn.LayerNorm(encoder.table_width, eps=shape.norm_eps)
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))
        self.activate = activation(shape.activation)
        initialise(self, std=shape.init_std)

    def sequences(self, stream: Stream, epoch: int) -> Plan:
        return runs(stream, self.max_length, frame=self.vocab.frame)

    def corrupt(self, pack: Pack, epoch: int) -> None:
        labels = pack.targets["masked_lm_labels"]
        count = int((labels != IGNORE).sum())
        chosen = pack.targets["masked_lm_positions"][:count]
        starts = np.diff(chosen, prepend=-2) > 1
        first = chosen[starts][np.cumsum(starts) - 1]
        last = np.append(chosen[:-1][starts[1:]], chosen[-1:])[np.cumsum(starts) - 1]
        place = chosen - first
        near = np.full(len(labels), IGNORE, np.int64)
        near[:count] = np.where(place < self.config.max_targets, labels[:count], IGNORE)
        sides = {"left": first - 1, "right": last + 1, "place": np.minimum(place, self.config.max_targets - 1)}
        for name, values in sides.items():
            pack.targets[f"span_boundary_{name}"] = np.zeros(len(labels), np.int64)
            # Special tokens stand around every text, so there is a token on both sides; where not, the nearest serves.
            pack.targets[f"span_boundary_{name}"][:count] = values.clip(0, max(len(pack.ids_N) - 1, 0))
        pack.targets["span_boundary_labels"] = near

    def loss(self, states: States, batch: Batch) -> Loss:
        labels_P = batch.targets["span_boundary_labels"]
        scores_PV = self.scores(states, batch)
        total = cross_entropy(scores_PV.float(), labels_P, ignore_index=IGNORE, reduction="sum")
        return Loss({"span_boundary": total}, {"span_boundary_correct": (scores_PV.argmax(-1) == labels_P).sum()})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {"span_boundary": int((batch.targets["span_boundary_labels"] != IGNORE).sum())}

    def scores(self, states: States, batch: Batch) -> Tensor:
        left_PD, right_PD = (
            states.last_ND.index_select(0, batch.targets[f"span_boundary_{side}"]) for side in ("left", "right")
        )
        inputs = torch.cat([left_PD, right_PD, self.places(batch.targets["span_boundary_place"])], -1)
        hidden_PD = self.first_norm(self.activate(self.first(inputs)))
        hidden_PE = self.second_norm(self.activate(self.second(hidden_PD)))
        return linear(hidden_PE, states.table_VD, self.bias)
