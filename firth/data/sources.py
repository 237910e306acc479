"""Packs for an encoder-decoder: a pack of text -> a source that the encoder reads and a target that the decoder writes.

An objective says which tokens the source and the target of every sequence have, in any order (`Tokens`); `set_pair`
lays them end to end. A decoder's first input is the start token, and every input's label is the next token. A pack's
`batches.tokens` are split between sources and targets in proportion to what they need over the whole corpus. Both
shapes are fixed. Where an objective draws lengths at random, a little of each stays free; in the rare case that this is
not enough, the last sequences of the pack are left out.
"""

from dataclasses import dataclass, fields, replace

import numpy as np

from firth.data.packing import Pack, Plan
from firth.errors import BadConfig
from firth.ragged import bounds_of, places_of
from firth.tokenizers.vocab import Frame

_SLACK = 16
"""Tokens that stay free in a pack whose lengths vary, besides the share."""


@dataclass(frozen=True)
class PackSizes:
    """The fixed numbers of tokens of a pack, filler included."""

    target: int
    """Tokens of the pack itself; where there is a source, of the targets."""
    source: int = 0


def pack_sizes(plan: Plan, num_tokens: int) -> PackSizes:
    """How the tokens of a pack are split between its sources and its targets."""
    lengths = plan.pair_lengths
    if lengths is None:
        return PackSizes(num_tokens)
    longest_source = _needed(lengths.source_S.max(), lengths.source_spread)
    longest_target = _needed(lengths.target_S.max(), lengths.target_spread)
    if longest_source + longest_target > num_tokens:
        raise BadConfig(
            f"batches.tokens={num_tokens} does not hold the source and the target of one sequence; use at least "
            f"{longest_source + longest_target}, or a smaller batches.max_length."
        )
    all_sources = _needed(lengths.source_S.sum(), lengths.source_spread)
    all_targets = _needed(lengths.target_S.sum(), lengths.target_spread)
    proportional = round(num_tokens * all_sources / (all_sources + all_targets))
    # One sequence must always fit.
    source = max(longest_source, min(proportional, num_tokens - longest_target))
    return PackSizes(num_tokens - source, source)


def room_taken(plan: Plan, sizes: PackSizes) -> np.ndarray:
    """What each sequence takes of a pack's tokens: its length and what is appended for it, or its larger share of the
    sources or the targets."""
    lengths = plan.pair_lengths
    if lengths is None:
        return np.asarray(np.minimum(plan.lengths_S + plan.appended, sizes.target))
    source_share_S = lengths.source_S / _usable(sizes.source, lengths.source_spread)
    target_share_S = lengths.target_S / _usable(sizes.target, lengths.target_spread)
    share_S = np.maximum(source_share_S, target_share_S)
    num_tokens = sizes.source + sizes.target
    room_S = np.ceil(share_S * num_tokens).astype(np.int64)
    return np.asarray(np.minimum(room_S, num_tokens))


def _needed(length: float, spread: float) -> int:
    """The tokens of a pack that hold sequences of this length together."""
    slack = _SLACK if spread else 0
    return int(np.ceil(length * (1 + spread))) + slack


def _usable(size: int, spread: float) -> float:
    """The length of sequences that fit together into a pack of this size: the inverse of `_needed`."""
    slack = _SLACK if spread else 0
    return max((size - slack) / (1 + spread), 1.0)


@dataclass(frozen=True)
class Tokens:
    """Some tokens of a pack's sequences, in any order."""

    sequence_N: np.ndarray
    """Which sequence of the pack each token belongs to."""
    places_N: np.ndarray
    """Integers from 0 on that order the tokens of a sequence."""
    ids_N: np.ndarray


@dataclass(frozen=True)
class PackedIds:
    """Sequences end to end."""

    ids_N: np.ndarray
    bounds_B1: np.ndarray

    @property
    def lengths_B(self) -> np.ndarray:
        return np.diff(self.bounds_B1)


def lay_end_to_end(parts: list[Tokens], num_sequences: int) -> PackedIds:
    """All the tokens of `parts`, sorted by sequence and by place; of equal places the earlier part comes first."""
    sequence = np.concatenate([part.sequence_N for part in parts])
    places = np.concatenate([part.places_N for part in parts])
    ids = np.concatenate([part.ids_N for part in parts])
    num_places = int(places.max(initial=0)) + 1
    order = np.argsort(sequence * num_places + places, kind="stable")
    counts_B = np.bincount(sequence, minlength=num_sequences)
    bounds_B1 = bounds_of(counts_B)
    return PackedIds(ids[order], bounds_B1)


def lay_framed(parts: list[Tokens], num_sequences: int, *, frame: Frame) -> PackedIds:
    """The same with the special tokens of a text around each sequence."""
    moved = []
    last_place = 0
    for part in parts:
        places_N = part.places_N + 1
        moved.append(replace(part, places_N=places_N))
        last_place = max(last_place, int(places_N.max(initial=0)))
    opening = in_every_sequence(frame.opening, num_sequences, place=0)
    closing = in_every_sequence(frame.closing, num_sequences, place=last_place + 1)
    return lay_end_to_end([opening, *moved, closing], num_sequences)


def in_every_sequence(ids: tuple[int, ...], num_sequences: int, *, place: int) -> Tokens:
    """The same tokens, in order, in every sequence."""
    sequence_N = np.repeat(np.arange(num_sequences), len(ids))
    places_N = np.full(len(sequence_N), place)
    ids_N = np.tile(np.array(ids, np.int64), num_sequences)
    return Tokens(sequence_N, places_N, ids_N)


def set_pair(
    pack: Pack,
    *,
    source: PackedIds,
    written: PackedIds,
    start: int,
    first_positions_B: np.ndarray | None = None,
) -> np.ndarray:
    """Turns a pack of text into a target with a source; returns the label of every token of the target.

    `written` are the tokens that a decoder has to write: the labels. It reads `start` and then all but the last.
    The positions of a target begin at 0 or at `first_positions_B`.
    """
    fits_B = _fitting(pack, source, written)
    if not fits_B.all():
        source = _only(source, fits_B)
        written = _only(written, fits_B)
        pack.rows_B = pack.rows_B[fits_B]
        if first_positions_B is not None:
            first_positions_B = first_positions_B[fits_B]
    read = np.roll(written.ids_N, 1)
    read[written.bounds_B1[:-1]] = start
    target = PackedIds(read, written.bounds_B1)

    source_pack = _as_pack(pack, source, num_tokens=pack.source_tokens, max_length=pack.max_length)
    target_pack = _as_pack(pack, target, num_tokens=pack.num_tokens, max_length=pack.max_target)
    if first_positions_B is not None:
        target_pack.positions_N += first_positions_B[target_pack.sequence_N]
    target_pack.source = source_pack
    # The pack itself becomes the target: whoever called has it.
    for one in fields(pack):
        setattr(pack, one.name, getattr(target_pack, one.name))
    return written.ids_N


def _fitting(pack: Pack, source: PackedIds, target: PackedIds) -> np.ndarray:
    """Which sequences fit into the fixed sizes of the pack; one without a target has nothing to learn."""
    source_B = source.lengths_B
    target_B = target.lengths_B
    # Short enough by itself.
    is_short_B = (source_B <= pack.max_length) & (target_B <= pack.max_target) & (target_B > 0)
    # Short enough behind the sequences before it.
    source_fits_B = np.cumsum(source_B * is_short_B) <= pack.source_tokens
    target_fits_B = np.cumsum(target_B * is_short_B) <= pack.num_tokens
    return np.asarray(is_short_B & source_fits_B & target_fits_B)


def _only(packed_ids: PackedIds, kept_B: np.ndarray) -> PackedIds:
    """Some of the sequences."""
    lengths_B = packed_ids.lengths_B
    is_kept_N = np.repeat(kept_B, lengths_B)
    bounds_B1 = bounds_of(lengths_B[kept_B])
    return PackedIds(packed_ids.ids_N[is_kept_N], bounds_B1)


def _as_pack(pack: Pack, packed_ids: PackedIds, *, num_tokens: int, max_length: int) -> Pack:
    """The sequences as a pack of this fixed size, for as many sequences as `pack` may have."""
    positions = places_of(packed_ids.lengths_B)
    return replace(
        pack,
        ids_N=packed_ids.ids_N,
        positions_N=positions,
        segments_N=np.zeros_like(positions),
        bounds_B1=packed_ids.bounds_B1,
        ordinary_N=np.zeros(len(positions), bool),
        word_starts_N=np.ones(len(positions), bool),
        labels={},
        groups_B=None,
        sentence_starts_N=None,
        num_tokens=num_tokens,
        max_length=max_length,
        targets={},
        source_tokens=0,
        max_target=0,
        source=None,
    )
