"""Sequences -> packs of a fixed number of tokens, without padding between them.

A plan says which tokens make up every sequence of an epoch; a pack lays some of them end to end with their special
tokens, such as `[CLS] first [SEP] second [SEP]`. The tail of a pack is filler no target points to,
so every shape is the same from batch to batch and every row is defined.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from firth import chance
from firth.data.joined import Joined
from firth.data.shards import Shards
from firth.data.stream import Stream, ranges
from firth.tensors import Batch, as_tensors
from firth.tokenizers.vocab import Frame


class Specials(Protocol):
    """The ids every sequence needs (a tokenizer's vocabulary has them)."""

    @property
    def pad(self) -> int: ...
    @property
    def frame(self) -> Frame: ...
    def parts(self, ids: Iterable[int]) -> tuple[np.ndarray, np.ndarray] | None: ...


@dataclass(frozen=True)
class Plan:
    """The sequences of one epoch: pieces_SP2[s, p] is the token range [start, end) of piece p of sequence s.

    The first piece is never empty; where the second one is, the sequence is a single text.
    """

    pieces_SP2: np.ndarray
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What is known of each sequence as a whole, such as whether its second piece follows the first."""
    num_specials: int = -1
    """Special tokens of each sequence; -1: one in front and one behind every piece, as in BERT."""
    frame: Frame | None = None
    """The special tokens of these sequences where they are not the vocabulary's usual ones."""
    joined: Joined | None = None
    """Documents joined end to end, where pieces are places in these and not tokens of the shards."""

    def __len__(self) -> int:
        return len(self.pieces_SP2)

    @property
    def lengths_S(self) -> np.ndarray:
        """Tokens of each sequence with its special tokens."""
        sizes_SP = self.pieces_SP2[:, :, 1] - self.pieces_SP2[:, :, 0]
        if self.frame:
            return np.asarray(sizes_SP.sum(1) + _num_specials(self.frame, sizes_SP))
        specials = sizes_SP.shape[1] + 1 if self.num_specials < 0 else self.num_specials
        return np.asarray(sizes_SP.sum(1) + specials)


@dataclass
class Pack:
    """A pack in the making, as numpy arrays; objectives change `ids_N` and add `targets`."""

    ids_N: np.ndarray
    positions_N: np.ndarray
    segments_N: np.ndarray
    bounds_B1: np.ndarray
    rows_B: np.ndarray
    """Which sequence of the plan each one is: the counter its chance is drawn with."""
    ordinary_N: np.ndarray
    """True for tokens of the text, False for special tokens."""
    word_starts_N: np.ndarray
    labels: Mapping[str, np.ndarray]
    num_tokens: int
    """The fixed size the pack will have with its filler."""
    max_sequences: int
    max_length: int
    targets: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def sequence_N(self) -> np.ndarray:
        """For each token, the sequence it stands in."""
        return np.repeat(np.arange(len(self.rows_B)), np.diff(self.bounds_B1))


def runs(
    stream: Stream, max_length: int, *, frame: Frame, key: np.uint64 | None = None, pair_rate: float = 0.0
) -> Plan:
    """Every document of a view cut into runs that fit into `max_length` with their special tokens.

    With a key, a document that is longer than a run is cut at other places for each key. With a `pair_rate`, so many
    runs are split into two segments at a sentence border.
    """
    starts_D = stream.starts_S[stream.bounds_D1[:-1]]
    ends_D = stream.ends_S[stream.bounds_D1[1:] - 1]
    step = max_length - frame.size(2 if pair_rate else 1)
    lead_D = np.zeros_like(starts_D)
    if key is not None:
        # The first run of a long document is a short one, so that all later cuts move.
        drawn_D = chance.below(key, step, stream.documents_D, 0)
        lead_D = np.where(ends_D - starts_D > step, drawn_D, 0)
    counts_D = (lead_D > 0) + -(-(ends_D - starts_D - lead_D) // step)
    # Where the first run would begin if it were a full one.
    origin_D = np.where(lead_D > 0, starts_D + lead_D - step, starts_D)
    begin_S = np.repeat(origin_D, counts_D) + ranges(np.zeros_like(counts_D), counts_D) * step
    first_S = np.maximum(begin_S, np.repeat(starts_D, counts_D))
    last_S = np.minimum(begin_S + step, np.repeat(ends_D, counts_D))
    pieces_S12 = np.stack([first_S, last_S], -1)[:, None, :]
    if not pair_rate:
        return Plan(pieces_S12, frame=frame)
    assert key is not None
    return Plan(_halves(stream, pieces_S12, key=key, pair_rate=pair_rate), frame=frame)


def _halves(stream: Stream, pieces_S12: np.ndarray, *, key: np.uint64, pair_rate: float) -> np.ndarray:
    """Runs split at the sentence border nearest to their middle; the second piece of an unsplit run is empty."""
    first_S = pieces_S12[:, 0, 0]
    last_S = pieces_S12[:, 0, 1]
    middle_S = (first_S + last_S) // 2
    after_S = np.searchsorted(stream.starts_S, middle_S)
    upper_S = stream.starts_S[np.minimum(after_S, len(stream.starts_S) - 1)]
    lower_S = stream.starts_S[np.maximum(after_S - 1, 0)]
    border_S = np.where(upper_S - middle_S < middle_S - lower_S, upper_S, lower_S)
    is_inside = (border_S > first_S) & (border_S < last_S)
    is_drawn = chance.uniform(key, np.arange(len(first_S)), 1) < pair_rate
    border_S = np.where(is_inside & is_drawn, border_S, last_S)
    return np.stack([np.stack([first_S, border_S], -1), np.stack([border_S, last_S], -1)], 1)


def lay_out(
    shards: Shards,
    plan: Plan,
    rows_B: np.ndarray,
    *,
    specials: Specials,
    num_tokens: int,
    max_length: int,
    max_sequences: int = 0,
) -> Pack:
    """Lays the plan's sequences `rows_B` end to end."""
    pieces_BP2 = plan.pieces_SP2[rows_B]
    sizes_BP = pieces_BP2[:, :, 1] - pieces_BP2[:, :, 0]
    num_pieces, frame = sizes_BP.shape[1], plan.frame or specials.frame
    bounds_B1 = np.concatenate([[0], np.cumsum(sizes_BP.sum(1) + _num_specials(frame, sizes_BP))])
    sequence_N = np.repeat(np.arange(len(rows_B)), np.diff(bounds_B1))
    positions_N = np.arange(bounds_B1[-1]) - bounds_B1[sequence_N]

    # A piece begins where the one before it ends and what stands between them is over.
    before_BP = np.concatenate([np.zeros_like(sizes_BP[:, :1]), sizes_BP[:, :-1] + len(frame.between)], 1)
    begins_BP = bounds_B1[:-1, None] + len(frame.opening) + np.cumsum(before_BP, 1)
    places = ranges(begins_BP.ravel(), (begins_BP + sizes_BP).ravel())
    tokens = ranges(pieces_BP2[:, :, 0].ravel(), pieces_BP2[:, :, 1].ravel())
    ids_N = np.empty(bounds_B1[-1], np.int64)
    _put(ids_N, bounds_B1[:-1], frame.opening)
    has_next_BP = sizes_BP[:, 1:] > 0
    _put(ids_N, (begins_BP + sizes_BP)[:, :-1][has_next_BP], frame.between)
    _put(ids_N, bounds_B1[1:] - len(frame.closing), frame.closing)
    ordinary_N = np.zeros(len(ids_N), bool)
    word_starts_N = np.ones(len(ids_N), bool)
    ids_N[places], ordinary_N[places], word_starts_N[places] = (
        plan.joined.read(shards, tokens) if plan.joined else (shards.ids[tokens], True, shards.word_starts(tokens))
    )
    segments_N = np.zeros(len(ids_N), np.int64)
    if num_pieces > 1:
        first_B = len(frame.opening) + sizes_BP[:, 0] + len(frame.between)
        in_second_N = (positions_N >= first_B[sequence_N]) & (sizes_BP[sequence_N, 1] > 0)
        segments_N[in_second_N] = frame.second_segment
    return Pack(
        ids_N,
        positions_N,
        segments_N,
        bounds_B1,
        rows_B,
        ordinary_N,
        word_starts_N,
        {name: values[rows_B] for name, values in plan.labels.items()},
        num_tokens,
        max(max_sequences, len(rows_B)),
        max_length,
    )


def _num_specials(frame: Frame, sizes_SP: np.ndarray) -> np.ndarray:
    """Special tokens of each sequence; a piece that is empty has none in front of it."""
    num_texts_S = np.maximum((sizes_SP > 0).sum(1), 1)
    return np.asarray(frame.size(1) + (num_texts_S - 1) * len(frame.between))


def _put(ids_N: np.ndarray, starts: np.ndarray, tokens: tuple[int, ...]) -> None:
    for place, token in enumerate(tokens):
        ids_N[starts + place] = token


def usual_sequences(plan: Plan, num_tokens: int) -> int:
    """Sequences a pack may hold: a fixed number, a third more than the plan's mean length asks for.

    Every kernel over sequences pays for the fixed number, so it should not be far from the real one.
    """
    return int(num_tokens / plan.lengths_S.mean() * 4 / 3) + 8


def finish(pack: Pack, *, specials: Specials, goal: str = "") -> Batch:
    """Fills the pack up to its fixed size and turns it into tensors."""
    real = len(pack.ids_N)
    filler_positions = np.arange(pack.num_tokens - real) % pack.max_length
    filler_starts = real + np.flatnonzero(filler_positions == 0)
    # Real sequences, then filler of at most max_length tokens each, then empty sequences at the very end.
    num_bounds = pack.max_sequences + pack.num_tokens // pack.max_length + 2
    bounds = np.full(num_bounds, pack.num_tokens, np.int32)
    known = np.concatenate([pack.bounds_B1[:-1], filler_starts])
    bounds[: len(known)] = known
    zeros = np.zeros(len(filler_positions), np.int64)
    arrays = {
        "ids_N": np.concatenate([pack.ids_N, zeros + specials.pad]),
        "positions_N": np.concatenate([pack.positions_N, filler_positions]),
        "segments_N": np.concatenate([pack.segments_N, zeros]),
        "bounds_B1": bounds,
    }
    if made := specials.parts(arrays["ids_N"]):
        arrays |= {"parts_M": made[0], "part_bounds_N1": np.concatenate([[0], np.cumsum(made[1])])}
    return Batch(**as_tensors(arrays), max_length=pack.max_length, targets=as_tensors(pack.targets), goal=goal)  # type: ignore[arg-type]


def pack_tokens(sequences: list[np.ndarray], *, segments: list[np.ndarray] | None = None) -> Batch:
    """Ready-made sequences of ids as a batch of just their size: for inference."""
    lengths = [len(ids) for ids in sequences]
    positions = np.concatenate([np.arange(n) for n in lengths])
    return Batch(
        torch.from_numpy(np.concatenate(sequences).astype(np.int64)),
        torch.from_numpy(positions),
        torch.from_numpy(np.concatenate(segments) if segments else np.zeros_like(positions)),
        torch.from_numpy(np.cumsum([0, *lengths]).astype(np.int32)),
        max(lengths),
    )
