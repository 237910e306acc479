"""BERT's encoder (Devlin et al. 2018): embeddings, L post-norm blocks over packed sequences, a tanh pooler.

In: a batch. Out: the last layer's states for every token and the pooled first token of every sequence.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from firth.errors import BadConfig
from firth.nn.attention import layout
from firth.nn.blocks import Block, compute_dtype, first_rows, initialise
from firth.nn.embeddings import Embeddings
from firth.nn.heads import Pooler
from firth.nn.neighbours import SEGMENT_SCALE, start_heads, start_positions, start_projection
from firth.tensors import Batch, Encoder, States


class Bert(Encoder):
    @dataclass(frozen=True)
    class Config:
        vocab_size: int = 30522
        """Rows of the input embedding."""
        width: int = 768
        """Width of every state (H in the paper)."""
        num_layers: int = 12
        """Blocks (L in the paper)."""
        num_heads: int = 12
        """Attention heads (A in the paper); the width must be a multiple of it."""
        ffn_width: int = 3072
        """Width of the feed-forward layer, four times the width in the paper."""
        max_positions: int = 512
        """The longest sequence the model can read, special tokens included."""
        num_segments: int = 2
        """Kinds of segment: sentence A and sentence B; 0 for no segment embedding."""
        activation: str = "gelu"
        """Activation of the feed-forward layer."""
        dropout: float = 0.1
        """Share of a sublayer's outputs set to zero in training."""
        attention_dropout: float = 0.0
        """Share of attention weights set to zero in training (the paper: 0.1; the GPU's packed kernel has none)."""
        norm_eps: float = 1e-12
        """The small number under layer norm's root."""
        init_std: float = 0.02
        """Standard deviation of the initial weights."""
        init: Literal["normal", "neighbours"] = "normal"
        """Initial weights: all normal, as in the paper, or with heads of the first block that look at neighbours."""
        pooler: bool = True
        """Whether there is a tanh layer over the first token."""
        embedding_width: int = 0
        """Width of the input embedding, projected up to the width of the states; 0: the same width, no projection."""

        def __post_init__(self) -> None:
            sizes = self.vocab_size, self.width, self.num_heads, self.ffn_width, self.max_positions
            if (
                min(sizes) < 1
                or min(self.num_layers, self.embedding_width, self.num_segments) < 0
                or self.norm_eps <= 0
                or self.init_std < 0
            ):
                raise BadConfig("Every size of a BERT must be at least 1, norm_eps above 0 and init_std at least 0.")
            if not (0 <= self.dropout < 1 and 0 <= self.attention_dropout < 1):
                raise BadConfig("dropout and attention_dropout must be at least 0 and below 1.")

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.width, self.vocab_size = config.width, config.vocab_size
        self.max_positions, self.num_layers = config.max_positions, config.num_layers
        self.embeddings = Embeddings(
            config.vocab_size,
            self.table_width,
            out_width=config.width,
            max_positions=config.max_positions,
            num_segments=config.num_segments,
            dropout=config.dropout,
            norm_eps=config.norm_eps,
        )
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.num_layers))
        self.pooler = Pooler(config.width) if config.pooler else None
        initialise(self, std=config.init_std)
        if config.init == "neighbours":
            self._start_at_neighbours()

    @property
    def table_width(self) -> int:
        return self.config.embedding_width or self.config.width  # type: ignore[no-any-return]

    def _start_at_neighbours(self) -> None:
        start_positions(self.embeddings.positions, init_std=self.config.init_std)
        for row in self.embeddings.segments.parameters():
            with torch.no_grad():
                row.mul_(SEGMENT_SCALE)
        if isinstance(self.embeddings.project, nn.Linear):
            start_projection(self.embeddings.project)
        if self.num_layers:
            start_heads(self.blocks[0].attention, embedding_width=self.table_width)  # type: ignore[union-attr,arg-type]

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        table_VD = self.embeddings.tokens.weight
        plan = layout(batch.bounds_B1, batch.max_length, dtype=compute_dtype(table_VD))
        x_ND = self.embeddings(batch.ids_N, batch.positions_N, batch.segments_N)
        kept, maps = [x_ND], []
        for block in self.blocks:
            if attention:
                maps.append(block.attention.weights(x_ND, plan))  # type: ignore[operator,union-attr]
            x_ND = block(x_ND, plan)
            kept = [*kept, x_ND] if layers else kept
        pooled_BD = self.pooler(first_rows(x_ND, batch.bounds_B1)) if self.pooler else None
        return States(x_ND, table_VD, pooled_BD, tuple(kept) if layers else (), tuple(maps))


def _block(config: Bert.Config) -> Block:
    return Block(
        config.width,
        config.num_heads,
        ffn_width=config.ffn_width,
        activation_name=config.activation,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        norm_eps=config.norm_eps,
    )
