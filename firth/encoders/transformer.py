"""The original Transformer (Vaswani et al. 2017): an encoder-decoder with sinusoidal positions.

In: a batch of targets with their sources. Out: the decoder's states. Tokens are multiplied by sqrt(D), and one matrix
is the input embedding of both halves and the output layer (section 3.4). With norm=pre the norms come before the
sublayers, and one more after the last block; such a network needs less care with the learning rate.
"""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from firth.nn.absolute_positions import AbsoluteConfig, absolute_halves, start_at_neighbours
from firth.nn.blocks import initialise
from firth.nn.encoder_decoder import EncoderDecoder


class Transformer(EncoderDecoder):
    @dataclass(frozen=True)
    class Config(AbsoluteConfig):
        width: int = 512
        """Width of every state."""
        num_heads: int = 8
        """Attention heads; the width must be a multiple of it."""
        ffn_width: int = 2048
        """Width of the feed-forward layer."""
        max_positions: int = 1024
        """The longest source and the longest target, special tokens included."""
        activation: str = "relu"
        """Activation of the feed-forward layer."""
        norm_eps: float = 1e-6
        """The small number under layer norm's root."""
        positions: Literal["sinusoidal", "learned"] = "sinusoidal"
        """How a token's place is added to it: by fixed sines and cosines, or by learned vectors of each half."""
        scale_embedding: bool = True
        """Whether embedded tokens are multiplied by the square root of the width."""
        init_std: float = 0.02
        """Standard deviation of the initial weights of heads; the network's own are Glorot's."""

    def __init__(self, config: Config) -> None:
        encoder, decoder = absolute_halves(config)
        super().__init__(config, encoder=encoder, decoder=decoder)
        embedding_std = config.width**-0.5  # with sqrt(D) in front, embedded tokens have unit variance
        initialise(self, std=embedding_std)
        for part in self.modules():
            if isinstance(part, nn.Linear) and part is not self.output:
                nn.init.xavier_uniform_(part.weight)
        if config.init == "neighbours":
            start_at_neighbours(self, config)
