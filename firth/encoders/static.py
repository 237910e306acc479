"""Word vectors as an encoder of depth zero: every token has one vector, whatever its context.

In: a batch. Out: the rows of one table, and their mean for every sequence. word2vec (Mikolov et al. 2013) and GloVe
(Pennington et al. 2014) fill it.
"""

from torch import nn

from firth.encoders.tables import StaticConfig
from firth.nn.blocks import initialise
from firth.nn.pooling import mean_rows
from firth.tensors import Batch, Encoder, States


class Static(Encoder):
    Config = StaticConfig

    def __init__(self, config: StaticConfig) -> None:
        super().__init__()
        self.config = config
        self.width = config.width
        self.vocab_size = config.vocab_size
        self.table = nn.Embedding(config.vocab_size, config.width)
        initialise(self, std=config.init_std)

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        x_ND = self.table(batch.ids_N)
        pooled_BD = mean_rows(x_ND, batch.bounds_B1)
        shown = (x_ND,) if layers else ()
        return States(x_ND, self.table.weight, pooled_BD, layers=shown)
