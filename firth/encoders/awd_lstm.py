"""AWD-LSTM (Merity et al. 2017), the encoder of ULMFiT (Howard & Ruder 2018): LSTM layers that forget on purpose.

In: a batch. Out: states that have read their sequence from its start. In training whole words of the embedding are
dropped (Gal & Ghahramani 2016), one mask is shared by all tokens of a sequence at the input, between the layers and at
the output, and some of the recurrent weights are missing. The last layer is as wide as the embedding, so that a
language model's scores can be tied to it. The papers carry states from batch to batch; here a sequence begins anew.
"""

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from firth.errors import BadConfig
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
        """Width of the layers between."""
        num_layers: int = 3
        """LSTM layers."""
        dropout: float = 0.4
        """Share of the last layer's columns set to zero in training."""
        input_dropout: float = 0.4
        """The same of the embedding's columns."""
        hidden_dropout: float = 0.3
        """The same between the layers."""
        embedding_dropout: float = 0.05
        """Share of the words of a batch that are set to zero wherever they stand."""
        weight_dropout: float = 0.5
        """Share of the recurrent weights set to zero."""
        init_range: float = 0.3
        """The embedding begins with numbers between minus this and this (0.1 in the paper, where AdamW stays stuck)."""

        def __post_init__(self) -> None:
            rates = self.dropout, self.input_dropout, self.hidden_dropout, self.embedding_dropout, self.weight_dropout
            if min(self.vocab_size, self.width, self.cell_width, self.num_layers) < 1 or self.init_range < 0:
                raise BadConfig("Every size of an AWD-LSTM must be at least 1 and init_range at least 0.")
            if not all(0 <= rate < 1 for rate in rates):
                raise BadConfig("The dropouts of an AWD-LSTM must be at least 0 and below 1.")

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.width, self.vocab_size, self.num_layers = config.width, config.vocab_size, config.num_layers
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        nn.init.uniform_(self.tokens.weight, -config.init_range, config.init_range)
        widths = [config.width, *[config.cell_width] * (config.num_layers - 1), config.width]
        self.blocks = nn.ModuleList(
            DroppedLSTM(below, above, rate=config.weight_dropout) for below, above in pairwise(widths)
        )

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        config, walk = self.config, Walk(batch.bounds_B1, batch.ids_N.device)
        rates = [*[config.hidden_dropout] * (config.num_layers - 1), config.dropout]
        x_ND = same_mask(self._embedded(batch.ids_N[walk.rows_N]), config.input_dropout, walk, training=self.training)
        kept = [x_ND]
        for block, rate in zip(self.blocks, rates, strict=True):
            x_ND = same_mask(block(x_ND, walk), rate, walk, training=self.training)
            kept = [*kept, x_ND] if layers else kept
        shown = tuple(state[walk.place_N] for state in kept) if layers else ()
        return States(shown[-1] if layers else x_ND[walk.place_N], self.tokens.weight, layers=shown)

    def _embedded(self, ids_N: Tensor) -> Tensor:
        x_ND: Tensor = self.tokens(ids_N)
        if not self.training or not self.config.embedding_dropout:
            return x_ND
        mask_V1 = F.dropout(x_ND.new_ones(self.vocab_size, 1), self.config.embedding_dropout)
        return x_ND * mask_V1[ids_N]
