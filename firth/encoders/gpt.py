"""GPT's encoder: learned positions and causal blocks, each token seeing itself and those before it.

In: a batch. Out: the last layer's states for every token. With norm=post it is GPT (Radford et al. 2018), with norm=pre
GPT-2 (Radford et al. 2019): norms in front of the sublayers, one more at the end, and smaller initial weights where a
sublayer adds to the residual stream. With a `Memory` the batch holds only what is new of sequences read before.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from firth.errors import BadConfig
from firth.nn.attention import layout
from firth.nn.blocks import Block, PreNormBlock, compute_dtype, initialise
from firth.nn.memory import Memory
from firth.tensors import Batch, Encoder, States


class GPT(Encoder):
    causal = True

    @dataclass(frozen=True)
    class Config:
        vocab_size: int = 50257
        """Rows of the input embedding."""
        width: int = 768
        """Width of every state."""
        num_layers: int = 12
        """Blocks."""
        num_heads: int = 12
        """Attention heads; the width must be a multiple of it."""
        ffn_width: int = 3072
        """Width of the feed-forward layer, four times the width in the papers."""
        max_positions: int = 1024
        """The longest sequence the model can read (GPT: 512)."""
        norm: Literal["pre", "post"] = "pre"
        """Norms in front of every sublayer and at the end (GPT-2), or behind every sublayer (GPT)."""
        activation: str = "gelu_new"
        """Activation of the feed-forward layer."""
        dropout: float = 0.1
        """Share of embeddings and of a sublayer's outputs set to zero in training."""
        attention_dropout: float = 0.0
        """Share of attention weights set to zero in training (the papers: 0.1; the GPU's packed kernel has none)."""
        norm_eps: float = 1e-5
        """The small number under layer norm's root."""
        init_std: float = 0.02
        """Standard deviation of the initial weights."""

        def __post_init__(self) -> None:
            sizes = self.vocab_size, self.width, self.num_heads, self.ffn_width, self.max_positions
            if min(sizes) < 1 or self.num_layers < 0 or self.norm_eps <= 0 or self.init_std < 0:
                raise BadConfig("Every size of a GPT must be at least 1, norm_eps above 0 and init_std at least 0.")
            if not (0 <= self.dropout < 1 and 0 <= self.attention_dropout < 1):
                raise BadConfig("dropout and attention_dropout must be at least 0 and below 1.")

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.width, self.vocab_size = config.width, config.vocab_size
        self.max_positions, self.num_layers = config.max_positions, config.num_layers
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.max_positions, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps) if config.norm == "pre" else nn.Identity()
        initialise(self, std=config.init_std)
        if config.norm == "pre":
            self._quieten()

    def forward(
        self, batch: Batch, *, layers: bool = False, attention: bool = False, memory: Memory | None = None
    ) -> States:
        table_VD = self.tokens.weight
        if memory is None:
            plans = [layout(batch.bounds_B1, batch.max_length, dtype=compute_dtype(table_VD))] * self.num_layers
        else:
            plans = memory.layouts(batch.bounds_B1, batch.max_length)
        x_ND: Tensor = self.dropout(self.tokens(batch.ids_N) + self.positions(batch.positions_N))
        kept: list[Tensor] = []
        maps: list[tuple[Tensor, ...]] = []
        for block, plan in zip(self.blocks, plans, strict=True):
            if attention:
                maps.append(block.weights(x_ND, plan))  # type: ignore[operator]
            kept = [*kept, x_ND] if layers else kept
            x_ND = block(x_ND, plan)
        x_ND = self.norm(x_ND)
        return States(x_ND, table_VD, layers=(*kept, x_ND) if layers else (), attention=tuple(maps))

    def _quieten(self) -> None:
        """The residual stream adds up 2 L sublayers: each begins with 1 / sqrt(2 L) of the usual weights."""
        for block in self.blocks:
            for part in (block.attention.out, block.down):  # type: ignore[union-attr]
                with torch.no_grad():
                    part.weight.mul_((2 * self.num_layers) ** -0.5)  # type: ignore[union-attr,operator]


def _block(config: GPT.Config) -> Block:
    return (PreNormBlock if config.norm == "pre" else Block)(
        config.width,
        config.num_heads,
        ffn_width=config.ffn_width,
        activation_name=config.activation,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        norm_eps=config.norm_eps,
        causal=True,
    )
