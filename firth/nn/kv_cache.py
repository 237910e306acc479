"""The key-value cache: a decoder that goes on with a text computes only its new tokens.

In: the new tokens of B sequences. Out: for each layer, keys and values of all tokens so far with their layout, which is
what `nn.attention.attend` takes. Keys and values of self-attention lie in B slots of `capacity` tokens. Those of
cross-attention are computed in the first pass and stay packed as the source is: sequences that go on from the same one
(the beams of a text) read one source together.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from firth.errors import BadInput
from firth.nn.attention import Fused, Projected, Source
from firth.nn.layout import Layout, SlotLayout, token_sequences


class KeyValueCache:
    """Keys and values of all layers for B sequences of at most `capacity` tokens."""

    def __init__(self, num_layers: int, num_sequences: int, capacity: int) -> None:
        self.num_layers = num_layers
        self.capacity = capacity
        self.lengths_B = torch.zeros(num_sequences, dtype=torch.long)
        """Tokens of each sequence that were read."""
        self.slots: dict[int, tuple[Tensor, Tensor]] = {}
        """By layer: keys and values of self-attention, each B * capacity x H x K."""
        self.source: dict[int, tuple[Tensor, Tensor]] = {}
        """By layer: keys and values of cross-attention, each S x H x K."""
        self.source_layout: Layout | None = None
        self.owners: list[int] = list(range(num_sequences))
        """For each sequence the number of the source that it reads."""
        self.readers: Layout | None = None
        """Of the new tokens, one a sequence, by the source they read; None where each source has its one sequence."""

    def read(self, layout: Layout) -> tuple[Layout, list["LayerCache"]]:
        """The layout of new tokens at their positions, and a cache for each layer, for one pass over these tokens.

        Afterwards the new tokens count as read.
        """
        device = layout.bounds_B1.device
        before_B = self.lengths_B.to(device)
        bounds_B1 = layout.bounds_B1.long()
        lengths_B = before_B + bounds_B1.diff()
        longest = int(lengths_B.max())
        if longest > self.capacity:
            raise BadInput(f"A sequence of {longest} tokens does not fit into a cache for {self.capacity}.")
        self.lengths_B = lengths_B
        token_N = torch.arange(layout.num_tokens, device=device)
        sequence_N = token_sequences(bounds_B1, layout.num_tokens)
        step_N = before_B[sequence_N] + token_N - bounds_B1[sequence_N]
        cells_N = sequence_N * self.capacity + step_N
        if not self.slots:
            # The first pass: there are no other keys than the new ones.
            return layout, self._layer_caches(cells_N, layout)
        new = Layout(layout.bounds_B1, layout.max_length, layout.num_tokens, layout.has_kernels, before_B)
        num_sequences = len(before_B)
        slot_bounds_B1 = torch.arange(num_sequences + 1, device=device) * self.capacity
        num_cells = num_sequences * self.capacity
        slots = SlotLayout(slot_bounds_B1, longest, num_cells, lengths_B=self.lengths_B)
        return new, self._layer_caches(cells_N, slots)

    def _layer_caches(self, cells_N: Tensor, layout_k: Layout) -> list["LayerCache"]:
        return [LayerCache(self, layer, cells_N, layout_k) for layer in range(self.num_layers)]

    def keep(self, rows: Tensor) -> None:
        """Drops all sequences but these, which may be repeated and reordered (as beam search does)."""
        num_before = len(self.lengths_B)
        rows = rows.to(self.lengths_B.device)
        filled = int(self.lengths_B.max())
        places = torch.arange(len(rows), device=rows.device)
        moved = (rows != places).nonzero().flatten()
        self.lengths_B = self.lengths_B[rows]
        if len(moved):
            for layer, (k_SHK, v_SHK) in self.slots.items():
                # C is the capacity of a slot.
                k_BCHK = k_SHK.view(num_before, self.capacity, *k_SHK.shape[1:])
                v_BCHK = v_SHK.view(num_before, self.capacity, *v_SHK.shape[1:])
                new_k_SHK = _moved(k_BCHK, rows, moved, filled)
                new_v_SHK = _moved(v_BCHK, rows, moved, filled)
                self.slots[layer] = (new_k_SHK, new_v_SHK)
        elif len(rows) < num_before:
            num_cells = len(rows) * self.capacity
            for layer, (k_SHK, v_SHK) in self.slots.items():
                self.slots[layer] = (k_SHK[:num_cells], v_SHK[:num_cells])
        if self.source_layout is not None:
            self._keep_sources(rows.tolist(), self.source_layout)

    def _keep_sources(self, rows: list[int], layout: Layout) -> None:
        """Finds out which sequences read which source; only a new order of the sources moves these."""
        owners = [self.owners[row] for row in rows]
        if owners == self.owners:
            return
        self.readers = None
        if owners != sorted(owners):
            self._copy_sources(owners, layout)
            self.owners = list(range(len(rows)))
            return
        self.owners = owners
        if owners != list(range(layout.num_sequences)):
            counts = [0] * layout.num_sequences
            for owner in owners:
                counts[owner] += 1
            bounds = [0, *accumulate(counts)]
            bounds_B1 = torch.tensor(bounds, dtype=torch.int32, device=layout.bounds_B1.device)
            self.readers = Layout(bounds_B1, max(counts), len(owners), layout.has_kernels)

    def _copy_sources(self, owners: list[int], layout: Layout) -> None:
        """A source for each sequence, in their order."""
        bounds = layout.bounds_B1.tolist()
        device = layout.bounds_B1.device
        tokens = []
        lengths = [0]
        for owner in owners:
            start = bounds[owner]
            end = bounds[owner + 1]
            tokens.append(torch.arange(start, end, device=device))
            lengths.append(end - start)
        tokens_S = torch.cat(tokens)
        bounds_B1 = torch.tensor(lengths, device=device).cumsum(0).int()
        self.source_layout = Layout(bounds_B1, layout.max_length, len(tokens_S), layout.has_kernels)
        for layer, (k_SHK, v_SHK) in self.source.items():
            self.source[layer] = k_SHK[tokens_S], v_SHK[tokens_S]

    def query_layout(self, layout: Layout) -> Layout:
        """How new tokens fall into the sequences of queries that cross-attention reads the sources with."""
        if self.readers is None:
            return layout
        if layout.num_tokens == len(self.owners):
            return self.readers
        # Several new tokens a sequence: the bounds between sources are some of those between sequences.
        bounds_B1 = layout.bounds_B1[self.readers.bounds_B1.long()]
        longest = int(bounds_B1.diff().max())
        return Layout(bounds_B1, longest, layout.num_tokens, layout.has_kernels)


def _moved(x_BCHK: Tensor, rows: Tensor, moved: Tensor, filled: int) -> Tensor:
    """The slots `rows` of keys or values, flat. Only filled cells of slots that are not in their place are copied."""
    if len(rows) > len(x_BCHK):
        new_BCHK = x_BCHK.new_zeros(len(rows), *x_BCHK.shape[1:])
        new_BCHK[:, :filled] = x_BCHK[rows, :filled]
        return new_BCHK.flatten(0, 1)
    x_BCHK[moved, :filled] = x_BCHK[rows[moved], :filled]
    return x_BCHK[: len(rows)].flatten(0, 1)


@dataclass(frozen=True)
class LayerCache:
    """One layer's share of the cache in one pass."""

    cache: KeyValueCache
    layer: int
    cells_N: Tensor
    """Where the new tokens' keys and values go."""
    layout_k: Layout
    """Of all keys so far; in the first pass these are the new tokens, as they lie."""

    def extend(self, new: Projected | Fused) -> tuple[Projected | Fused, Layout]:
        """Stores new keys and values; gives the new queries with all keys and values so far, and their layout.

        To store the same ones again changes nothing.
        """
        parts = new.apart()
        slots = self.cache.slots.get(self.layer)
        if slots is None:
            num_cells = len(self.cache.lengths_B) * self.cache.capacity
            shape = (num_cells, *parts.k_SHK.shape[1:])
            slots = (parts.k_SHK.new_zeros(shape), parts.v_SHK.new_zeros(shape))
            self.cache.slots[self.layer] = slots
        k_SHK, v_SHK = slots
        k_SHK[self.cells_N] = parts.k_SHK.to(k_SHK.dtype)
        v_SHK[self.cells_N] = parts.v_SHK.to(v_SHK.dtype)
        if isinstance(self.layout_k, SlotLayout):
            return Projected(parts.q_NHK, k_SHK, v_SHK), self.layout_k
        # The first pass: there are no other keys than the new ones.
        return new, self.layout_k

    def project_once(
        self,
        project: Callable[[Tensor], tuple[Tensor, Tensor]],
        source: Source | None,
    ) -> tuple[Tensor, Tensor, Layout]:
        """Keys and values of cross-attention with their layout; the source is projected in the first pass only.

        The queries have the cache's `query_layout`.
        """
        cache = self.cache
        if self.layer not in cache.source:
            assert source is not None, "the first pass over a source needs it"
            k_SHK, v_SHK = project(source.states_SD)
            cache.source[self.layer] = k_SHK.contiguous(), v_SHK.contiguous()
            cache.source_layout = source.layout
        assert cache.source_layout is not None
        return *cache.source[self.layer], cache.source_layout
