"""NomicBERT's encoder (Nussbaum et al. 2024): BERT with rotary positions and gated feed-forward layers.

In: a batch. Out: the last layer's states for every token. Norms come after the sublayers, as in BERT. The embeddings
have segments and no positions; the matrices of the blocks have no biases.
"""

from dataclasses import dataclass

from torch import nn

from firth.errors import BadConfig
from firth.nn.attention_layers import head_width_of
from firth.nn.blocks import GatedFeedForward, compute_dtype, first_rows, initialise
from firth.nn.embeddings import Embeddings
from firth.nn.heads import Pooler
from firth.nn.layout import layout
from firth.nn.rotary import RotaryAttention, RotaryBlock, rotation
from firth.nn.transformer import TransformerConfig, TransformerEncoder
from firth.tensors import Batch, States


class NomicBert(TransformerEncoder):
    @dataclass(frozen=True)
    class Config(TransformerConfig):
        vocab_size: int = 30528
        """Rows of the input embedding."""
        max_positions: int = 2048
        """The longest sequence to read at once; no weight depends on it."""
        activation: str = "silu"
        """Activation of the feed-forward layer."""
        dropout: float = 0.0
        """Share of a sublayer's outputs set to zero in training."""
        num_segments: int = 2
        """Kinds of segment: sentence A and sentence B."""
        theta: float = 1000.0
        """The slowest rotation: the larger, the farther positions are told apart."""
        pooler: bool = False
        """Whether there is a tanh layer over the first token."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.num_segments < 0:
                raise BadConfig("num_segments must be at least 0.")
            if head_width_of(self.width, self.num_heads) % 2:
                raise BadConfig("Heads with rotary positions must have an even width.")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(
            config.vocab_size,
            config.width,
            out_width=config.width,
            max_positions=0,
            num_segments=config.num_segments,
            dropout=config.dropout,
            norm_eps=config.norm_eps,
        )
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.num_layers))
        self.pooler = Pooler(config.width) if config.pooler else None
        initialise(self, std=config.init_std)

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        config = self.config
        table_VD = self.embeddings.tokens.weight
        plan = layout(batch, dtype=compute_dtype(table_VD))
        head_width = head_width_of(config.width, config.num_heads)
        turns = rotation(batch.positions_N, head_width=head_width, theta=config.theta)
        x_ND = self.embeddings(batch.ids_N, batch.positions_N, batch.segments_N)
        kept = [x_ND]
        maps = []
        for block in self.blocks:
            if attention:
                maps.append(block.weights(x_ND, plan, turns))  # type: ignore[operator]
            x_ND = block(x_ND, plan, turns)
            if layers:
                kept.append(x_ND)
        pooled_BD = None
        if self.pooler:
            pooled_BD = self.pooler(first_rows(x_ND, batch.bounds_B1))
        shown = tuple(kept) if layers else ()
        return States(x_ND, table_VD, pooled_BD, layers=shown, attention=tuple(maps))


def _block(config: NomicBert.Config) -> RotaryBlock:
    return RotaryBlock(
        RotaryAttention(config.width, config.num_heads, dropout=config.attention_dropout, use_bias=False),
        GatedFeedForward(config.width, config.ffn_width, activation_name=config.activation, use_bias=False),
        attention_norm=nn.LayerNorm(config.width, eps=config.norm_eps),
        ffn_norm=nn.LayerNorm(config.width, eps=config.norm_eps),
        norm_order="post",
        dropout=config.dropout,
    )
