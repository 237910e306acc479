"""ModernBERT's encoder (Warner et al. 2024): BERT with rotary positions, gated feed-forward layers and local attention.

In: a batch. Out: the last layer's states for every token. Norms come before the sublayers, and one more after the last
block; the first block needs none, because the embeddings are normalised. Every `global_every`-th layer sees the whole
sequence, the others see `local_window` tokens around each. There are no biases, no positions in the embeddings, and no
segments.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from firth.errors import BadConfig
from firth.nn.attention_layers import head_width_of
from firth.nn.blocks import GatedFeedForward, compute_dtype, initialise
from firth.nn.dropout import Dropout
from firth.nn.layout import layout
from firth.nn.rotary import RotaryAttention, RotaryBlock, rotation
from firth.nn.transformer import TransformerConfig, TransformerEncoder
from firth.tensors import Batch, States


class NormalisedTokens(nn.Module):
    """The input: token embeddings, normalised."""

    def __init__(self, vocab_size: int, width: int, *, norm_eps: float, norm_bias: bool, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.norm = nn.LayerNorm(width, eps=norm_eps, bias=norm_bias)
        self.dropout = Dropout(dropout)

    def forward(self, ids_N: Tensor) -> Tensor:
        x_ND: Tensor = self.dropout(self.norm(self.tokens(ids_N)))
        return x_ND


class ModernBert(TransformerEncoder):
    text_layer = "gelu-norm"
    token_layer = "gelu-norm"

    @dataclass(frozen=True)
    class Config(TransformerConfig):
        vocab_size: int = 50368
        """Rows of the input embedding."""
        num_layers: int = 22
        """Blocks."""
        ffn_width: int = 1152
        """Width of the feed-forward layer, which has two matrices of this width before the last one."""
        max_positions: int = 8192
        """The longest sequence to read at once; no weight depends on it."""
        dropout: float = 0.0
        """Share of a sublayer's outputs set to zero in training."""
        norm_eps: float = 1e-5
        """The small number under the norm's root."""
        global_every: int = 3
        """Every so many layers, beginning with the first, a token sees the whole sequence."""
        local_window: int = 128
        """In the other layers a token sees half of this number of tokens before it, and half after it."""
        global_theta: float = 160_000.0
        """The slowest rotation of the layers that see all: the larger, the farther positions are told apart."""
        local_theta: float = 10_000.0
        """The same for the other layers."""
        attention_bias: bool = False
        """Whether the matrices of attention have biases."""
        ffn_bias: bool = False
        """Whether the matrices of the feed-forward layer have biases."""
        norm_bias: bool = False
        """Whether norms have biases, those of heads included."""
        head_bias: bool = False
        """Whether the dense layer of heads has a bias."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.global_every < 1 or self.local_window < 0:
                raise BadConfig("global_every must be at least 1 and local_window at least 0.")
            if head_width_of(self.width, self.num_heads) % 2:
                raise BadConfig("Heads with rotary positions must have an even width.")

        def sees_all(self, number: int) -> bool:
            """Whether the tokens of a block see their whole sequence; blocks are counted from 0."""
            return number % self.global_every == 0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embeddings = NormalisedTokens(
            config.vocab_size,
            config.width,
            norm_eps=config.norm_eps,
            norm_bias=config.norm_bias,
            dropout=config.dropout,
        )
        self.blocks = nn.ModuleList(_block(config, number) for number in range(config.num_layers))
        self.norm = _norm(config)
        initialise(self, std=config.init_std)
        self._shrink_outputs()

    def _shrink_outputs(self) -> None:
        """Smaller initial weights where blocks add to the states, so that these do not grow with depth."""
        with torch.no_grad():
            for block in self.blocks:
                for layer in (block.attention.out, block.ffn.down):  # type: ignore[union-attr]
                    layer.weight.div_((2 * self.num_layers) ** 0.5)  # type: ignore[union-attr,operator]

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        config = self.config
        table_VD = self.embeddings.tokens.weight
        plan = layout(batch, dtype=compute_dtype(table_VD))
        head_width = head_width_of(config.width, config.num_heads)
        by_reach = {
            True: rotation(batch.positions_N, head_width=head_width, theta=config.global_theta),
            False: rotation(batch.positions_N, head_width=head_width, theta=config.local_theta),
        }
        x_ND = self.embeddings(batch.ids_N)
        kept = [x_ND]
        maps = []
        for number, block in enumerate(self.blocks):
            turns = by_reach[config.sees_all(number)]
            if attention:
                maps.append(block.weights(x_ND, plan, turns))  # type: ignore[operator]
            x_ND = block(x_ND, plan, turns)
            if layers:
                kept.append(x_ND)
        last_ND = self.norm(x_ND)
        if layers:
            kept[-1] = last_ND
        shown = tuple(kept) if layers else ()
        return States(last_ND, table_VD, layers=shown, attention=tuple(maps))


def _norm(config: ModernBert.Config) -> nn.LayerNorm:
    return nn.LayerNorm(config.width, eps=config.norm_eps, bias=config.norm_bias)


def _block(config: ModernBert.Config, number: int) -> RotaryBlock:
    window = None if config.sees_all(number) else config.local_window // 2
    attention = RotaryAttention(
        config.width,
        config.num_heads,
        dropout=config.attention_dropout,
        use_bias=config.attention_bias,
        window=window,
    )
    feed_forward = GatedFeedForward(
        config.width, config.ffn_width, activation_name=config.activation, use_bias=config.ffn_bias
    )
    # The embeddings are normalised already.
    attention_norm = _norm(config) if number else nn.Identity()
    return RotaryBlock(
        attention,
        feed_forward,
        attention_norm=attention_norm,
        ffn_norm=_norm(config),
        norm_order="pre",
        dropout=config.dropout,
    )
