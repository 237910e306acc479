"""XLNet's encoder (Yang et al. 2019): relative positions and segments, and two streams where an order is given.

In: a batch. Out: the last layer's states for every token, and the state of the token that stands for each sequence.
Without an order every token sees its whole sequence: so it is fine-tuned. With `Batch.order`, `States.queries_PD` are
the states of the predicted tokens, made from a learned vector and the tokens before them in the order.

Segment recurrence (Dai et al. 2019): in a batch with an order, the tokens of rank `MEMORY_RANK` are the segment before
the one that is trained. They see only themselves, every other token of the sequence sees their states in each layer,
and no gradient goes into these: what the papers' mems do. The papers keep the states of the last batch. Here the memory
is computed in the same pass as the segment that reads it, so that nothing is kept between steps: batches may come in
any order, and a run resumes exactly.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from firth.errors import BadConfig
from firth.nn.blocks import FeedForward, compute_dtype, first_rows, initialise
from firth.nn.dropout import Dropout
from firth.nn.layout import layout
from firth.nn.pooling import last_rows
from firth.nn.transformer import TransformerConfig, TransformerEncoder
from firth.nn.two_streams import RelativeAttention, TwoStreamBlock, plan_streams
from firth.tensors import Batch, States


class XLNet(TransformerEncoder):
    has_two_streams = True

    @dataclass(frozen=True)
    class Config(TransformerConfig):
        vocab_size: int = 32000
        """Rows of the input embedding."""
        max_positions: int = 512
        """The longest sequence to read at once; positions are relative, so no weight depends on it."""
        cls_last: bool = False
        """Whether the last token of a sequence stands for all of it (`first <sep> second <sep> <cls>`), not the
        first; the tokenizer decides when a model is pre-trained."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.width % 2:
                raise BadConfig("The width of an XLNet must be even: half of it is sines, half cosines.")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.cls_last = config.cls_last
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.query = nn.Parameter(torch.zeros(config.width))
        """What the query stream begins with in place of a token's embedding."""
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.num_layers))
        initialise(self, std=config.init_std)
        nn.init.normal_(self.query, std=config.init_std)
        for block in self.blocks:
            block.attention.initialise_biases(config.init_std)  # type: ignore[union-attr,operator]

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        table_VD = self.tokens.weight
        plan = plan_streams(batch, layout(batch, dtype=compute_dtype(table_VD)), width=self.width)
        plan = replace(plan, waves_RD=self.dropout(plan.waves_RD))
        x_ND: Tensor = self.tokens(batch.ids_N)
        if batch.order is not None:
            queries_PD = self.query.expand(len(batch.order.queries_P), -1)
            x_ND = torch.cat([x_ND, queries_PD])
        x_ND = self.dropout(x_ND)
        num_tokens = batch.num_tokens
        kept = [x_ND[:num_tokens]]
        maps = []
        for block in self.blocks:
            if attention:
                maps.append(block.weights(x_ND, plan))  # type: ignore[operator]
            x_ND = block(x_ND, plan)
            if layers:
                kept.append(x_ND[:num_tokens])
        last_ND = x_ND[:num_tokens]
        predicted_PD = None if batch.order is None else x_ND[num_tokens:]
        pool = last_rows if self.cls_last else first_rows
        pooled_BD = pool(last_ND, batch.bounds_B1)
        shown = tuple(kept) if layers else ()
        return States(
            last_ND,
            table_VD,
            pooled_BD,
            layers=shown,
            attention=tuple(maps),
            queries_PD=predicted_PD,
        )


def _block(config: XLNet.Config) -> TwoStreamBlock:
    return TwoStreamBlock(
        RelativeAttention(config.width, config.num_heads, dropout=config.attention_dropout),
        FeedForward(config.width, config.ffn_width, activation_name=config.activation),
        width=config.width,
        norm_eps=config.norm_eps,
        dropout=config.dropout,
    )
