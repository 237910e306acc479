"""DeBERTa's attention (He et al. 2021, section 3): content and distance have vectors of their own.

    score(i, j) = (q_i' k_j + q_i' kr(i - j) + k_j' qr(i - j)) / sqrt(f K)

where kr and qr are keys and queries of the distance i - j, and f counts the terms. Small distances have an embedding
each; larger ones share buckets that grow logarithmically (version 2). `attend` takes the first term as its product and
the others as its bias.

Suffix besides those of `firth.tensors`: R buckets of distances.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from firth.nn.attention import Fused, attend, attention_weights
from firth.nn.attention_layers import SelfAttention
from firth.nn.blocks import Block
from firth.nn.dropout import Dropout
from firth.nn.groups import Group
from firth.nn.layout import Layout


@dataclass(frozen=True, eq=False)
class Distances:
    """The embeddings of the distances that occur in a batch; the same in all layers."""

    embeddings_RD: Tensor
    first_bucket: int
    """The bucket of row 0."""
    num_buckets: int
    """Half of all buckets; 0 where every distance has its own embedding."""
    max_distance: int

    def rows(self, group: Group) -> Tensor:
        """1 x L x S: for each query and key, the row of their distance."""
        # DeBERTa counts from key to query.
        distances_GLS = -group.distances()
        buckets_GLS = bucket(distances_GLS, self.num_buckets, self.max_distance)
        # Only padded cells, which do not count, have other rows.
        return (buckets_GLS - self.first_bucket).clamp(0, len(self.embeddings_RD) - 1)


def bucket(distances: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """Each distance's bucket: below half of `num_buckets` the distance itself, above it logarithmic."""
    if not num_buckets:
        return distances
    exact = num_buckets // 2
    sizes = distances.abs().clamp(min=exact)
    # In single precision throughout: the ceiling of the last step must be that of the published models.
    last_step = torch.tensor((max_distance - 1) / exact, device=distances.device).log()
    steps = torch.log(sizes / exact) / last_step * (exact - 1)
    shared = (torch.ceil(steps) + exact) * distances.sign()
    return torch.where(distances.abs() <= exact, distances, shared.long())


class DistanceEmbeddings(nn.Module):
    """The embeddings of distances, which all layers share."""

    def __init__(self, width: int, *, num_buckets: int, max_distance: int, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.span = num_buckets or max_distance
        self.table = nn.Embedding(2 * self.span, width)
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, longest: int) -> Distances:
        """Those that occur in sequences of at most this length."""
        farthest = torch.tensor(longest - 1)
        reach = int(bucket(farthest, self.num_buckets, self.max_distance))
        # The table has a row for each bucket from -span to span - 1; what is beyond shares the last one.
        first = max(-reach, -self.span)
        last = min(reach, self.span - 1)
        first_row = first + self.span
        end_row = last + self.span + 1
        rows_RD = self.table.weight[first_row:end_row]
        embeddings_RD = self.dropout(self.norm(rows_RD))
        return Distances(embeddings_RD, first, self.num_buckets, self.max_distance)


class DisentangledAttention(SelfAttention):
    """Self-attention by content and by distance."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        to_position: bool,
        from_position: bool,
        shares_projections: bool,
        dropout: float = 0.0,
    ) -> None:
        """`to_position` and `from_position` say which of the two terms with distances there are."""
        num_terms = 1 + to_position + from_position
        head_width = width // num_heads
        super().__init__(width, num_heads, dropout=dropout, scale=(head_width * num_terms) ** -0.5)
        self.to_position = to_position
        self.from_position = from_position
        self.shares_projections = shares_projections
        self.position_key: nn.Linear | None = None
        self.position_query: nn.Linear | None = None
        if to_position and not shares_projections:
            self.position_key = nn.Linear(width, width)
        if from_position and not shares_projections:
            self.position_query = nn.Linear(width, width)

    def forward(self, x_ND: Tensor, layout: Layout, distances: Distances) -> Tensor:  # type: ignore[override]
        projected = self._project(x_ND)
        bias = self._bias(projected, distances)
        dropout = self.dropout if self.training else 0.0
        mixed_NHK = attend(projected, layout, layout, bias=bias, scale=self.scale, dropout=dropout)
        out_ND: Tensor = self.out(mixed_NHK.flatten(1))
        return out_ND

    def weights(self, x_ND: Tensor, layout: Layout, distances: Distances) -> tuple[Tensor, ...]:  # type: ignore[override]
        projected = self._project(x_ND)
        return attention_weights(projected, layout, layout, bias=self._bias(projected, distances), scale=self.scale)

    def _bias(self, projected: Fused, distances: Distances) -> "PositionTerms":
        query_RHK, key_RHK = self._project_distances(distances.embeddings_RD)
        assert self.scale is not None
        return PositionTerms(projected, distances, query_RHK, key_RHK, self.scale)

    def _project_distances(self, embeddings_RD: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The queries and the keys of distances; None for a term that does not exist."""
        query_RHK = None
        key_RHK = None
        if self.shares_projections:
            both: Tensor = self.qkv(embeddings_RD)
            both_R3HK = both.view(len(embeddings_RD), 3, self.num_heads, -1)
            query_RHK, key_RHK, _ = both_R3HK.unbind(1)
        if self.position_query is not None:
            query_RHK = self._heads(self.position_query(embeddings_RD))
        if self.position_key is not None:
            key_RHK = self._heads(self.position_key(embeddings_RD))
        return query_RHK if self.from_position else None, key_RHK if self.to_position else None

    def _heads(self, x_RD: Tensor) -> Tensor:
        return x_RD.view(len(x_RD), self.num_heads, -1)


@dataclass(frozen=True, eq=False)
class PositionTerms:
    """The terms of the scores that depend on distances: a bias for `attend`."""

    projected: Fused
    distances: Distances
    query_RHK: Tensor | None
    key_RHK: Tensor | None
    scale: float

    def __call__(self, group: Group) -> Tensor:
        parts = self.projected.apart()
        q_GHLK = group.queries.cells(parts.q_NHK).transpose(1, 2)
        k_GHSK = group.keys.cells(parts.k_SHK).transpose(1, 2)
        rows_GHLS = self.distances.rows(group)[:, None]
        num_sequences, num_heads, length, _ = q_GHLK.shape
        size = (num_sequences, num_heads, length, k_GHSK.shape[2])
        bias_GHLS = q_GHLK.new_zeros(())
        if self.key_RHK is not None:
            by_row_GHLR = q_GHLK @ self.key_RHK.permute(1, 2, 0)
            bias_GHLS = bias_GHLS + by_row_GHLR.gather(3, rows_GHLS.expand(size))
        if self.query_RHK is not None:
            by_row_GHSR = k_GHSK @ self.query_RHK.permute(1, 2, 0)
            # The distance is still counted from the key to the query, so rows are looked up transposed.
            rows_GHSL = rows_GHLS.transpose(2, 3).expand(num_sequences, num_heads, size[3], length)
            bias_GHLS = bias_GHLS + by_row_GHSR.gather(3, rows_GHSL).transpose(2, 3)
        return (bias_GHLS * self.scale).expand(size)


class DisentangledBlock(Block):
    """A post-norm Transformer block whose attention reads distances."""

    attention: DisentangledAttention

    def __init__(
        self,
        attention: DisentangledAttention,
        ffn: nn.Module,
        *,
        width: int,
        norm_eps: float,
        dropout: float,
    ) -> None:
        super().__init__(
            attention,
            ffn,
            attention_norm=nn.LayerNorm(width, eps=norm_eps),
            ffn_norm=nn.LayerNorm(width, eps=norm_eps),
            dropout=dropout,
        )

    def forward(self, x_ND: Tensor, layout: Layout, distances: Distances) -> Tensor:  # type: ignore[override]
        mixed_ND = self.attention(x_ND, layout, distances)
        x_ND = x_ND + self.attention_slot(self.dropout(mixed_ND))
        return self._feed(self.attention_norm(x_ND))

    def weights(self, x_ND: Tensor, layout: Layout, distances: Distances) -> tuple[Tensor, ...]:  # type: ignore[override]
        return self.attention.weights(x_ND, layout, distances)
