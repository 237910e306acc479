"""DeBERTa's encoder in versions 2 and 3 (He et al. 2021): BERT whose attention reads content and distance separately.

In: a batch. Out: the last layer's states for every token. The released models have no positions in their input, and
the larger ones of version 2 a convolution beside the first block. Version 3 differs by its pre-training only.
"""

from dataclasses import dataclass

from torch import nn

from firth.errors import BadConfig
from firth.nn.blocks import FeedForward, compute_dtype, initialise
from firth.nn.convolution import SequenceConvolution
from firth.nn.disentangled import DisentangledAttention, DisentangledBlock, DistanceEmbeddings
from firth.nn.embeddings import Embeddings
from firth.nn.layout import layout
from firth.nn.transformer import TransformerConfig, TransformerEncoder
from firth.tensors import Batch, States


class Deberta(TransformerEncoder):
    text_layer = "gelu"

    @dataclass(frozen=True)
    class Config(TransformerConfig):
        vocab_size: int = 128100
        """Rows of the input embedding."""
        norm_eps: float = 1e-7
        """The small number under the norm's root."""
        num_segments: int = 0
        """Kinds of segment; 0 for no segment embedding."""
        absolute_positions: bool = False
        """Whether the input has learned positions besides the distances in attention."""
        num_buckets: int = 256
        """Buckets of distances to each side; 0: every distance has its own embedding."""
        max_distance: int = 512
        """Tokens that are farther apart share the last bucket."""
        norm_distances: bool = True
        """Whether the embeddings of distances are normalised."""
        to_position: bool = True
        """Whether content looks at distances (c2p)."""
        from_position: bool = True
        """Whether distances look at content (p2c)."""
        shares_projections: bool = True
        """Whether distances are projected by the same matrices as tokens."""
        conv_size: int = 0
        """Tokens that the convolution beside the first block reads at once; 0 for no convolution."""
        conv_activation: str = "tanh"
        """Activation of the convolution."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if min(self.num_segments, self.num_buckets, self.conv_size) < 0 or self.max_distance < 1:
                raise BadConfig("num_segments, num_buckets and conv_size must be at least 0, max_distance at least 1.")
            if self.num_buckets and self.max_distance <= self.num_buckets // 2 + 1:
                raise BadConfig("max_distance must be above half of num_buckets.")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        max_positions = 0
        if config.absolute_positions:
            max_positions = config.max_positions
        self.embeddings = Embeddings(
            config.vocab_size,
            config.width,
            out_width=config.width,
            max_positions=max_positions,
            num_segments=config.num_segments,
            dropout=config.dropout,
            norm_eps=config.norm_eps,
        )
        norm: nn.Module = nn.Identity()
        if config.norm_distances:
            norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.distances = DistanceEmbeddings(
            config.width,
            num_buckets=config.num_buckets,
            max_distance=config.max_distance,
            norm=norm,
            dropout=config.dropout,
        )
        self.convolution: SequenceConvolution | None = None
        if config.conv_size:
            self.convolution = SequenceConvolution(
                config.width,
                config.conv_size,
                activation_name=config.conv_activation,
                norm_eps=config.norm_eps,
                dropout=config.dropout,
            )
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.num_layers))
        initialise(self, std=config.init_std)

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        table_VD = self.embeddings.tokens.weight
        plan = layout(batch, dtype=compute_dtype(table_VD))
        distances = self.distances(batch.max_length)
        first_ND = self.embeddings(batch.ids_N, batch.positions_N, batch.segments_N)
        x_ND = first_ND
        kept = [x_ND]
        maps = []
        for number, block in enumerate(self.blocks):
            if attention:
                maps.append(block.weights(x_ND, plan, distances))  # type: ignore[operator]
            x_ND = block(x_ND, plan, distances)
            if number == 0 and self.convolution is not None:
                x_ND = self.convolution(first_ND, x_ND, batch.bounds_B1)
            if layers:
                kept.append(x_ND)
        shown = tuple(kept) if layers else ()
        return States(x_ND, table_VD, layers=shown, attention=tuple(maps))


def _block(config: Deberta.Config) -> DisentangledBlock:
    return DisentangledBlock(
        DisentangledAttention(
            config.width,
            config.num_heads,
            to_position=config.to_position,
            from_position=config.from_position,
            shares_projections=config.shares_projections,
            dropout=config.attention_dropout,
        ),
        FeedForward(config.width, config.ffn_width, activation_name=config.activation),
        width=config.width,
        norm_eps=config.norm_eps,
        dropout=config.dropout,
    )
