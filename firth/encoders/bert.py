"""BERT's encoder (Devlin et al. 2018): embeddings, L post-norm blocks over packed sequences, a tanh pooler.

In: a batch. Out: the last layer's states for every token and the pooled first token of every sequence. A batch with
prefixes is read by UniLM's mask: both ways up to the prefix, from left to right after it. Such a batch may have a
key-value cache: it then holds only the new tokens of its sequences, the whole prefix in the first pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from firth.errors import BadConfig
from firth.nn.attention import prefix_mask
from firth.nn.blocks import compute_dtype, first_rows, initialise
from firth.nn.embeddings import Embeddings
from firth.nn.heads import Pooler
from firth.nn.kv_cache import KeyValueCache, LayerCache
from firth.nn.layout import layout
from firth.nn.neighbours import SEGMENT_SCALE, start_heads, start_positions, start_projection
from firth.nn.transformer import TransformerConfig, TransformerEncoder, encoder_block
from firth.tensors import Batch, States


class Bert(TransformerEncoder):
    reads_prefix = True
    supports_cache = True

    @dataclass(frozen=True)
    class Config(TransformerConfig):
        num_segments: int = 2
        """Kinds of segment: sentence A and sentence B; 0 for no segment embedding."""
        init: Literal["normal", "neighbours"] = "normal"
        """Initial weights: all normal, as in the paper, or with heads of the first block that look at neighbours."""
        pooler: bool = True
        """Whether there is a tanh layer over the first token."""
        embedding_width: int = 0
        """Width of the input embedding, projected up to the width of the states; 0: the same width, no projection."""
        language: int = -1
        """The segment of every token, where segments are languages and all texts are in one; -1: as the batch says."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if min(self.num_segments, self.embedding_width) < 0:
                raise BadConfig("num_segments and embedding_width must be at least 0.")
            if not -1 <= self.language < max(self.num_segments, 1):
                raise BadConfig("language must be -1 or the number of a segment.")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(
            config.vocab_size,
            self.table_width,
            out_width=config.width,
            max_positions=config.max_positions,
            num_segments=config.num_segments,
            dropout=config.dropout,
            norm_eps=config.norm_eps,
        )
        self.blocks = nn.ModuleList(encoder_block(config, number) for number in range(config.num_layers))
        self.pooler = Pooler(config.width) if config.pooler else None
        initialise(self, std=config.init_std)
        if config.init == "neighbours":
            self._start_at_neighbours()

    @property
    def table_width(self) -> int:
        return self.config.embedding_width or self.config.width  # type: ignore[no-any-return]

    def _start_at_neighbours(self) -> None:
        """Initial weights with which heads of the first block attend to neighbours (`nn/neighbours.py`)."""
        start_positions(self.embeddings.positions, init_std=self.config.init_std)  # type: ignore[arg-type]
        for weight in self.embeddings.segments.parameters():
            with torch.no_grad():
                weight.mul_(SEGMENT_SCALE)
        if isinstance(self.embeddings.project, nn.Linear):
            start_projection(self.embeddings.project)
        if self.num_layers:
            start_heads(self.blocks[0].attention, embedding_width=self.table_width)  # type: ignore[union-attr,arg-type]

    def forward(
        self,
        batch: Batch,
        *,
        layers: bool = False,
        attention: bool = False,
        cache: KeyValueCache | None = None,
    ) -> States:
        table_VD = self.embeddings.tokens.weight
        plan = layout(batch, dtype=compute_dtype(table_VD))
        mask = None if batch.prefix_B is None else prefix_mask(batch.prefix_B)
        caches: Sequence[LayerCache | None] = [None] * self.num_layers
        if cache is not None:
            assert mask is not None, "without a prefix, tokens would have to see those that come later"
            plan, caches = cache.read(plan)
        segments_N = batch.segments_N
        if self.config.language >= 0:
            segments_N = torch.full_like(segments_N, self.config.language)
        x_ND = self.embeddings(batch.ids_N, batch.positions_N, segments_N)
        kept = [x_ND]
        maps = []
        for block, layer_cache in zip(self.blocks, caches, strict=True):
            if attention:
                maps.append(block.weights(x_ND, plan, mask=mask, cache=layer_cache))  # type: ignore[operator]
            x_ND = block(x_ND, plan, mask=mask, cache=layer_cache)
            if layers:
                kept.append(x_ND)
        pooled_BD = None
        if self.pooler:
            pooled_BD = self.pooler(first_rows(x_ND, batch.bounds_B1))
        shown = tuple(kept) if layers else ()
        return States(x_ND, table_VD, pooled_BD, layers=shown, attention=tuple(maps))
