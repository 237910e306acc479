"""What encoders made of Transformer blocks have in common: their sizes with the checks, their class and their block."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from firth.errors import BadConfig
from firth.nn.attention_layers import SelfAttention, head_width_of
from firth.nn.blocks import Block, FeedForward, NormOrder
from firth.nn.low_rank import reduce_rank
from firth.tensors import Encoder


@dataclass(frozen=True)
class BlockSizes:
    """The sizes of one block of a pruned model."""

    num_heads: int
    """Attention heads; each is as wide as in the other blocks."""
    ffn_width: int
    """Width of the feed-forward layer."""
    qkv_rank: int = 0
    """Rank of the projection to queries, keys and values; 0 for an ordinary matrix, as for the other ranks."""
    out_rank: int = 0
    """Rank of the projection after attention."""
    up_rank: int = 0
    """Rank of the first feed-forward matrix."""
    down_rank: int = 0
    """Rank of the second feed-forward matrix."""

    def __post_init__(self) -> None:
        ranks = self.qkv_rank, self.out_rank, self.up_rank, self.down_rank
        if min(self.num_heads, self.ffn_width) < 1 or min(ranks) < 0:
            raise BadConfig("A block needs a num_heads and a ffn_width of at least 1, and ranks of at least 0.")


@dataclass(frozen=True)
class TransformerConfig:
    shares_block: ClassVar[bool] = False
    """Whether all layers are one block."""
    vocab_size: int = 30522
    """Rows of the input embedding."""
    width: int = 768
    """Width of every state (H in BERT's paper)."""
    num_layers: int = 12
    """Blocks (L in BERT's paper)."""
    num_heads: int = 12
    """Attention heads (A in BERT's paper); the width must be a multiple of it."""
    ffn_width: int = 3072
    """Width of the feed-forward layer, four times the width in the papers."""
    max_positions: int = 512
    """The longest sequence the model can read, special tokens included."""
    activation: str = "gelu"
    """Activation of the feed-forward layer."""
    dropout: float = 0.1
    """Share of a sublayer's outputs set to zero in training."""
    attention_dropout: float = 0.0
    """Share of attention weights set to zero in training (the papers: 0.1; the GPU's packed kernel has none)."""
    norm_eps: float = 1e-12
    """The small number under the norm's root."""
    init_std: float = 0.02
    """Standard deviation of the initial weights."""
    block_sizes: tuple[BlockSizes, ...] = ()
    """The sizes of each block where they differ, as in a model that `firth compress` made; empty: all alike."""

    def __post_init__(self) -> None:
        sizes = self.vocab_size, self.width, self.num_heads, self.ffn_width, self.max_positions
        if min(sizes) < 1 or self.num_layers < 0:
            raise BadConfig("Every size of an encoder must be at least 1, and num_layers at least 0.")
        if self.norm_eps <= 0 or self.init_std < 0:
            raise BadConfig("norm_eps must be above 0 and init_std at least 0.")
        if not (0 <= self.dropout < 1 and 0 <= self.attention_dropout < 1):
            raise BadConfig("dropout and attention_dropout must be at least 0 and below 1.")
        num_blocks = 1 if self.shares_block else self.num_layers
        if self.block_sizes and len(self.block_sizes) != num_blocks:
            raise BadConfig(f"block_sizes has {len(self.block_sizes)} entries for {num_blocks} blocks.")

    def sizes_of_block(self, number: int) -> BlockSizes:
        if self.block_sizes:
            return self.block_sizes[number]
        return BlockSizes(self.num_heads, self.ffn_width)


class TransformerEncoder(Encoder):
    """An encoder made of blocks; its sizes are those of its config."""

    shows_attention = True

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.width = config.width
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        self.num_layers = config.num_layers


def encoder_block(
    config: TransformerConfig,
    number: int = 0,
    *,
    causal: bool = False,
    norm_order: NormOrder = "post",
) -> Block:
    """BERT's and GPT's block: one feed-forward layer, layer norms, biases everywhere. Blocks are counted from 0."""
    sizes = config.sizes_of_block(number)
    block = Block(
        SelfAttention(
            config.width,
            sizes.num_heads,
            # A block with fewer heads has heads of the same width.
            head_width=head_width_of(config.width, config.num_heads),
            dropout=config.attention_dropout,
            causal=causal,
        ),
        FeedForward(config.width, sizes.ffn_width, activation_name=config.activation),
        attention_norm=nn.LayerNorm(config.width, eps=config.norm_eps),
        ffn_norm=nn.LayerNorm(config.width, eps=config.norm_eps),
        norm_order=norm_order,
        dropout=config.dropout,
    )
    reduce_rank(block.attention, "qkv", sizes.qkv_rank)
    reduce_rank(block.attention, "out", sizes.out_rank)
    reduce_rank(block.ffn, "up", sizes.up_rank)
    reduce_rank(block.ffn, "down", sizes.down_rank)
    return block
