"""A bidirectional LSTM over an embedding (Graves & Schmidhuber 2005): the small student of Tang et al. 2019.

In: a batch. Out: for every token the states of both directions side by side. One layer.
"""

from dataclasses import dataclass

from torch import nn

from firth.errors import BadConfig
from firth.nn.dropout import Dropout
from firth.nn.recurrent import bidirectional
from firth.tensors import Batch, Encoder, States


class BiLstm(Encoder):
    @dataclass(frozen=True)
    class Config:
        vocab_size: int = 30000
        """Rows of the input embedding."""
        embedding_width: int = 300
        """Width of the input embedding."""
        cell_width: int = 150
        """Width of the state of each direction."""
        dropout: float = 0.2
        """Share of the embedding's numbers set to zero in training."""
        init_std: float = 0.02
        """Standard deviation of the embedding's initial weights."""

        def __post_init__(self) -> None:
            if min(self.vocab_size, self.embedding_width, self.cell_width) < 1 or self.init_std < 0:
                raise BadConfig("Every size of a BiLSTM must be at least 1 and init_std at least 0.")
            if not 0 <= self.dropout < 1:
                raise BadConfig("The dropout of a BiLSTM must be at least 0 and below 1.")

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.width = 2 * config.cell_width
        self.vocab_size = config.vocab_size
        self.num_layers = 1
        self.tokens = nn.Embedding(config.vocab_size, config.embedding_width)
        nn.init.normal_(self.tokens.weight, std=config.init_std)
        self.dropout = Dropout(config.dropout)
        self.lstm = nn.LSTM(config.embedding_width, config.cell_width, bidirectional=True)

    @property
    def table_width(self) -> int:
        return self.config.embedding_width  # type: ignore[no-any-return]

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        x_NE = self.dropout(self.tokens(batch.ids_N))
        out_ND = bidirectional(self.lstm, x_NE, batch.bounds_B1)
        shown = (x_NE, out_ND) if layers else ()
        return States(out_ND, self.tokens.weight, layers=shown)
