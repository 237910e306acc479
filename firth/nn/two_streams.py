"""XLNet's attention (Yang et al. 2019, sections 2.3 to 2.5): relative positions and segments, and two streams.

    score(i, j) = ((q_i + u)' k_j + (q_i + v)' W_r r(i - j) + (q_i + w)' s(i, j)) / sqrt(K)

where r is sin and cos of the distance, s one of two vectors (same segment or not), and u, v and w are learned. The
content stream has a row for each of the N tokens, which has read its own token. The query stream has a row for each of
the P predicted tokens, which has not. Both share all weights, and both read keys and values of the content stream.

In: N content rows followed by P query rows. Out: the same rows, one block later. `attend` takes (q + u)' k as its
product, the other two terms as its bias, and the order of prediction as its mask.

Suffix besides those of `firth.tensors`: R distances. Where both streams lie in one tensor, N counts the rows of both.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from firth.errors import BadConfig
from firth.nn.attention import Projected, attend, attention_weights
from firth.nn.blocks import Block
from firth.nn.groups import Group
from firth.nn.layout import Layout
from firth.tensors import MEMORY_RANK, Batch, PredictionOrder

WAVELENGTH = 10_000
"""Of the slowest sine, in distances of 2 pi (Vaswani et al. 2017, section 3.5)."""


@dataclass(frozen=True, eq=False)
class QueryRows:
    """Where the query stream's rows belong."""

    order: PredictionOrder
    layout: Layout
    """The query rows of each sequence."""
    positions_P: Tensor
    """The position of each predicted token in its sequence."""
    segments_P: Tensor
    ranks_P: Tensor
    is_memory_N1: Tensor
    """Whether a row is memory; of both streams."""


@dataclass(frozen=True, eq=False)
class StreamPlan:
    """What the two streams of a batch read; the same in all layers."""

    layout: Layout
    """The content rows of each sequence."""
    segments_N: Tensor
    waves_RD: Tensor
    """sin and cos of the distances L - 1, L - 2, ... -L, where L is the length of the longest sequence."""
    queries: QueryRows | None = None

    @property
    def num_tokens(self) -> int:
        return self.layout.num_tokens

    def without_memory_gradient(self, x_ND: Tensor) -> Tensor:
        """The same rows; no gradient goes back into those of the memory."""
        if self.queries is None:
            return x_ND
        return torch.where(self.queries.is_memory_N1, x_ND.detach(), x_ND)

    @property
    def content_mask(self) -> Callable[[Group], Tensor] | None:
        """The content stream's mask; None without an order of prediction, where all see all."""
        if self.queries is None:
            return None
        return self.content_seen

    def content_seen(self, group: Group) -> Tensor:
        """The content stream's mask: a token sees its own rank and those below."""
        assert self.queries is not None
        ranks_N = self.queries.order.ranks_N
        query_GL = ranks_N[group.queries.rows_GL]
        key_GS = ranks_N[group.keys.rows_GL]
        return (key_GS[:, None, :] <= query_GL[:, :, None])[:, None]

    def query_seen(self, group: Group) -> Tensor:
        """The query stream's mask: a token that is predicted sees only ranks below its own."""
        assert self.queries is not None
        query_GL = self.queries.ranks_P[group.queries.rows_GL]
        key_GS = self.queries.order.ranks_N[group.keys.rows_GL]
        return (key_GS[:, None, :] < query_GL[:, :, None])[:, None]


def plan_streams(batch: Batch, layout: Layout, *, width: int) -> StreamPlan:
    """The plan of a batch; without an order there is only the content stream, and all see all."""
    waves_RD = relative_waves(batch.max_length, width, device=batch.ids_N.device)
    order = batch.order
    if order is None:
        return StreamPlan(layout, batch.segments_N, waves_RD)
    tokens_P = order.queries_P
    is_memory_N = order.ranks_N == MEMORY_RANK
    is_memory_N1 = torch.cat([is_memory_N, torch.zeros_like(tokens_P, dtype=torch.bool)])[:, None]
    queries = QueryRows(
        order,
        Layout(order.query_bounds_B1, order.max_queries, len(tokens_P), layout.has_kernels),
        positions_P=batch.positions_N[tokens_P],
        segments_P=batch.segments_N[tokens_P],
        ranks_P=order.ranks_N[tokens_P],
        is_memory_N1=is_memory_N1,
    )
    return StreamPlan(layout, batch.segments_N, waves_RD, queries)


def relative_waves(max_length: int, width: int, *, device: torch.device) -> Tensor:
    """sin and cos of the distances L - 1 down to -L: 2 L x D in single precision."""
    distances_R = torch.arange(max_length - 1, -max_length - 1, -1, device=device).float()
    frequencies = WAVELENGTH ** (-torch.arange(0, width, 2, device=device).float() / width)
    angles = distances_R[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1)


class RelativeAttention(nn.Module):
    """Both streams' attention to the content rows of their own sequence."""

    def __init__(self, width: int, num_heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        if width % num_heads or width % 2:
            raise BadConfig(f"The width {width} must be even and a multiple of the number of heads {num_heads}.")
        self.num_heads = num_heads
        self.head_width = width // num_heads
        self.scale = self.head_width**-0.5
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.relative = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        # One dimension each, so that optimizers treat them as biases.
        self.content_bias = nn.Parameter(torch.zeros(width))
        self.position_bias = nn.Parameter(torch.zeros(width))
        self.segment_bias = nn.Parameter(torch.zeros(width))
        self.segments_2HK = nn.Parameter(torch.zeros(2, num_heads, self.head_width))
        """Of a key in the query's own segment, and of one in another."""

    def initialise_biases(self, std: float) -> None:
        for parameter in (self.content_bias, self.position_bias, self.segment_bias, self.segments_2HK):
            nn.init.normal_(parameter, std=std)

    def forward(self, x_ND: Tensor, plan: StreamPlan) -> Tensor:
        q_NHK, content = self._project(x_ND, plan)
        r_RHK = self._heads(self.relative(plan.waves_RD.to(x_ND.dtype)))
        dropout = self.dropout if self.training else 0.0
        mixed_NHK = attend(
            content,
            plan.layout,
            plan.layout,
            mask=plan.content_mask,
            bias=lambda group: self._content_bias(group, q_NHK, r_RHK, plan),
            scale=self.scale,
            dropout=dropout,
        )
        if plan.queries is not None:
            queries = plan.queries
            q_PHK = q_NHK[plan.num_tokens :]
            asked = Projected(q_PHK + self._heads(self.content_bias), content.k_SHK, content.v_SHK)
            mixed_PHK = attend(
                asked,
                queries.layout,
                plan.layout,
                mask=plan.query_seen,
                bias=lambda group: self._query_bias(group, q_PHK, r_RHK, plan),
                scale=self.scale,
                dropout=dropout,
            )
            mixed_NHK = torch.cat([mixed_NHK, mixed_PHK])
        out_ND: Tensor = self.out(mixed_NHK.flatten(1))
        return out_ND

    def weights(self, x_ND: Tensor, plan: StreamPlan) -> tuple[Tensor, ...]:
        """The content stream's weights, H x L x L for each sequence in order."""
        q_NHK, content = self._project(x_ND, plan)
        r_RHK = self._heads(self.relative(plan.waves_RD.to(x_ND.dtype)))
        return attention_weights(
            content,
            plan.layout,
            plan.layout,
            mask=plan.content_mask,
            bias=lambda group: self._content_bias(group, q_NHK, r_RHK, plan),
            scale=self.scale,
        )

    def _project(self, x_ND: Tensor, plan: StreamPlan) -> tuple[Tensor, Projected]:
        """The queries of both streams, without u; and the content stream's queries with u, keys and values."""
        q_ND, k_ND, v_ND = self.qkv(x_ND).chunk(3, 1)
        q_NHK = self._heads(q_ND)
        num_tokens = plan.num_tokens
        content = Projected(
            q_NHK[:num_tokens] + self._heads(self.content_bias),
            self._heads(k_ND[:num_tokens]),
            self._heads(v_ND[:num_tokens]),
        )
        return q_NHK, content

    def _heads(self, x: Tensor) -> Tensor:
        """... x D -> ... x H x K."""
        return x.view(*x.shape[:-1], self.num_heads, self.head_width)

    def _content_bias(self, group: Group, q_NHK: Tensor, r_RHK: Tensor, plan: StreamPlan) -> Tensor:
        """Position and segment terms of the content stream: cell i of a row is its sequence's i-th token."""
        q_GLHK = group.queries.cells(q_NHK)
        length = q_GLHK.shape[1]
        # The distances that occur in sequences of this length.
        middle = len(r_RHK) // 2
        near_RHK = r_RHK[middle - length : middle + length]
        by_distance_GHLR = self._position_scores(q_GLHK, near_RHK)
        positions_GHLS = _shift(by_distance_GHLR)
        query_segments_GL = plan.segments_N[group.queries.rows_GL]
        key_segments_GS = plan.segments_N[group.keys.rows_GL]
        segments_GHLS = self._segment_scores(q_GLHK, query_segments_GL, key_segments_GS)
        bias_GHLS: Tensor = (positions_GHLS + segments_GHLS) * self.scale
        return bias_GHLS

    def _query_bias(self, group: Group, q_PHK: Tensor, r_RHK: Tensor, plan: StreamPlan) -> Tensor:
        """The same terms of the query stream, whose rows are tokens at any positions."""
        assert plan.queries is not None
        q_GLHK = group.queries.cells(q_PHK)
        by_distance_GHLR = self._position_scores(q_GLHK, r_RHK)
        at_GL = plan.queries.positions_P[group.queries.rows_GL]
        rows_GS = group.keys.rows_GL
        steps_S = torch.arange(rows_GS.shape[1], device=rows_GS.device)
        # Row L - 1 - d of the waves is that of the distance d.
        middle = len(r_RHK) // 2
        row_GLS = middle - 1 - at_GL[:, :, None] + steps_S
        row_GHLS = row_GLS[:, None].expand(-1, self.num_heads, -1, -1)
        positions_GHLS = by_distance_GHLR.gather(3, row_GHLS)
        query_segments_GL = plan.queries.segments_P[group.queries.rows_GL]
        key_segments_GS = plan.segments_N[rows_GS]
        segments_GHLS = self._segment_scores(q_GLHK, query_segments_GL, key_segments_GS)
        bias_GHLS: Tensor = (positions_GHLS + segments_GHLS) * self.scale
        return bias_GHLS

    def _position_scores(self, q_GLHK: Tensor, r_RHK: Tensor) -> Tensor:
        """(q + v)' W_r r of all distances."""
        biased_GLHK = q_GLHK + self._heads(self.position_bias)
        return torch.einsum("glhk,rhk->ghlr", biased_GLHK, r_RHK)

    def _segment_scores(self, q_GLHK: Tensor, query_GL: Tensor, key_GS: Tensor) -> Tensor:
        """(q + w)' s of all keys, from the segments of the queries and the keys."""
        biased_GLHK = q_GLHK + self._heads(self.segment_bias)
        both_2GHL = torch.einsum("glhk,ehk->eghl", biased_GLHK, self.segments_2HK)
        same_GHL, other_GHL = both_2GHL.unbind(0)
        is_same_GLS = query_GL[:, :, None] == key_GS[:, None, :]
        return torch.where(is_same_GLS[:, None], same_GHL[..., None], other_GHL[..., None])


def _shift(by_distance_GHLR: Tensor) -> Tensor:
    """Scores of L queries by distance (L - 1 down to -L) -> their scores by key: G x H x L x L.

    Query i needs key j at column L - 1 - i + j. In memory that is i (2 L - 1) + L - 1 + j: a view of rows that are one
    shorter.
    """
    length = by_distance_GHLR.shape[2]
    row_length = 2 * length - 1
    first = length - 1
    end = first + length * row_length
    flat = by_distance_GHLR.flatten(2)[:, :, first:end]
    shorter_rows = flat.reshape(*by_distance_GHLR.shape[:3], row_length)
    return shorter_rows[..., :length]


class TwoStreamBlock(Block):
    """XLNet's block: attention and feed-forward layer over the rows of both streams, each followed by its norm."""

    attention: RelativeAttention  # type: ignore[assignment]

    def __init__(
        self,
        attention: RelativeAttention,
        ffn: nn.Module,
        *,
        width: int,
        norm_eps: float,
        dropout: float,
    ) -> None:
        super().__init__(
            attention,  # type: ignore[arg-type]
            ffn,
            attention_norm=nn.LayerNorm(width, eps=norm_eps),
            ffn_norm=nn.LayerNorm(width, eps=norm_eps),
            dropout=dropout,
        )

    def forward(self, x_ND: Tensor, plan: StreamPlan) -> Tensor:  # type: ignore[override]
        x_ND = plan.without_memory_gradient(x_ND)
        mixed_ND = self.attention(x_ND, plan)
        x_ND = x_ND + self.attention_slot(self.dropout(mixed_ND))
        return self._feed(self.attention_norm(x_ND))

    def weights(self, x_ND: Tensor, plan: StreamPlan) -> tuple[Tensor, ...]:  # type: ignore[override]
        """The content stream's attention, H x L x L for each sequence in order."""
        return self.attention.weights(x_ND, plan)
