"""ALBERT's encoder (Lan et al. 2019): BERT with a factorised embedding and ONE block that is applied L times.

In: a batch. Out: the last layer's states for every token and the pooled first token of every sequence. Equal to BERT
but for two things: the embedding is E wide and a matrix widens it (V x E + E x D instead of V x D weights), and all
layers share their weights.
"""

from dataclasses import dataclass

from torch import nn

from firth.errors import BadConfig
from firth.nn.attention import layout
from firth.nn.blocks import Block, compute_dtype, first_rows, initialise
from firth.nn.embeddings import Embeddings
from firth.nn.heads import Pooler
from firth.tensors import Batch, Encoder, States


class Albert(Encoder):
    @dataclass(frozen=True)
    class Config:
        vocab_size: int = 30000
        """Rows of the input embedding."""
        embedding_width: int = 128
        """Width of the input embedding (E in the paper)."""
        width: int = 768
        """Width of every state (H in the paper)."""
        num_layers: int = 12
        """How often the block is applied (L in the paper)."""
        num_heads: int = 12
        """Attention heads; the width must be a multiple of it."""
        ffn_width: int = 3072
        """Width of the feed-forward layer."""
        max_positions: int = 512
        """The longest sequence the model can read, special tokens included."""
        num_segments: int = 2
        """Kinds of segment: the first and the second of a pair."""
        activation: str = "gelu_new"
        """Activation of the feed-forward layer."""
        dropout: float = 0.0
        """Share of a sublayer's outputs set to zero in training; the second version of the models has none."""
        attention_dropout: float = 0.0
        """Share of attention weights set to zero in training."""
        norm_eps: float = 1e-12
        """The small number under layer norm's root."""
        init_std: float = 0.02
        """Standard deviation of the initial weights."""
        pooler: bool = True
        """Whether there is a tanh layer over the first token."""

        def __post_init__(self) -> None:
            sizes = self.vocab_size, self.embedding_width, self.width, self.num_heads, self.ffn_width
            counts = self.num_layers, self.num_segments
            if min(*sizes, self.max_positions) < 1 or min(counts) < 0 or self.norm_eps <= 0 or self.init_std < 0:
                raise BadConfig("Every size of an ALBERT must be at least 1, norm_eps above 0 and init_std at least 0.")
            if not (0 <= self.dropout < 1 and 0 <= self.attention_dropout < 1):
                raise BadConfig("dropout and attention_dropout must be at least 0 and below 1.")

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.width, self.vocab_size = config.width, config.vocab_size
        self.max_positions, self.num_layers = config.max_positions, config.num_layers
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
        block = Block(
            config.width,
            config.num_heads,
            ffn_width=config.ffn_width,
            activation_name=config.activation,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            norm_eps=config.norm_eps,
        )
        self.blocks = nn.ModuleList([block])
        self.pooler = Pooler(config.width) if config.pooler else None
        initialise(self, std=config.init_std)

    @property
    def table_width(self) -> int:
        return self.config.embedding_width  # type: ignore[no-any-return]

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        table_VE = self.embeddings.tokens.weight
        plan = layout(batch.bounds_B1, batch.max_length, dtype=compute_dtype(table_VE))
        x_ND = self.widen(self.embeddings(batch.ids_N, batch.positions_N, batch.segments_N))
        kept, maps = [x_ND], []
        block = self.blocks[0]
        for _ in range(self.num_layers):
            if attention:
                maps.append(block.attention.weights(x_ND, plan))  # type: ignore[operator,union-attr]
            x_ND = block(x_ND, plan)
            kept = [*kept, x_ND] if layers else kept
        pooled_BD = self.pooler(first_rows(x_ND, batch.bounds_B1)) if self.pooler else None
        return States(x_ND, table_VE, pooled_BD, tuple(kept) if layers else (), tuple(maps))
