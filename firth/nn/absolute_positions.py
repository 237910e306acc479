"""Encoder-decoders whose positions are added to the tokens: the original Transformer, BART and what is shaped alike.

In: a config. Out: the two halves of an `EncoderDecoder`. Positions are sinusoids or learned; tokens may be multiplied
by sqrt(D); a norm may follow; norms come before or after the sublayers.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from firth.errors import BadConfig
from firth.nn.attention_layers import CrossAttention, SelfAttention
from firth.nn.blocks import Block, DecoderBlock, FeedForward
from firth.nn.dropout import Dropout
from firth.nn.encoder_decoder import DecoderStack, EncoderDecoder, EncoderDecoderConfig, EncoderStack
from firth.nn.neighbours import start_cross_attention, start_heads, start_positions, start_projection

LONGEST_WAVE = 10_000.0
"""The sinusoids' wavelengths rise from 2 pi to this times 2 pi."""


@dataclass(frozen=True)
class AbsoluteConfig(EncoderDecoderConfig):
    positions: Literal["sinusoidal", "learned"] = "learned"
    """How a token's place is added to it: by fixed sines and cosines, or by learned vectors of each half."""
    norm: Literal["pre", "post"] = "post"
    """Norms before every sublayer and at the end of each half, or after every sublayer."""
    scale_embedding: bool = False
    """Whether embedded tokens are multiplied by the square root of the width."""
    norm_embedding: bool = False
    """Whether a norm follows the sum of token and position."""
    ffn_dropout: float = 0.0
    """Share of the feed-forward layer's hidden units set to zero in training."""
    embedding_width: int = 0
    """Width of the input embedding, projected up to the width of the states; 0: the same width, no projection."""
    init: Literal["normal", "neighbours"] = "normal"
    """Initial weights: all at random, or with heads of the first blocks that look at neighbours and cross-attention
    that looks at the same token in the source, so that a new model soon reads. This needs learned positions."""

    @property
    def table_width(self) -> int:
        return self.embedding_width or self.width

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding_width < 0:
            raise BadConfig("embedding_width must be at least 0.")
        if not 0 <= self.ffn_dropout < 1:
            raise BadConfig("ffn_dropout must be at least 0 and below 1.")
        if self.init == "neighbours" and self.positions != "learned":
            raise BadConfig("init=neighbours needs learned positions, such as encoder.transformer.positions=learned.")


class Sinusoids(nn.Module):
    """sin(p / 10000^(2i/D)) in column 2i and the cosine in column 2i + 1 (Vaswani et al. 2017, section 3.5)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, positions_N: Tensor) -> Tensor:
        even_columns = torch.arange(0, self.width, 2, device=positions_N.device)
        rates = LONGEST_WAVE ** (-even_columns / self.width)
        angles = positions_N[:, None] * rates
        waves = torch.stack([angles.sin(), angles.cos()], -1)
        return waves.flatten(1)[:, : self.width]


class PositionedEmbedding(nn.Module):
    """scale * token + position, then a norm where the shape has one, dropout, and a projection to the states' width."""

    def __init__(self, config: AbsoluteConfig) -> None:
        super().__init__()
        width = config.table_width
        self.scale = width**0.5 if config.scale_embedding else 1.0
        self.positions: nn.Module = Sinusoids(width)
        if config.positions == "learned":
            self.positions = nn.Embedding(config.max_positions, width)
        self.norm: nn.Module = nn.Identity()
        if config.norm_embedding:
            self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.dropout = Dropout(config.dropout)
        self.project: nn.Module = nn.Identity()
        if config.embedding_width:
            self.project = nn.Linear(width, config.width)

    def forward(self, tokens_NE: Tensor, positions_N: Tensor) -> Tensor:
        positions_NE = self.positions(positions_N).to(tokens_NE.dtype)
        x_NE = tokens_NE * self.scale + positions_NE
        out_ND: Tensor = self.project(self.dropout(self.norm(x_NE)))
        return out_ND


def absolute_halves(config: AbsoluteConfig) -> tuple[EncoderStack, DecoderStack]:
    """The encoder half and the decoder."""
    encoder_blocks = [_encoder_block(config) for _ in range(config.num_layers)]
    decoder_blocks = [_decoder_block(config) for _ in range(config.num_decoder_layers)]
    encoder = EncoderStack(PositionedEmbedding(config), encoder_blocks, norm=_final_norm(config))
    decoder = DecoderStack(PositionedEmbedding(config), decoder_blocks, norm=_final_norm(config))
    return encoder, decoder


def start_at_neighbours(network: EncoderDecoder, config: AbsoluteConfig) -> None:
    """Initial weights whose heads attend to neighbours and to the same token of the source (`nn/neighbours.py`)."""
    # Positions are as large as embedded tokens, which the scale gives a unit variance.
    init_std = 1.0 if config.scale_embedding else config.init_std
    for half in (network.encoder, network.decoder):
        assert isinstance(half.embed, PositionedEmbedding)
        start_positions(half.embed.positions, init_std=init_std)  # type: ignore[arg-type]
        if isinstance(half.embed.project, nn.Linear):
            start_projection(half.embed.project)
        if len(half.blocks):
            first = half.blocks[0]
            assert isinstance(first, Block)
            start_heads(first.attention, embedding_width=config.table_width)
    for block in network.decoder.blocks:
        assert isinstance(block, DecoderBlock)
        start_cross_attention(block.cross)


def _encoder_block(config: AbsoluteConfig) -> Block:
    """Self-attention and feed-forward layer, with layer norms and biases everywhere."""
    return Block(
        SelfAttention(config.width, config.num_heads, dropout=config.attention_dropout),
        _feed_forward(config),
        attention_norm=_layer_norm(config),
        ffn_norm=_layer_norm(config),
        norm_order=config.norm,
        dropout=config.dropout,
    )


def _decoder_block(config: AbsoluteConfig) -> DecoderBlock:
    """Causal self-attention, cross-attention and feed-forward layer, with layer norms and biases everywhere."""
    return DecoderBlock(
        SelfAttention(config.width, config.num_heads, dropout=config.attention_dropout, causal=True),
        CrossAttention(config.width, config.num_heads, dropout=config.attention_dropout),
        _feed_forward(config),
        attention_norm=_layer_norm(config),
        cross_norm=_layer_norm(config),
        ffn_norm=_layer_norm(config),
        norm_order=config.norm,
        dropout=config.dropout,
    )


def _feed_forward(config: AbsoluteConfig) -> FeedForward:
    return FeedForward(config.width, config.ffn_width, activation_name=config.activation, dropout=config.ffn_dropout)


def _layer_norm(config: AbsoluteConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.width, eps=config.norm_eps)


def _final_norm(config: AbsoluteConfig) -> nn.LayerNorm | None:
    return _layer_norm(config) if config.norm == "pre" else None
