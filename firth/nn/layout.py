"""How packed batches fall into sequences that attention computes together: bounds in, groups out.

The b-th sequence of the queries belongs to the b-th sequence of the keys. A batch that is sorted by length is computed
where it lies, one run of equal lengths at a time. In other batches sequences of similar length are gathered into
groups, and only inside a group does padding exist. Where shapes must be static (CUDA in half precision under
torch.compile) and for a key-value cache, all sequences form one group. Groups are found once a batch and are then
shared by all layers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise

import torch
from torch import Tensor

from firth.tensors import Batch

GROUP_SLACK = 1.25
"""A group's longest sequence is at most this many times its shortest: more groups cost calls, fewer cost padding."""


@dataclass(frozen=True, eq=False)
class Run:
    """Sequences of one length that follow each other in the pack: their cells are a view of it."""

    first: int
    """The first of these sequences in the batch."""
    start: int
    """Its first token."""
    count: int
    length: int
    device: torch.device
    offsets_G: Tensor | None = None
    """Where each sequence begins to count its positions; None for 0."""

    real_GL = None
    """Nothing is padded."""
    has_empty = False

    @cached_property
    def sequences_G(self) -> Tensor:
        """Which sequence of the batch each row is."""
        return self.first + torch.arange(self.count, device=self.device)

    @cached_property
    def rows_GL(self) -> Tensor:
        """Which token of the pack is in each cell."""
        rows = self.start + torch.arange(self.count * self.length, device=self.device)
        return rows.view(self.count, self.length)

    @cached_property
    def steps_GL(self) -> Tensor:
        """Each cell's position in its sequence."""
        steps_L = torch.arange(self.length, device=self.device)
        return _shifted(steps_L.expand(self.count, self.length), self.offsets_G)

    def cells(self, x: Tensor) -> Tensor:
        """N x ... -> G x L x ..."""
        rows = x[self.start : self.start + self.count * self.length]
        return rows.view(self.count, self.length, *x.shape[1:])


@dataclass(frozen=True, eq=False)
class Padded:
    """Sequences of similar length, gathered into the rows of a padded matrix."""

    sequences_G: Tensor
    """Which sequence of the batch each row is."""
    rows_GL: Tensor
    """Which token of the pack is in each cell; a padded cell repeats its sequence's first token."""
    steps_GL: Tensor
    """Each cell's position in its sequence; a padded cell has its sequence's first."""
    real_GL: Tensor | None
    """False for padded cells; None when nothing is padded."""
    has_empty: bool = False
    """Whether a sequence may have no token at all."""
    offsets_G: Tensor | None = None
    """Where each sequence begins to count its positions; None for 0."""

    @property
    def length(self) -> int:
        return self.rows_GL.shape[1]

    def cells(self, x: Tensor) -> Tensor:
        """N x ... -> G x L x ..."""
        return x.index_select(0, self.rows_GL.flatten()).view(*self.rows_GL.shape, *x.shape[1:])


@dataclass(frozen=True, eq=False)
class Slots:
    """Sequences that lie in slots of a fixed size, each filled from its start: a key-value cache."""

    count: int
    capacity: int
    lengths_B: Tensor
    longest: int
    has_empty = False
    offsets_G = None

    @property
    def length(self) -> int:
        return self.longest

    @cached_property
    def sequences_G(self) -> Tensor:
        return torch.arange(self.count, device=self.lengths_B.device)

    @cached_property
    def rows_GL(self) -> Tensor:
        return self.sequences_G[:, None] * self.capacity + self.steps_GL * self.real_GL

    @cached_property
    def steps_GL(self) -> Tensor:
        return torch.arange(self.longest, device=self.lengths_B.device).expand(self.count, self.longest)

    @cached_property
    def real_GL(self) -> Tensor:
        return self.steps_GL < self.lengths_B[:, None]

    def cells(self, x: Tensor) -> Tensor:
        return x.view(self.count, self.capacity, *x.shape[1:])[:, : self.longest]


Side = Run | Padded | Slots


@dataclass(frozen=True, eq=False)
class Group:
    """Sequences that are computed together: G sequences with L queries and S keys each, where not padded.

    Masks and biases are functions of it. `rows_GL` of a side leads to whatever a caller knows of each token, and
    `steps_GL` are the positions inside the sequences.
    """

    queries: Side
    keys: Side
    plain: dict[bool, "ScoreMask"] = field(default_factory=dict)
    """What counts without a mask and a bias, by `causal`: the same in all layers."""
    windows: dict[tuple[bool, int], "ScoreMask"] = field(default_factory=dict)
    """The same for attention to near keys, by `causal` and the window."""

    @property
    def is_square(self) -> bool:
        """Whether queries and keys are the same, whole sequences."""
        return self.queries is self.keys and self.keys.real_GL is None

    def not_after(self) -> Tensor:
        """G x L x S: whether a key's position is the query's own or an earlier one."""
        return self.keys.steps_GL[:, None, :] <= self.queries.steps_GL[:, :, None]

    def distances(self) -> Tensor:
        """1 x L x S, or G x L x S where a cache shifts queries: a key's position minus the query's.

        Padded cells count on.
        """
        return _all_steps(self.keys)[:, None, :] - _all_steps(self.queries)[:, :, None]


@dataclass(frozen=True)
class ScoreMask:
    """Which scores of a group count."""

    bias: Tensor | None = None
    """Broadcasts to G x H x L x S: a bias, and -inf where a query may not see a key; None for nothing."""
    is_causal: bool = False
    blind_GHL1: Tensor | None = None
    """True for queries that see no key at all; None when there are none."""


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
        together = self.is_one_group or keys.is_one_group
        found = _one_group(self, keys) if together else _by_length(self, keys)
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
            sequence_S = torch.searchsorted(key_bounds_B1[1:], key_S, right=True)
            step_S = key_S - key_bounds_B1[sequence_S]
            token_S = bounds_B1[sequence_S] + step_S - length
            rows_S = torch.where(step_S < length, step_S, token_S + length)
            keys = Layout(key_bounds_B1.to(self.bounds_B1.dtype), self.max_length + length, num_keys, self.has_kernels)
            self.prefixed[length] = (keys, rows_S)
        return self.prefixed[length]

    def all_cells(self) -> Side:
        """All sequences padded to `max_length`; shapes do not depend on their lengths."""
        steps_L = torch.arange(self.max_length, device=self.bounds_B1.device)
        bounds_B1 = self.bounds_B1.long()
        real_BL = steps_L < bounds_B1.diff()[:, None]
        steps_BL = steps_L * real_BL
        rows_BL = (bounds_B1[:-1, None] + steps_BL).clamp(max=self.num_tokens - 1)  # empty sequences end the pack
        sequences_B = torch.arange(self.num_sequences, device=self.bounds_B1.device)
        return Padded(
            sequences_B, rows_BL, _shifted(steps_BL, self.offsets_B), real_BL, has_empty=True, offsets_G=self.offsets_B
        )

    def one_by_one(self) -> Iterator[Side]:
        """Each sequence alone."""
        bounds = self.bounds_B1.tolist()
        for row, (start, end) in enumerate(pairwise(bounds)):
            offset_G = None if self.offsets_B is None else self.offsets_B[row : row + 1]
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
        starts, lengths = self.bounds_B1.tolist(), self.lengths_B.tolist()
        for row, (start, length) in enumerate(zip(starts, lengths, strict=False)):
            yield Run(row, start, 1, length, self.bounds_B1.device)


@dataclass(frozen=True, eq=False)
class Pairing:
    """The groups of queries and keys, and the way back from their cells to the pack."""

    groups: tuple[Group, ...]
    cells_N: Tensor | None = None
    """For each query token its cell among all groups' cells, end to end; None when these are in the pack's order."""

    def restore(self, outputs: list[Tensor]) -> Tensor:
        """Each group's G x L x H x K -> N x H x K."""
        flat = [out_GLHK.flatten(0, 1) for out_GLHK in outputs]
        all_cells = torch.cat(flat) if len(flat) > 1 else flat[0]
        return all_cells if self.cells_N is None else all_cells.index_select(0, self.cells_N)


def layout(batch: Batch, *, dtype: torch.dtype) -> Layout:
    """The layout that attention over this batch in this precision needs."""
    has_kernels = batch.bounds_B1.is_cuda and dtype in (torch.float16, torch.bfloat16)
    return Layout(batch.bounds_B1, batch.max_length, batch.num_tokens, has_kernels)


def _shifted(steps_GL: Tensor, offsets_G: Tensor | None) -> Tensor:
    return steps_GL if offsets_G is None else steps_GL + offsets_G[:, None]


def _all_steps(side: Side) -> Tensor:
    """The positions of a side's cells: one row for all sequences where these begin at 0."""
    steps_1L = torch.arange(side.length, device=side.sequences_G.device)[None]
    return _shifted(steps_1L, side.offsets_G)


def _one_group(queries: Layout, keys: Layout) -> Pairing:
    """All sequences in one group, without a look at their lengths."""
    if queries.num_tokens == queries.num_sequences * queries.max_length:
        same = Run(0, 0, queries.num_sequences, queries.max_length, queries.bounds_B1.device, queries.offsets_B)
        return Pairing((Group(same, same if queries is keys else keys.all_cells()),))
    cells = queries.all_cells()
    group = Group(cells, cells if queries is keys else keys.all_cells())
    bounds_B1 = queries.bounds_B1.long()
    token_N = torch.arange(queries.num_tokens, device=bounds_B1.device)
    sequence_N = torch.searchsorted(bounds_B1[1:], token_N, right=True)
    cells_N = sequence_N * queries.max_length + token_N - bounds_B1[sequence_N]
    return Pairing((group,), cells_N)


def _by_length(queries: Layout, keys: Layout) -> Pairing:
    """Sequences of equal length where they lie, or gathered sequences of similar length."""
    bounds_q = queries.bounds_B1.long().cpu()
    lengths_q = bounds_q.diff()
    is_sorted = bool((lengths_q.diff()[:-1] >= 0).all())  # the last one may be filler, of any length
    if queries is keys and is_sorted:
        return Pairing(tuple(_runs(queries, lengths_q.tolist())))
    bounds_k = bounds_q if keys is queries else keys.bounds_B1.long().cpu()
    groups = []
    cells_N = torch.empty(queries.num_tokens, dtype=torch.long)
    num_cells = 0
    for members in _similar_pairs(lengths_q, bounds_k.diff(), same=queries is keys):
        rows_GL, real_GL = _rows(bounds_q, members, queries.num_tokens)
        cells_N[rows_GL[real_GL]] = num_cells + real_GL.flatten().nonzero().flatten()
        num_cells += rows_GL.numel()
        cells = _gathered(rows_GL, real_GL, members, queries)
        if queries is keys:
            groups.append(Group(cells, cells))
        else:
            groups.append(Group(cells, _gathered(*_rows(bounds_k, members, keys.num_tokens), members, keys)))
    return Pairing(tuple(groups), cells_N.to(queries.bounds_B1.device))


def _runs(layout: Layout, lengths: list[int]) -> Iterator[Group]:
    start = 0
    first = 0
    for length, same in groupby(lengths):
        count = len(list(same))
        offsets_G = None if layout.offsets_B is None else layout.offsets_B[first : first + count]
        run = Run(first, start, count, length, layout.bounds_B1.device, offsets_G)
        start += count * length
        first += count
        if length:
            yield Group(run, run)


def _rows(bounds_B1: Tensor, members: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Which token is in each cell of these sequences, and which cells are not padded; all on the CPU."""
    lengths_G = bounds_B1.diff()[members]
    steps_L = torch.arange(max(1, int(lengths_G.max())))
    real_GL = steps_L < lengths_G[:, None]
    rows_GL = bounds_B1[members, None] + steps_L * real_GL
    return rows_GL.clamp(max=num_tokens - 1), real_GL  # an empty sequence may begin behind the last token


def _gathered(rows_GL: Tensor, real_GL: Tensor, members: Tensor, layout: Layout) -> Padded:
    """The cells on the layout's device."""
    device = layout.bounds_B1.device
    offsets_G = None if layout.offsets_B is None else layout.offsets_B[members.to(device)]
    steps_GL = torch.arange(rows_GL.shape[1]) * real_GL
    return Padded(
        members.to(device),
        rows_GL.to(device),
        _shifted(steps_GL.to(device), offsets_G),
        None if bool(real_GL.all()) else real_GL.to(device),
        has_empty=not bool(real_GL[:, 0].all()),
        offsets_G=offsets_G,
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
        limit = max(values[first] * GROUP_SLACK, values[first] + 8)
        last = next((i for i in range(first, len(values)) if values[i] > limit), len(values))
        yield order[first:last]
        first = last
