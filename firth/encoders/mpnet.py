"""MPNet's encoder (Song et al. 2020): BERT without segments, and a bias for each head and distance as in T5.

In: a batch. Out: the last layer's states for every token and the pooled first token of every sequence. All layers share
the biases, which are added to learned positions of the embeddings.
"""

from dataclasses import dataclass

from torch import nn

from firth.errors import BadConfig
from firth.nn.attention_layers import head_width_of
from firth.nn.blocks import compute_dtype, first_rows, initialise
from firth.nn.embeddings import Embeddings
from firth.nn.heads import Pooler
from firth.nn.layout import layout
from firth.nn.relative_positions import RelativePositions
from firth.nn.transformer import TransformerConfig, TransformerEncoder, encoder_block
from firth.tensors import Batch, States

MAX_DISTANCE = 128
"""Tokens that are at least this far apart share a bucket."""


class MPNet(TransformerEncoder):
    @dataclass(frozen=True)
    class Config(TransformerConfig):
        vocab_size: int = 30527
        """Rows of the input embedding."""
        num_buckets: int = 32
        """Buckets of distances, half of them for keys after the query."""
        pooler: bool = True
        """Whether there is a tanh layer over the first token."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.num_buckets < 4:
                raise BadConfig("num_buckets must be at least 4.")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(
            config.vocab_size,
            config.width,
            out_width=config.width,
            max_positions=config.max_positions,
            num_segments=0,
            dropout=config.dropout,
            norm_eps=config.norm_eps,
        )
        self.distances = RelativePositions(
            config.num_heads, num_buckets=config.num_buckets, max_distance=MAX_DISTANCE, causal=False
        )
        self.blocks = nn.ModuleList(encoder_block(config, number) for number in range(config.num_layers))
        self.pooler = Pooler(config.width) if config.pooler else None
        self.text_layer = "none" if config.pooler else "tanh"
        initialise(self, std=config.init_std)

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        config = self.config
        table_VD = self.embeddings.tokens.weight
        plan = layout(batch, dtype=compute_dtype(table_VD))
        bias = self.distances.bias(batch.max_length)
        bias.prepare(plan, plan, causal=False, head_width=head_width_of(config.width, config.num_heads))
        x_ND = self.embeddings(batch.ids_N, batch.positions_N, batch.segments_N)
        kept = [x_ND]
        maps = []
        for block in self.blocks:
            if attention:
                maps.append(block.weights(x_ND, plan, bias=bias))  # type: ignore[operator]
            x_ND = block(x_ND, plan, bias=bias)
            if layers:
                kept.append(x_ND)
        pooled_BD = None
        if self.pooler:
            pooled_BD = self.pooler(first_rows(x_ND, batch.bounds_B1))
        shown = tuple(kept) if layers else ()
        return States(x_ND, table_VD, pooled_BD, layers=shown, attention=tuple(maps))
