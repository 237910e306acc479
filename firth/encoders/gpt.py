"""GPT's encoder: learned positions and causal blocks, in which a token attends to itself and the tokens before it.

In: a batch. Out: the last layer's states for every token. With norm=post it is GPT (Radford et al. 2018), with norm=pre
GPT-2 (Radford et al. 2019): norms before the sublayers, one more at the end, and smaller initial weights where a
sublayer adds to the residual stream. With a key-value cache the batch holds only the new tokens of its sequences. The
tokens of a batch's prefixes see each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from firth.nn.attention import prefix_mask
from firth.nn.blocks import compute_dtype, initialise
from firth.nn.dropout import Dropout
from firth.nn.kv_cache import KeyValueCache, LayerCache
from firth.nn.layout import layout
from firth.nn.transformer import TransformerConfig, TransformerEncoder, encoder_block
from firth.tensors import Batch, States


class GPT(TransformerEncoder):
    causal = True
    supports_cache = True
    reads_prefix = True

    @dataclass(frozen=True)
    class Config(TransformerConfig):
        vocab_size: int = 50257
        """Rows of the input embedding."""
        max_positions: int = 1024
        """The longest sequence the model can read (GPT: 512)."""
        activation: str = "gelu_new"
        """Activation of the feed-forward layer."""
        dropout: float = 0.1
        """Share of embeddings and of a sublayer's outputs set to zero in training."""
        norm_eps: float = 1e-5
        """The small number under layer norm's root."""
        norm: Literal["pre", "post"] = "pre"
        """Norms before every sublayer and at the end (GPT-2), or after every sublayer (GPT)."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.max_positions, config.width)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            encoder_block(config, number, causal=True, norm_order=config.norm) for number in range(config.num_layers)
        )
        self.norm: nn.Module = nn.Identity()
        if config.norm == "pre":
            self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        initialise(self, std=config.init_std)
        if config.norm == "pre":
            self._scale_residual_layers()

    def forward(
        self,
        batch: Batch,
        *,
        layers: bool = False,
        attention: bool = False,
        cache: KeyValueCache | None = None,
    ) -> States:
        table_VD = self.tokens.weight
        plan = layout(batch, dtype=compute_dtype(table_VD))
        mask = None if batch.prefix_B is None else prefix_mask(batch.prefix_B)
        caches: Sequence[LayerCache | None] = [None] * self.num_layers
        if cache is not None:
            plan, caches = cache.read(plan)
        embedded_ND = self.tokens(batch.ids_N) + self.positions(batch.positions_N)
        x_ND: Tensor = self.dropout(embedded_ND)
        kept: list[Tensor] = []
        maps: list[tuple[Tensor, ...]] = []
        for block, layer_cache in zip(self.blocks, caches, strict=True):
            if attention:
                maps.append(block.weights(x_ND, plan, mask=mask, cache=layer_cache))  # type: ignore[operator]
            if layers:
                kept.append(x_ND)
            x_ND = block(x_ND, plan, mask=mask, cache=layer_cache)
        x_ND = self.norm(x_ND)
        shown = (*kept, x_ND) if layers else ()
        return States(x_ND, table_VD, layers=shown, attention=tuple(maps))

    def _scale_residual_layers(self) -> None:
        """The residual stream sums 2 L sublayers, so each starts with 1 / sqrt(2 L) of the usual weights."""
        scale = (2 * self.num_layers) ** -0.5
        for block in self.blocks:
            for part in (block.attention.out, block.ffn.down):  # type: ignore[union-attr]
                with torch.no_grad():
                    part.weight.mul_(scale)  # type: ignore[union-attr,operator]
