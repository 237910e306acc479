"""BART (Lewis et al. 2019): BERT's blocks as encoder and as decoder, with learned positions and a norm after them.

In: a batch of targets with their sources. Out: the decoder's states. mBART (Liu et al. 2020) has norm=pre: norms before
the sublayers and one more at the end of each half.
"""

from dataclasses import dataclass

from firth.nn.absolute_positions import AbsoluteConfig, absolute_halves, start_at_neighbours
from firth.nn.blocks import initialise
from firth.nn.encoder_decoder import EncoderDecoder


class Bart(EncoderDecoder):
    @dataclass(frozen=True)
    class Config(AbsoluteConfig):
        vocab_size: int = 50265
        """Rows of the input embedding."""
        max_positions: int = 1024
        """The longest source and the longest target, special tokens included."""
        norm_eps: float = 1e-5
        """The small number under layer norm's root."""
        norm_embedding: bool = True
        """Whether a norm follows the sum of token and position."""

    def __init__(self, config: Config) -> None:
        encoder, decoder = absolute_halves(config)
        super().__init__(config, encoder=encoder, decoder=decoder)
        initialise(self, std=config.init_std)
        if config.init == "neighbours":
            start_at_neighbours(self, config)
