"""What encoders made of Transformer blocks have in common: their sizes with the checks, and their block."""

from dataclasses import dataclass

from torch import nn

from firth.errors import BadConfig
from firth.nn.blocks import Block, FeedForward, NormOrder, SelfAttention


@dataclass(frozen=True)
class TransformerConfig:
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

    def __post_init__(self) -> None:
        sizes = self.vocab_size, self.width, self.num_heads, self.ffn_width, self.max_positions
        if min(sizes) < 1 or self.num_layers < 0:
            raise BadConfig("Every size of an encoder must be at least 1, and num_layers at least 0.")
        if self.norm_eps <= 0 or self.init_std < 0:
            raise BadConfig("norm_eps must be above 0 and init_std at least 0.")
        if not (0 <= self.dropout < 1 and 0 <= self.attention_dropout < 1):
            raise BadConfig("dropout and attention_dropout must be at least 0 and below 1.")


def encoder_block(config: TransformerConfig, *, causal: bool = False, norm_order: NormOrder = "post") -> Block:
    """BERT's and GPT's block: one feed-forward layer, layer norms, biases everywhere."""
    return Block(
        SelfAttention(config.width, config.num_heads, dropout=config.attention_dropout, causal=causal),
        FeedForward(config.width, config.ffn_width, activation_name=config.activation),
        attention_norm=nn.LayerNorm(config.width, eps=config.norm_eps),
        ffn_norm=nn.LayerNorm(config.width, eps=config.norm_eps),
        norm_order=norm_order,
        dropout=config.dropout,
    )
