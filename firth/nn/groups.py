"""Groups of sequences that attention computes together: cells of a padded matrix, and which scores of them count.

In: where the sequences lie in a pack or a cache. Out: for each cell its token, its position, and whether it is padding.
"""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx


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
        return shifted(steps_L.expand(self.count, self.length), self.offsets_G)

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
        gathered = x.index_select(0, self.rows_GL.flatten())
        return gathered.view(*self.rows_GL.shape, *x.shape[1:])


@dataclass(frozen=True, eq=False)
class Gathering:
    """The cells of several `Padded`, end to end: one gather for all of them, and one for all their gradients.

    Each token is in at most one cell that is not padded, and what is read from padded cells must not count. So the
    gradient is a gather, too. That of one `index_select` for each group would be a sum into zeros of the size of the
    whole pack, once for each group.
    """

    tokens_C: Tensor
    """Which token is in each cell; a padded cell repeats its sequence's first token."""
    cells_N: Tensor
    """For each token its cell; any cell if it has none."""
    padded_P: Tensor
    """The padded cells."""
    absent_M: Tensor
    """The tokens without a cell: keys of a sequence without queries."""
    shapes: tuple[tuple[int, int], ...]
    """G and L of each group."""

    def cells(self, x_N: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """N x ... -> each group's G x L x ..."""
        gathered_C = _exchange(x_N, self.tokens_C, self.cells_N, self.absent_M).to(dtype)
        sizes = [count * length for count, length in self.shapes]
        parts = torch.split(gathered_C, sizes)
        cells = []
        for part, shape in zip(parts, self.shapes, strict=True):
            cells.append(part.view(*shape, *x_N.shape[1:]))
        return cells

    def tokens(self, x_C: Tensor) -> Tensor:
        """What all cells hold, end to end -> what belongs to each token."""
        return _exchange(x_C, self.cells_N, self.tokens_C, self.padded_P)


def _exchange(x: Tensor, places: Tensor, back: Tensor, unread: Tensor) -> Tensor:
    """x[places]; its gradient is gradient[back], with zeros for the rows that no place reads."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return x.index_select(0, places)
    exchanged: Tensor = _Exchange.apply(x, places, back, unread)  # type: ignore[no-untyped-call]
    return exchanged


class _ExchangeContext(FunctionCtx):
    """What the backward pass needs of the forward one."""

    saved_tensors: tuple[Tensor, Tensor]


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _ExchangeContext, x: Tensor, places: Tensor, back: Tensor, unread: Tensor) -> Tensor:
        ctx.save_for_backward(back, unread)
        return x.index_select(0, places)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: _ExchangeContext, gradient: Tensor
    ) -> tuple[Tensor, None, None, None]:
        back, unread = ctx.saved_tensors
        returned = gradient.index_select(0, back)
        if len(unread):
            returned.index_fill_(0, unread, 0.0)
        return returned, None, None, None


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
        first_cell_G1 = self.sequences_G[:, None] * self.capacity
        return first_cell_G1 + self.steps_GL * self.real_GL

    @cached_property
    def steps_GL(self) -> Tensor:
        steps_L = torch.arange(self.longest, device=self.lengths_B.device)
        return steps_L.expand(self.count, self.longest)

    @cached_property
    def real_GL(self) -> Tensor:
        return self.steps_GL < self.lengths_B[:, None]

    def cells(self, x: Tensor) -> Tensor:
        slots = x.view(self.count, self.capacity, *x.shape[1:])
        return slots[:, : self.longest]


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
        key_steps = self.keys.steps_GL[:, None, :]
        query_steps = self.queries.steps_GL[:, :, None]
        return key_steps <= query_steps

    def distances(self) -> Tensor:
        """1 x L x S, or G x L x S where a cache shifts queries: a key's position minus the query's.

        Padded cells count on.
        """
        key_steps = _all_steps(self.keys)[:, None, :]
        query_steps = _all_steps(self.queries)[:, :, None]
        return key_steps - query_steps


@dataclass(frozen=True)
class ScoreMask:
    """Which scores of a group count."""

    bias: Tensor | None = None
    """Broadcasts to G x H x L x S: a bias, and -inf where a query may not see a key; None for nothing."""
    is_causal: bool = False
    blind_GHL1: Tensor | None = None
    """True for queries that see no key at all; None when there are none."""


def shifted(steps_GL: Tensor, offsets_G: Tensor | None) -> Tensor:
    """Steps counted from each sequence's first cell -> positions; without offsets they are the same."""
    if offsets_G is None:
        return steps_GL
    return steps_GL + offsets_G[:, None]


def _all_steps(side: Side) -> Tensor:
    """The positions of a side's cells: one row for all sequences where these begin at 0."""
    steps_1L = torch.arange(side.length, device=side.sequences_G.device)[None]
    return shifted(steps_1L, side.offsets_G)
