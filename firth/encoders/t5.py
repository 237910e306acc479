"""T5 (Raffel et al. 2019): an encoder-decoder with relative positions, RMS norms before the sublayers and no biases.

In: a batch of targets with their sources. Out: the decoder's states. Scores are not divided by sqrt(K); the initial
weights of queries are that much smaller. Version 1.0 has a ReLU layer and ties the output layer to the input
embedding, with states scaled by 1 / sqrt(D). Version 1.1 has a gated GELU layer and an output layer of its own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from firth.errors import BadConfig
from firth.nn.attention_layers import CrossAttention, SelfAttention
from firth.nn.blocks import Block, DecoderBlock, FeedForward, GatedFeedForward
from firth.nn.dropout import Dropout
from firth.nn.encoder_decoder import DecoderStack, EncoderDecoder, EncoderDecoderConfig, EncoderStack
from firth.nn.relative_positions import RelativePositions


class T5(EncoderDecoder):
    @dataclass(frozen=True)
    class Config(EncoderDecoderConfig):
        vocab_size: int = 32128
        """Rows of the input embedding."""
        width: int = 512
        """Width of every state."""
        num_heads: int = 8
        """Attention heads."""
        head_width: int = 0
        """Width of each head; 0: the width divided by the number of heads."""
        ffn_width: int = 2048
        """Width of the feed-forward layer."""
        max_positions: int = 512
        """The longest source and the longest target. Positions are relative, so a model can read more."""
        activation: str = "relu"
        """Activation of the feed-forward layer (1.0: relu, 1.1: gelu_new)."""
        gated: bool = False
        """Whether the feed-forward layer is gated (1.1)."""
        num_buckets: int = 32
        """Buckets of relative positions."""
        max_distance: int = 128
        """Greater distances share a bucket."""
        norm_eps: float = 1e-6
        """The small number under the norm's root."""
        start_token: int | None = 0
        """The id with which every target begins: T5's padding."""
        scale_output: bool = True
        """Whether states are multiplied by 1 / sqrt(D) before the output layer (1.0)."""
        init_std: float = 0.05
        """Standard deviation of the initial weights of heads; the network's own depend on its widths."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.head_width < 0 or self.num_buckets < 4 or self.max_distance <= self.num_buckets:
                raise BadConfig("T5 needs head_width >= 0, num_buckets >= 4 and max_distance above num_buckets.")

        @property
        def output_scale(self) -> float:
            return float(self.width**-0.5) if self.scale_output else 1.0

    config: Config

    def __init__(self, config: Config) -> None:
        encoder_blocks = [_encoder_block(config) for _ in range(config.num_layers)]
        decoder_blocks = [_decoder_block(config) for _ in range(config.num_decoder_layers)]
        encoder = EncoderStack(
            TokensAlone(config),
            encoder_blocks,
            norm=_norm(config),
            relative=_relative(config, causal=False),
            final_dropout=config.dropout,
        )
        decoder = DecoderStack(
            TokensAlone(config),
            decoder_blocks,
            norm=_norm(config),
            relative=_relative(config, causal=True),
            final_dropout=config.dropout,
        )
        super().__init__(config, encoder=encoder, decoder=decoder)
        self._initialise()

    def _initialise(self) -> None:
        """Standard deviations of 1 / sqrt(inputs), and of 1 for the embedding; those of queries also by 1 / sqrt(K)."""
        width = self.config.width
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=part.in_features**-0.5)
        for part in self.modules():
            if isinstance(part, SelfAttention | CrossAttention):
                _shrink_queries(part)
            if isinstance(part, RelativePositions):
                nn.init.normal_(part.table.weight, std=width**-0.5)
        nn.init.normal_(self.tokens.weight)


def _shrink_queries(attention: SelfAttention | CrossAttention) -> None:
    """Divides the initial weights of queries by sqrt(K), because scores are not divided by it."""
    weight = attention.qkv.weight if isinstance(attention, SelfAttention) else attention.q.weight
    inner = attention.out.in_features
    head_width = inner // attention.num_heads
    with torch.no_grad():
        weight[:inner] *= head_width**-0.5


class TokensAlone(nn.Module):
    """The input of a network with relative positions: tokens and nothing else."""

    def __init__(self, config: T5.Config) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)

    def forward(self, tokens_ND: Tensor, positions_N: Tensor) -> Tensor:
        out_ND: Tensor = self.dropout(tokens_ND)
        return out_ND


def _encoder_block(config: T5.Config) -> Block:
    return Block(
        _self_attention(config, causal=False),
        _feed_forward(config),
        attention_norm=_norm(config),
        ffn_norm=_norm(config),
        norm_order="pre",
        dropout=config.dropout,
    )


def _decoder_block(config: T5.Config) -> DecoderBlock:
    cross = CrossAttention(
        config.width,
        config.num_heads,
        dropout=config.attention_dropout,
        head_width=config.head_width or None,
        scale=1.0,
        use_bias=False,
    )
    return DecoderBlock(
        _self_attention(config, causal=True),
        cross,
        _feed_forward(config),
        attention_norm=_norm(config),
        cross_norm=_norm(config),
        ffn_norm=_norm(config),
        norm_order="pre",
        dropout=config.dropout,
    )


def _self_attention(config: T5.Config, *, causal: bool) -> SelfAttention:
    return SelfAttention(
        config.width,
        config.num_heads,
        dropout=config.attention_dropout,
        causal=causal,
        head_width=config.head_width or None,
        scale=1.0,
        use_bias=False,
    )


def _feed_forward(config: T5.Config) -> nn.Module:
    kind = GatedFeedForward if config.gated else FeedForward
    return kind(
        config.width,
        config.ffn_width,
        activation_name=config.activation,
        use_bias=False,
        dropout=config.dropout,
    )


def _relative(config: T5.Config, *, causal: bool) -> RelativePositions:
    return RelativePositions(
        config.num_heads, num_buckets=config.num_buckets, max_distance=config.max_distance, causal=causal
    )


def _norm(config: T5.Config) -> nn.Module:
    return nn.RMSNorm(config.width, eps=config.norm_eps)
