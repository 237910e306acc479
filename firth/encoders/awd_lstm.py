"""AWD-LSTM (Merity et al. 2017), the encoder of ULMFiT (Howard & Ruder 2018): LSTM layers with many kinds of dropout.

In: a batch. Out: causal states, which have read their sequence from its start. In training whole words of the embedding
are dropped (Gal & Ghahramani 2016), one mask is shared by all tokens of a sequence at the input, between the layers and
at the output, and some of the recurrent weights are dropped. The last layer is as wide as the embedding, so that a
language model's scores can be tied to it. The papers carry states from batch to batch; here every sequence starts from
zero states.
"""

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

from firth.errors import BadConfig
from firth.nn.dropout import dropout
from firth.nn.recurrent import DroppedLSTM, same_mask
from firth.nn.walk import Walk
from firth.tensors import Batch, Encoder, States


class AwdLstm(Encoder):
    causal = True

    @dataclass(frozen=True)
    class Config:
        vocab_size: int = 30000
        """Rows of the input embedding."""
        width: int = 400
        """Width of the embedding and of the last layer."""
        cell_width: int = 1150
        """Width of the layers before the last one."""
        num_layers: int = 3
        """Number of LSTM layers."""
        dropout: float = 0.4
        """Share of the last layer's columns set to zero in training."""
        input_dropout: float = 0.4
        """Share of the embedding's columns set to zero in training."""
        hidden_dropout: float = 0.3
        """Share of the columns between two layers set to zero in training."""
        embedding_dropout: float = 0.05
        """Share of the words of a batch that are set to zero at all their occurrences."""
        weight_dropout: float = 0.5
        """Share of the recurrent weights set to zero."""
        init_range: float = 0.3
        """The embedding starts uniform between minus this and this (0.1 in the paper; AdamW gets stuck with that)."""

        def __post_init__(self) -> None:
            rates = (
                self.dropout,
                self.input_dropout,
                self.hidden_dropout,
                self.embedding_dropout,
                self.weight_dropout,
            )
            if min(self.vocab_size, self.width, self.cell_width, self.num_layers) < 1 or self.init_range < 0:
                raise BadConfig("Every size of an AWD-LSTM must be at least 1 and init_range at least 0.")
            if not all(0 <= rate < 1 for rate in rates):
                raise BadConfig("The dropouts of an AWD-LSTM must be at least 0 and below 1.")

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.width = config.width
        self.vocab_size = config.vocab_size
        self.num_layers = config.num_layers
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        nn.init.uniform_(self.tokens.weight, -config.init_range, config.init_range)
        inner_widths = [config.cell_width] * (config.num_layers - 1)
        widths = [config.width, *inner_widths, config.width]
        self.blocks = nn.ModuleList()
        for in_width, out_width in pairwise(widths):
            self.blocks.append(DroppedLSTM(in_width, out_width, rate=config.weight_dropout))

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        config = self.config
        # From here on rows are in the order of the walk.
        walk = Walk(batch.bounds_B1, batch.ids_N.device)
        embedded_ND = self._embedded(batch.ids_N[walk.rows_N])
        x_ND = same_mask(embedded_ND, config.input_dropout, walk, training=self.training)
        kept = [x_ND]
        inner_rates = [config.hidden_dropout] * (config.num_layers - 1)
        rates = [*inner_rates, config.dropout]
        for block, rate in zip(self.blocks, rates, strict=True):
            x_ND = same_mask(block(x_ND, walk), rate, walk, training=self.training)
            if layers:
                kept.append(x_ND)
        if not layers:
            return States(x_ND[walk.place_N], self.tokens.weight)
        shown = tuple(state[walk.place_N] for state in kept)
        return States(shown[-1], self.tokens.weight, layers=shown)

    def _embedded(self, ids_N: Tensor) -> Tensor:
        """The embedding of each token; in training some words of the vocabulary are zero."""
        x_ND: Tensor = self.tokens(ids_N)
        if not self.training or not self.config.embedding_dropout:
            return x_ND
        mask_V1 = dropout(x_ND.new_ones(self.vocab_size, 1), self.config.embedding_dropout)
        return x_ND * mask_V1[ids_N]
