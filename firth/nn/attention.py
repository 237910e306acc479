"""Attention over packed batches: tokens in, tokens out, and no token ever sees a neighbouring sequence.

Scaled dot-product attention softmax(QK' / sqrt(K) + bias) V (Vaswani et al. 2017, eq. 1). One function, `attend`, is
for self-attention, cross-attention over another packed batch, any mask, a bias per head and the key-value cache. The
b-th sequence of the queries attends to the b-th sequence of the keys. How it is computed depends on the machine:

- On CUDA in half precision one variable-length kernel takes the whole pack: our own for short self-attention, torch's
  for the rest. Attention dropout does not exist there.
- Elsewhere a batch that is sorted by length is computed where it lies, one run of equal lengths at a time. In other
  batches sequences of similar length are gathered into groups. Padding exists only here and only inside a group.
- With a mask or a bias on CUDA in half precision all sequences form one group padded to the batch's `max_length`, so
  that shapes stay static for torch.compile.

Groups are found once a batch and are then shared by all layers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from itertools import groupby, pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from firth.errors import Unsupported
from firth.tensors import Batch

OWN_KERNEL = torch.cuda.is_available() and find_spec("triton") is not None
"""Whether our kernel can run; it needs Triton, which CUDA builds of torch bring along."""
if OWN_KERNEL:
    from firth.nn.kernels import HEAD_WIDTHS, MAX_LENGTH, short_attention

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
    plain: dict[bool, Tensor] = field(default_factory=dict)
    """The biases without a mask, by `causal`: the same in all layers."""

    @property
    def is_square(self) -> bool:
        """Whether queries and keys are the same, whole sequences."""
        return self.queries is self.keys and self.keys.real_GL is None


Mask = Callable[[Group], Tensor]
"""A group -> booleans that broadcast to G x H x L x S: True where a query may see a key. A query that may see no key
takes zeros."""
Bias = Callable[[Group], Tensor]
"""A group -> numbers that broadcast to G x H x L x S, added to the scores after scaling. Gradients flow into them."""


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
    pairings: list[tuple["Layout", "Pairing"]] = field(default_factory=list)
    """What was found for each layout of keys."""

    @property
    def num_sequences(self) -> int:
        return len(self.bounds_B1) - 1

    @property
    def is_one_group(self) -> bool:
        """Whether its sequences are padded all together."""
        return self.has_kernels

    def groups(self, keys: "Layout") -> tuple[Group, ...]:
        """What masks and biases will be asked for when these tokens attend to those."""
        return self.pairing(keys).groups

    def pairing(self, keys: "Layout") -> "Pairing":
        """The groups of sequences for queries of this pack and keys of another (or this); found once."""
        for known, found in self.pairings:
            if known is keys:
                return found
        together = self.is_one_group or keys.is_one_group
        found = _one_group(self, keys) if together else _by_length(self, keys)
        self.pairings.append((keys, found))
        return found

    def all_cells(self) -> Side:
        """All sequences padded to `max_length`; shapes do not depend on their lengths."""
        steps_L = torch.arange(self.max_length, device=self.bounds_B1.device)
        bounds_B1 = self.bounds_B1.long()
        real_BL = steps_L < bounds_B1.diff()[:, None]
        steps_BL = steps_L * real_BL
        rows_BL = (bounds_B1[:-1, None] + steps_BL).clamp(max=self.num_tokens - 1)  # empty sequences end the pack
        sequences_B = torch.arange(self.num_sequences, device=self.bounds_B1.device)
        return Padded(sequences_B, rows_BL, _shifted(steps_BL, self.offsets_B), real_BL, has_empty=True)

    def one_by_one(self) -> Iterator[Side]:
        """Each sequence alone."""
        bounds = self.bounds_B1.tolist()
        for row, (start, end) in enumerate(pairwise(bounds)):
            offset_G = None if self.offsets_B is None else self.offsets_B[row : row + 1]
            yield Run(row, start, 1, end - start, self.bounds_B1.device, offset_G)


@dataclass(frozen=True, eq=False)
class SlotLayout(Layout):
    """The layout of a key-value cache: `num_tokens` counts all cells of the slots, filled or not."""

    lengths_B: Tensor = field(default_factory=lambda: torch.zeros(0))

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


@dataclass(frozen=True)
class Projected:
    """Queries of N tokens, and keys and values of S tokens (the same N in self-attention)."""

    q_NHK: Tensor
    k_SHK: Tensor
    v_SHK: Tensor
    fused_N3HK: Tensor | None = None
    """All three in one tensor, where one product made them: they are then read and gathered at once."""

    @classmethod
    def fused(cls, qkv_N3HK: Tensor) -> "Projected":
        q_NHK, k_NHK, v_NHK = qkv_N3HK.unbind(1)
        return cls(q_NHK, k_NHK, v_NHK, qkv_N3HK)

    def cells(self, group: Group) -> tuple[Tensor, Tensor, Tensor]:
        """G x H x L x K of queries, G x H x S x K of keys and of values."""
        if self.fused_N3HK is not None:
            q_GHLK, k_GHLK, v_GHLK = group.queries.cells(self.fused_N3HK).permute(2, 0, 3, 1, 4)
            return q_GHLK, k_GHLK, v_GHLK
        q_GHLK = group.queries.cells(self.q_NHK).transpose(1, 2)
        k_GHSK = group.keys.cells(self.k_SHK).transpose(1, 2)
        v_GHSK = group.keys.cells(self.v_SHK).transpose(1, 2)
        return q_GHLK, k_GHSK, v_GHSK


@dataclass(frozen=True)
class Source:
    """What a decoder reads: the states of another packed batch, one sequence for each of its own."""

    states_SD: Tensor
    layout: Layout


def layout(batch: Batch, *, dtype: torch.dtype) -> Layout:
    """The layout that attention over this batch in this precision needs."""
    has_kernels = batch.bounds_B1.is_cuda and dtype in (torch.float16, torch.bfloat16)
    return Layout(batch.bounds_B1, batch.max_length, batch.num_tokens, has_kernels)


def attend(
    projected: Projected,
    layout_q: Layout,
    layout_k: Layout,
    *,
    causal: bool = False,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """What every query takes from the keys of its sequence that it may see: N x H x K.

    A causal query sees keys up to its own position. `scale` is 1 / sqrt(K) unless given.
    """
    aligned = layout_q is layout_k or not causal  # kernels count causal positions from the end, we from the start
    if layout_q.has_kernels and layout_k.has_kernels and mask is None and bias is None and aligned:
        if dropout:
            raise Unsupported("Attention dropout is not available on the GPU in half precision; set it to 0.")
        return _attend_packed(projected, layout_q, layout_k, causal, scale)
    pairing = layout_q.pairing(layout_k)
    outputs = []
    for group in pairing.groups:
        q_GHLK, k_GHSK, v_GHSK = projected.cells(group)
        look = _look(group, causal, mask, bias)
        added = None if look.bias is None else look.bias.to(q_GHLK.dtype)
        out_GHLK = scaled_dot_product_attention(
            q_GHLK, k_GHSK, v_GHSK, added, dropout, is_causal=look.is_causal, scale=scale
        )
        if look.blind_GHL1 is not None:
            out_GHLK = out_GHLK.masked_fill(look.blind_GHL1, 0.0)
        outputs.append(out_GHLK.transpose(1, 2))
    return pairing.restore(outputs)


def attention_weights(
    projected: Projected,
    layout_q: Layout,
    layout_k: Layout,
    *,
    causal: bool = False,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """The weights themselves, H x L x S for each sequence in order (for looking at, not for speed)."""
    scale = projected.q_NHK.shape[-1] ** -0.5 if scale is None else scale
    weights = []
    for queries, keys in zip(layout_q.one_by_one(), layout_k.one_by_one(), strict=True):
        group = Group(queries, keys)
        q_1HLK = queries.cells(projected.q_NHK).transpose(1, 2).float()
        k_1HSK = keys.cells(projected.k_SHK).transpose(1, 2).float()
        scores_1HLS = q_1HLK @ k_1HSK.transpose(2, 3) * scale
        look = _look(group, causal, mask, bias)
        if look.bias is not None:
            scores_1HLS = scores_1HLS + look.bias
        weights_1HLS = scores_1HLS.softmax(-1)
        if look.blind_GHL1 is not None:
            weights_1HLS = weights_1HLS.masked_fill(look.blind_GHL1, 0.0)
        weights.append(weights_1HLS[0])
    return tuple(weights)


def prefix_mask(prefix_B: Tensor) -> Mask:
    """UniLM's mask (Dong et al. 2019): all tokens see the first `prefix_B` of their sequence, and others causally.

    A prefix as long as the sequence is attention in both directions; a prefix of 0 is causal attention.
    """

    def may_see(group: Group) -> Tensor:
        prefix_G = prefix_B[group.queries.sequences_G]
        in_prefix_G1S = group.keys.steps_GL[:, None, :] < prefix_G[:, None, None]
        return (in_prefix_G1S | _not_after(group))[:, None]

    return may_see


def computed(function: Callable[[Group], Tensor], layout_q: Layout, layout_k: Layout) -> Callable[[Group], Tensor]:
    """A mask or bias that was computed once for all layers that share it."""
    known = [(group, function(group)) for group in layout_q.groups(layout_k)]

    def look_up(wanted: Group) -> Tensor:
        return next(found for group, found in known if group is wanted)

    return look_up


@dataclass(frozen=True)
class _Look:
    """Which scores of a group count."""

    bias: Tensor | None = None
    """Broadcasts to G x H x L x S: a bias, and -inf where a query may not see a key; None for nothing."""
    is_causal: bool = False
    blind_GHL1: Tensor | None = None
    """True for queries that see no key at all; None when there are none."""


def _look(group: Group, causal: bool, mask: Mask | None, bias: Bias | None) -> _Look:
    if causal and mask is None and bias is None and group.is_square:
        return _Look(is_causal=True)
    seen_GHLS = _seen(group, causal, mask)
    blind_GHL1 = None
    if seen_GHLS is not None and (mask is not None or group.keys.has_empty):
        # softmax over no key at all is 0 / 0: such a query looks everywhere instead, and its output is dropped.
        blind_GHL1 = ~seen_GHLS.any(-1, keepdim=True)
        seen_GHLS = seen_GHLS | blind_GHL1
    if bias is not None:
        bias_GHLS = bias(group)
        hidden = None if seen_GHLS is None else ~seen_GHLS
        return _Look(bias_GHLS if hidden is None else bias_GHLS.masked_fill(hidden, -torch.inf), False, blind_GHL1)
    if seen_GHLS is None:
        return _Look()
    if mask is not None:
        return _Look(_as_bias(seen_GHLS), False, blind_GHL1)
    if causal not in group.plain:
        group.plain[causal] = _as_bias(seen_GHLS)
    return _Look(group.plain[causal], False, blind_GHL1)


def _seen(group: Group, causal: bool, mask: Mask | None) -> Tensor | None:
    """Booleans that broadcast to G x H x L x S; None where everything is seen."""
    rules = []
    if group.keys.real_GL is not None:
        rules.append(group.keys.real_GL[:, None, None, :])
    if causal:
        rules.append(_not_after(group)[:, None])
    if mask is not None:
        rules.append(mask(group))
    if not rules:
        return None
    seen = rules[0]
    for rule in rules[1:]:
        seen = seen & rule
    return seen


def _not_after(group: Group) -> Tensor:
    """G x L x S: whether a key's position is the query's own or an earlier one."""
    return group.keys.steps_GL[:, None, :] <= group.queries.steps_GL[:, :, None]


def _as_bias(seen: Tensor) -> Tensor:
    return torch.zeros(seen.shape, device=seen.device).masked_fill(~seen, -torch.inf)


def _shifted(steps_GL: Tensor, offsets_G: Tensor | None) -> Tensor:
    return steps_GL if offsets_G is None else steps_GL + offsets_G[:, None]


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
        cells = _gathered(bounds_q, members, queries)
        groups.append(Group(cells, cells if queries is keys else _gathered(bounds_k, members, keys)))
        real = cells.real_GL.cpu() if cells.real_GL is not None else torch.ones(cells.rows_GL.shape, dtype=torch.bool)
        cells_N[cells.rows_GL.cpu()[real]] = num_cells + real.flatten().nonzero().flatten()
        num_cells += real.numel()
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


def _gathered(bounds_B1: Tensor, members: Tensor, layout: Layout) -> Padded:
    """The cells of these sequences, on the layout's device; bounds are on the CPU."""
    lengths_G = bounds_B1.diff()[members]
    steps_L = torch.arange(max(1, int(lengths_G.max())))
    real_GL = steps_L < lengths_G[:, None]
    steps_GL = steps_L * real_GL
    rows_GL = (bounds_B1[members, None] + steps_GL).clamp(max=layout.num_tokens - 1)
    device = layout.bounds_B1.device
    offsets_G = None if layout.offsets_B is None else layout.offsets_B[members.to(device)]
    return Padded(
        members.to(device),
        rows_GL.to(device),
        _shifted(steps_GL.to(device), offsets_G),
        None if bool(real_GL.all()) else real_GL.to(device),
        has_empty=bool((lengths_G == 0).any()),
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


def _attend_packed(
    projected: Projected, layout_q: Layout, layout_k: Layout, causal: bool, scale: float | None
) -> Tensor:
    """The whole pack in one kernel."""
    fused = projected.fused_N3HK
    width = projected.q_NHK.shape[-1]
    is_plain = fused is not None and scale is None
    if OWN_KERNEL and is_plain and layout_q.max_length <= MAX_LENGTH and width in HEAD_WIDTHS:
        mixed_NHK: Tensor = short_attention(fused, layout_q.bounds_B1, causal)
        return mixed_NHK
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = projected.q_NHK, projected.k_SHK, projected.v_SHK
    options: dict[str, float | tuple[int, int]] = {"window_size": (-1, 0)} if causal else {}
    if scale is not None:
        options["scale"] = scale
    if width % 8:  # the kernel wants head widths that are multiples of 8
        q, k, v = (pad(x, (0, -width % 8)) for x in (q, k, v))
        options.setdefault("scale", width**-0.5)
    bounds = layout_q.bounds_B1, layout_k.bounds_B1
    sizes = layout_q.max_length, layout_k.max_length
    out_NHK: Tensor = varlen_attn(q, k, v, *bounds, *sizes, **options)  # type: ignore[assignment,arg-type]
    return out_NHK[..., :width]
