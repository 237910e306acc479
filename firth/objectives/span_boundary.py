"""Span boundary objective (Joshi et al. 2019, section 3.2): the tokens of a masked span from the two tokens around it.

Corruption: none; it comes after masked LM with unit=span and takes the runs of tokens chosen there. Loss: cross-entropy
of each such token from the states just before and just after its run and the token's position in the run, through two
layers (equation 2) and the input embedding.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from firth.data.packing import Pack, Plan, runs
from firth.data.stream import CorpusView
from firth.errors import BadConfig
from firth.nn.blocks import activation, initialise
from firth.nn.likelihood import IGNORE
from firth.objectives.objective import Objective
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers.vocab import Vocab


class SpanBoundary(Objective):
    requires = ("masked_lm",)
    word_losses = {"span_boundary": "span-boundary token"}
    per_token = ("bias",)

    @dataclass(frozen=True)
    class Config:
        max_targets: int = 20
        """Tokens of a span that are predicted, counted from its left; adjacent spans count as one."""
        position_width: int = 200
        """Width of the embedding of a token's position in its span."""

        def __post_init__(self) -> None:
            if min(self.max_targets, self.position_width) < 1:
                raise BadConfig("max_targets and position_width must be at least 1.")

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config = config
        self.vocab = vocab
        self.max_length = max_length
        self.seed = seed
        shape = encoder.config
        width = encoder.width
        self.places = nn.Embedding(config.max_targets, config.position_width)
        self.first = nn.Linear(2 * width + config.position_width, width)
        self.second = nn.Linear(width, encoder.table_width)
        self.first_norm = nn.LayerNorm(width, eps=shape.norm_eps)
        self.second_norm = nn.LayerNorm(encoder.table_width, eps=shape.norm_eps)
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))
        self.activate = activation(shape.activation)
        initialise(self, std=shape.init_std)

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        return runs(stream, self.max_length, frame=self.vocab.frame)

    def corrupt(self, pack: Pack, epoch: int) -> None:
        labels = pack.targets["masked_lm_labels"]
        count = int((labels != IGNORE).sum())
        chosen = pack.targets["masked_lm_positions"][:count]

        # The first and the last token of each token's span. Chosen tokens ascend; a gap begins a new span.
        starts = np.diff(chosen, prepend=-2) > 1
        span = np.cumsum(starts) - 1
        first_tokens = chosen[starts]
        before_next_span = chosen[:-1][starts[1:]]
        last_tokens = np.append(before_next_span, chosen[-1:])
        first = first_tokens[span]
        last = last_tokens[span]
        place = chosen - first

        max_targets = self.config.max_targets
        near_labels = np.full(len(labels), IGNORE, np.int64)
        near_labels[:count] = np.where(place < max_targets, labels[:count], IGNORE)
        inputs = {
            "left": first - 1,
            "right": last + 1,
            "place": np.minimum(place, max_targets - 1),
        }
        for name, values in inputs.items():
            padded = np.zeros(len(labels), np.int64)
            # Special tokens surround every text, so both neighbours exist; where they do not, the nearest token serves.
            padded[:count] = values.clip(0, max(len(pack.ids_N) - 1, 0))
            pack.targets[f"span_boundary_{name}"] = padded
        pack.targets["span_boundary_labels"] = near_labels

    def loss(self, states: States, batch: Batch) -> Loss:
        labels_P = batch.targets["span_boundary_labels"]
        scores_PV = self.scores(states, batch)
        total = cross_entropy(scores_PV.float(), labels_P, ignore_index=IGNORE, reduction="sum")
        correct = (scores_PV.argmax(-1) == labels_P).sum()
        return Loss({"span_boundary": total}, {"span_boundary_correct": correct})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        is_label_P = batch.targets["span_boundary_labels"] != IGNORE
        return {"span_boundary": int(is_label_P.sum())}

    def scores(self, states: States, batch: Batch) -> Tensor:
        """Scores over the vocabulary at the chosen tokens."""
        left_PD = states.last_ND.index_select(0, batch.targets["span_boundary_left"])
        right_PD = states.last_ND.index_select(0, batch.targets["span_boundary_right"])
        places_PD = self.places(batch.targets["span_boundary_place"])
        inputs = torch.cat([left_PD, right_PD, places_PD], -1)
        hidden_PD = self.first_norm(self.activate(self.first(inputs)))
        hidden_PE = self.second_norm(self.activate(self.second(hidden_PD)))
        return linear(hidden_PE, states.table_VD, self.bias)
