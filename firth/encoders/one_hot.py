"""One-hot vectors: a token's vector is zero except in its own column, which holds its weight.

In: a batch. Out: weighted one-hot rows. Their mean over a text is its bag of words, with idf weights its tf-idf (Spärck
Jones 1972), up to its length; their maximum says which words occur.
"""

import torch
from torch import nn

from firth.encoders.tables import OneHotConfig
from firth.nn.pooling import mean_rows
from firth.tensors import Batch, Encoder, States


class OneHot(Encoder):
    Config = OneHotConfig

    max_positions = 512
    """Longer texts are read in windows, whose mean is the text's: few vectors of this width fit into memory."""

    def __init__(self, config: OneHotConfig) -> None:
        super().__init__()
        self.config = config
        self.width = config.vocab_size
        self.vocab_size = config.vocab_size
        self.weight_V = nn.Parameter(torch.ones(config.vocab_size))

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        weight_N1 = self.weight_V[batch.ids_N][:, None]
        zeros_ND = weight_N1.new_zeros(batch.num_tokens, self.width)
        x_ND = zeros_ND.scatter(1, batch.ids_N[:, None], weight_N1)
        # The table would be a diagonal matrix, too large to build; no head ties to it.
        table_V1 = self.weight_V[:, None]
        pooled_BD = mean_rows(x_ND, batch.bounds_B1)
        shown = (x_ND,) if layers else ()
        return States(x_ND, table_V1, pooled_BD, layers=shown)
