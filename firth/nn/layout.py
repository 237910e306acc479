"""How packed batches fall into sequences that attention computes together: bounds in, groups out.

The b-th sequence of the queries belongs to the b-th sequence of the keys. A batch that is sorted by length is computed
where it lies, one run of equal lengths at a time. In other batches sequences of similar length are gathered into
groups, and only inside a group does padding exist. Where shapes must be static (CUDA in half precision under
torch.compile) and for a key-value cache, all sequences form one group. Groups are found once a batch and are then
shared by all layers.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from firth.nn.groups import Gathering, Group, Padded, Run, Side, Slots, shifted
from firth.tensors import Batch

GROUP_SLACK = 1.25
"""A group's longest sequence is at most this many times its shortest: more groups cost calls, fewer cost padding."""


@dataclass(frozen=True, eq=False)
class Layout:
    """How a pack's tokens fall into sequences, and with another pack's which are computed together."""

    bounds_B1: Tensor
    max_length: int
    num_tokens: int
    has_kernels: bool = False
    """Whether variable-length kernels run here, and shapes must not depend on the lengths."""
    offsets_B: Tensor | None = None
    """How many tokens of each sequence were read before these (`nn.kv_cache`); None for 0."""
    pairings: list[tuple["Layout | None", "Pairing"]] = field(default_factory=list)
    """What was found for each layout of keys; None is this one (a reference to itself would delay its release)."""
    prefixed: dict[int, tuple["Layout", Tensor]] = field(default_factory=dict)
    """By length: the layout of keys with a prefix, for all layers."""

    @property
    def num_sequences(self) -> int:
        return len(self.bounds_B1) - 1

    @property
    def is_one_group(self) -> bool:
        """Whether its sequences are padded all together."""
        return self.has_kernels

    def pairing(self, keys: "Layout") -> "Pairing":
        """The groups of sequences for queries of this pack and keys of another (or this); found once."""
        other = None if keys is self else keys
        for known, found in self.pairings:
            if known is other:
                return found
        find = _one_group if self.is_one_group or keys.is_one_group else _by_length
        found = find(self, keys)
        self.pairings.append((other, found))
        return found

    def with_prefix(self, length: int) -> tuple["Layout", Tensor]:
        """The layout of keys of which each sequence begins with the same `length` rows, and which row each key is.

        Rows count the prefix first, then the tokens of this pack.
        """
        if length not in self.prefixed:
            bounds_B1 = self.bounds_B1.long()
            numbers_B1 = torch.arange(len(bounds_B1), device=bounds_B1.device)
            key_bounds_B1 = bounds_B1 + numbers_B1 * length
            num_keys = self.num_tokens + self.num_sequences * length
            key_S = torch.arange(num_keys, device=bounds_B1.device)
            sequence_S = token_sequences(key_bounds_B1, num_keys)
            step_S = key_S - key_bounds_B1[sequence_S]
            token_S = bounds_B1[sequence_S] + step_S - length
            rows_S = torch.where(step_S < length, step_S, token_S + length)
            key_bounds_B1 = key_bounds_B1.to(self.bounds_B1.dtype)
            keys = Layout(key_bounds_B1, self.max_length + length, num_keys, self.has_kernels)
            self.prefixed[length] = (keys, rows_S)
        return self.prefixed[length]

    def all_cells(self) -> Side:
        """All sequences padded to `max_length`; shapes do not depend on their lengths."""
        steps_L = torch.arange(self.max_length, device=self.bounds_B1.device)
        bounds_B1 = self.bounds_B1.long()
        real_BL = steps_L < bounds_B1.diff()[:, None]
        steps_BL = steps_L * real_BL
        rows_BL = (bounds_B1[:-1, None] + steps_BL).clamp(max=self.num_tokens - 1)  # empty sequences end the pack
        return Padded(
            torch.arange(self.num_sequences, device=self.bounds_B1.device),
            rows_BL,
            shifted(steps_BL, self.offsets_B),
            real_BL,
            has_empty=True,
            offsets_G=self.offsets_B,
        )

    def one_by_one(self) -> Iterator[Side]:
        """Each sequence alone."""
        bounds = self.bounds_B1.tolist()
        for row, (start, end) in enumerate(pairwise(bounds)):
            offset_G = _offsets_of(self.offsets_B, slice(row, row + 1))
            yield Run(row, start, 1, end - start, self.bounds_B1.device, offset_G)


@dataclass(frozen=True, eq=False, kw_only=True)
class SlotLayout(Layout):
    """The layout of a key-value cache: `num_tokens` counts all cells of the slots, filled or not."""

    lengths_B: Tensor

    @property
    def is_one_group(self) -> bool:
        return True

    def all_cells(self) -> Side:
        capacity = self.num_tokens // self.num_sequences
        return Slots(self.num_sequences, capacity, self.lengths_B, self.max_length)

    def one_by_one(self) -> Iterator[Side]:
        starts = self.bounds_B1.tolist()
        lengths = self.lengths_B.tolist()
        # Bounds have one entry more: the end of the last slot.
        for row, (start, length) in enumerate(zip(starts, lengths, strict=False)):
            yield Run(row, start, 1, length, self.bounds_B1.device)


@dataclass(frozen=True, eq=False)
class Pairing:
    """The groups of queries and keys, and the way back from their cells to the pack."""

    groups: tuple[Group, ...]
    cells_N: Tensor | None = None
    """For each query token its cell among all groups' cells, end to end; None when these are in the pack's order."""
    gathered_queries: Gathering | None = None
    """The queries of all groups, where they are gathered."""
    gathered_keys: Gathering | None = None
    """The keys of all groups; the queries themselves in self-attention."""

    def query_cells(self, x_N: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """N x ... -> each group's G x L x ..., in this precision."""
        if self.gathered_queries is not None:
            return self.gathered_queries.cells(x_N, dtype)
        exact_N = x_N.to(dtype)
        return [group.queries.cells(exact_N) for group in self.groups]

    def key_cells(self, x_S: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """S x ... -> each group's G x S x ..., in this precision."""
        if self.gathered_keys is not None:
            return self.gathered_keys.cells(x_S, dtype)
        exact_S = x_S.to(dtype)
        return [group.keys.cells(exact_S) for group in self.groups]

    def restore(self, outputs: list[Tensor]) -> Tensor:
        """Each group's G x L x H x K -> N x H x K."""
        flat = [out_GLHK.flatten(0, 1) for out_GLHK in outputs]
        all_cells = flat[0]
        if len(flat) > 1:
            all_cells = torch.cat(flat)
        if self.gathered_queries is not None:
            return self.gathered_queries.tokens(all_cells)
        if self.cells_N is None:
            return all_cells
        return all_cells.index_select(0, self.cells_N)


def layout(batch: Batch, *, dtype: torch.dtype) -> Layout:
    """The layout that attention over this batch in this precision needs."""
    has_kernels = batch.bounds_B1.is_cuda and dtype in (torch.float16, torch.bfloat16)
    return Layout(batch.bounds_B1, batch.max_length, batch.num_tokens, has_kernels)


def token_sequences(bounds_B1: Tensor, num_tokens: int) -> Tensor:
    """For each token the number of its sequence; tokens behind the last bound get the number of sequences."""
    token_N = torch.arange(num_tokens, device=bounds_B1.device)
    # The first bound is 0, so it is counted for every token. torch.compile cannot search in a slice without it.
    return torch.searchsorted(bounds_B1.long(), token_N, right=True) - 1


def _offsets_of(offsets_B: Tensor | None, members: Tensor | slice) -> Tensor | None:
    """The offsets of some sequences; None where all begin at 0."""
    if offsets_B is None:
        return None
    return offsets_B[members]


def _one_group(queries: Layout, keys: Layout) -> Pairing:
    """All sequences in one group, without a look at their lengths."""
    if queries.num_tokens == queries.num_sequences * queries.max_length:
        # Nothing is padded.
        run = Run(0, 0, queries.num_sequences, queries.max_length, queries.bounds_B1.device, queries.offsets_B)
        return Pairing((_grouped(run, queries, keys),))
    group = _grouped(queries.all_cells(), queries, keys)
    bounds_B1 = queries.bounds_B1.long()
    token_N = torch.arange(queries.num_tokens, device=bounds_B1.device)
    sequence_N = token_sequences(bounds_B1, queries.num_tokens)
    cells_N = sequence_N * queries.max_length + token_N - bounds_B1[sequence_N]
    return Pairing((group,), cells_N)


def _grouped(cells: Side, queries: Layout, keys: Layout) -> Group:
    """All queries with all keys; in self-attention they are the same cells."""
    if queries is keys:
        return Group(cells, cells)
    return Group(cells, keys.all_cells())


def _by_length(queries: Layout, keys: Layout) -> Pairing:
    """Sequences of equal length where they lie, or gathered sequences of similar length."""
    bounds_q = queries.bounds_B1.long().cpu()
    lengths_q = bounds_q.diff()
    steps_q = lengths_q.diff()[:-1]  # the last one may be filler, of any length
    is_sorted = bool((steps_q >= 0).all())
    if queries is keys and is_sorted:
        runs = _runs(queries, lengths_q.tolist())
        return Pairing(tuple(runs))
    bounds_k = bounds_q
    if keys is not queries:
        bounds_k = keys.bounds_B1.long().cpu()
    groups = []
    query_cells = []
    key_cells = []
    for members in _similar_pairs(lengths_q, bounds_k.diff(), same=queries is keys):
        cells = _cells_of(bounds_q, members, queries.num_tokens)
        query_cells.append(cells)
        query_side = _gathered(cells, members, queries)
        key_side = query_side
        if keys is not queries:
            cells = _cells_of(bounds_k, members, keys.num_tokens)
            key_cells.append(cells)
            key_side = _gathered(cells, members, keys)
        groups.append(Group(query_side, key_side))
    gathered_queries = _gathering(query_cells, queries)
    gathered_keys = gathered_queries
    if keys is not queries:
        gathered_keys = _gathering(key_cells, keys)
    return Pairing(tuple(groups), gathered_queries=gathered_queries, gathered_keys=gathered_keys)


def _runs(layout: Layout, lengths: list[int]) -> Iterator[Group]:
    start = 0
    first = 0
    for length, same in groupby(lengths):
        count = len(list(same))
        offsets_G = _offsets_of(layout.offsets_B, slice(first, first + count))
        run = Run(first, start, count, length, layout.bounds_B1.device, offsets_G)
        start += count * length
        first += count
        if length:
            yield Group(run, run)


class _Cells(NamedTuple):
    """The cells of some sequences; all on the CPU."""

    rows_GL: Tensor
    """Which token is in each cell."""
    real_GL: Tensor
    """False for padded cells."""


def _cells_of(bounds_B1: Tensor, members: Tensor, num_tokens: int) -> _Cells:
    lengths_G = bounds_B1.diff()[members]
    longest = int(lengths_G.max())
    steps_L = torch.arange(max(1, longest))
    real_GL = steps_L < lengths_G[:, None]
    rows_GL = bounds_B1[members, None] + steps_L * real_GL
    # An empty sequence may begin behind the last token.
    return _Cells(rows_GL.clamp(max=num_tokens - 1), real_GL)


def _gathered(cells: _Cells, members: Tensor, layout: Layout) -> Padded:
    """The cells on the layout's device."""
    rows_GL, real_GL = cells
    device = layout.bounds_B1.device
    offsets_G = _offsets_of(layout.offsets_B, members.to(device))
    steps_GL = torch.arange(rows_GL.shape[1]) * real_GL
    all_real = bool(real_GL.all())
    has_empty = not bool(real_GL[:, 0].all())
    return Padded(
        members.to(device),
        rows_GL.to(device),
        shifted(steps_GL.to(device), offsets_G),
        None if all_real else real_GL.to(device),
        has_empty=has_empty,
        offsets_G=offsets_G,
    )


def _gathering(groups: list[_Cells], layout: Layout) -> Gathering:
    """The cells of all groups, end to end, on the layout's device."""
    device = layout.bounds_B1.device
    tokens_C = torch.cat([cells.rows_GL.flatten() for cells in groups])
    is_real_C = torch.cat([cells.real_GL.flatten() for cells in groups])
    real_cells = is_real_C.nonzero().flatten()
    cells_N = torch.full((layout.num_tokens,), -1)
    cells_N[tokens_C[real_cells]] = real_cells
    return Gathering(
        tokens_C.to(device),
        cells_N.clamp(min=0).to(device),
        padded_P=(~is_real_C).nonzero().flatten().to(device),
        absent_M=(cells_N < 0).nonzero().flatten().to(device),
        shapes=tuple((len(cells.rows_GL), cells.rows_GL.shape[1]) for cells in groups),
    )


def _similar_pairs(lengths_q: Tensor, lengths_k: Tensor, *, same: bool) -> Iterator[Tensor]:
    """Sequences whose queries are of similar length, and so are their keys; those without a query are left out."""
    present = lengths_q.nonzero().flatten()
    for place in _similar(lengths_q[present]):
        members = present[place]
        if same:
            yield members
        else:
            for inner in _similar(lengths_k[members]):
                yield members[inner]


def _similar(lengths: Tensor) -> Iterator[Tensor]:
    order = lengths.argsort(stable=True)
    values = lengths[order].tolist()
    first = 0
    while first < len(values):
        shortest = values[first]
        limit = max(shortest * GROUP_SLACK, shortest + 8)
        last = bisect_right(values, limit, lo=first)
        yield order[first:last]
        first = last
