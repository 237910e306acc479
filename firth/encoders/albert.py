"""ALBERT's encoder (Lan et al. 2019): BERT with a factorised embedding and ONE block that is applied L times.

In: a batch. Out: the last layer's states for every token and the pooled first token of every sequence. It differs from
BERT in two ways: the embedding is E wide and a matrix widens it (V x E + E x D instead of V x D weights), and all
layers share their weights.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from firth.errors import BadConfig
from firth.nn.blocks import compute_dtype, first_rows, initialise
from firth.nn.embeddings import Embeddings
from firth.nn.heads import Pooler
from firth.nn.layout import layout
from firth.nn.transformer import TransformerConfig, TransformerEncoder, encoder_block
from firth.tensors import Batch, States


class Albert(TransformerEncoder):
    @dataclass(frozen=True)
    class Config(TransformerConfig):
        shares_block: ClassVar[bool] = True
        vocab_size: int = 30000
        """Rows of the input embedding."""
        num_layers: int = 12
        """How often the block is applied (L in the paper)."""
        activation: str = "gelu_new"
        """Activation of the feed-forward layer."""
        dropout: float = 0.0
        """Share of a sublayer's outputs set to zero in training; the second version of the models has none."""
        embedding_width: int = 128
        """Width of the input embedding (E in the paper)."""
        num_segments: int = 2
        """Kinds of segment: the first and the second of a pair."""
        pooler: bool = True
        """Whether there is a tanh layer over the first token."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.embedding_width < 1 or self.num_segments < 0:
                raise BadConfig("embedding_width must be at least 1 and num_segments at least 0.")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(
            config.vocab_size,
            config.embedding_width,
            out_width=config.embedding_width,
            max_positions=config.max_positions,
            num_segments=config.num_segments,
            dropout=config.dropout,
            norm_eps=config.norm_eps,
        )
        self.widen = nn.Linear(config.embedding_width, config.width)
        self.blocks = nn.ModuleList([encoder_block(config)])
        self.pooler = Pooler(config.width) if config.pooler else None
        initialise(self, std=config.init_std)

    @property
    def table_width(self) -> int:
        return self.config.embedding_width  # type: ignore[no-any-return]

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        table_VE = self.embeddings.tokens.weight
        plan = layout(batch, dtype=compute_dtype(table_VE))
        x_NE = self.embeddings(batch.ids_N, batch.positions_N, batch.segments_N)
        x_ND = self.widen(x_NE)
        kept = [x_ND]
        maps = []
        block = self.blocks[0]
        for _ in range(self.num_layers):
            if attention:
                maps.append(block.weights(x_ND, plan))  # type: ignore[operator]
            x_ND = block(x_ND, plan)
            if layers:
                kept.append(x_ND)
        pooled_BD = None
        if self.pooler:
            pooled_BD = self.pooler(first_rows(x_ND, batch.bounds_B1))
        shown = tuple(kept) if layers else ()
        return States(x_ND, table_VE, pooled_BD, layers=shown, attention=tuple(maps))
