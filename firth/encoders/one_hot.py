"""One-hot vectors: a token's vector is zero but for its own place, where its weight stands.

In: a batch. Out: weighted one-hot rows. Their mean over a text is its bag of words, with idf weights its tf-idf (Spärck
Jones 1972), up to its length; their maximum tells which words occur.
"""

import torch
from torch import nn

from firth.encoders.tables import OneHotConfig
from firth.nn.pooling import mean_rows
from firth.tensors import Batch, Encoder, States


class OneHot(Encoder):
    Config = OneHotConfig

    max_positions = 512
    """Longer texts are read in windows, whose mean is the text's: vectors this wide should not be many at a time."""

    def __init__(self, config: OneHotConfig) -> None:
        super().__init__()
        self.config = config
        self.width = self.vocab_size = config.vocab_size
        self.weight_V = nn.Parameter(torch.ones(config.vocab_size))

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        weight_N1 = self.weight_V[batch.ids_N][:, None]
        x_ND = weight_N1.new_zeros(batch.num_tokens, self.width).scatter(1, batch.ids_N[:, None], weight_N1)
        # Nothing can tie to a table this wide; its diagonal is all there is of it.
        return States(x_ND, self.weight_V[:, None], mean_rows(x_ND, batch.bounds_B1), (x_ND,) if layers else ())
