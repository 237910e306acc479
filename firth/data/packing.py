"""Sequences -> packs of a fixed number of tokens, without padding between them.

In: a view of documents. A plan says which tokens make up every sequence of an epoch. A pack lays some of these
sequences end to end with their special tokens, such as `[CLS] first [SEP] second [SEP]`. Out: batches of one fixed
shape. The tail of a batch is filler that no target points to, so every row is defined.

For an encoder-decoder a pack carries a second one, its source: one source sequence for each target sequence, in order
(`firth.data.sources` makes such a pair). Both have a fixed shape, and `batches.tokens` is the sum of both.

Suffixes besides those of `firth.tensors`: S sequences of a plan (of a `CorpusView`: its sentences), P pieces of a
sequence, D documents.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch

from firth import rng
from firth.data.framing import count_specials, piece_starts, segments_around, segments_of, special_ids
from firth.data.joined import Joined
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.ragged import bounds_of, owners_of, places_of, ranges
from firth.tensors import Batch, as_tensors
from firth.tokenizers.vocab import Frame


class Specials(Protocol):
    """The special tokens that every sequence needs (a tokenizer's vocabulary has them)."""

    @property
    def pad(self) -> int: ...
    @property
    def frame(self) -> Frame: ...
    def parts(self, ids: Iterable[int]) -> tuple[np.ndarray, np.ndarray] | None: ...


@dataclass(frozen=True)
class PairLengths:
    """How many tokens the source and the target of every sequence of a plan have: exactly, or on average over the
    draws of an objective."""

    source_S: np.ndarray
    target_S: np.ndarray
    max_target: int
    """The longest target; a sequence whose target is longer is left out."""
    source_spread: float = 0.0
    """Share of a pack's source that stays free because lengths vary; 0 where `source_S` is exact."""
    target_spread: float = 0.0
    """The same for the target."""


@dataclass(frozen=True)
class Plan:
    """The sequences of one epoch: pieces_SP2[s, p] is the token range [start, end) of piece p of sequence s.

    The first piece is never empty. Where the second one is empty, the sequence is a single text.
    """

    pieces_SP2: np.ndarray
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Labels of whole sequences, such as whether the second piece follows the first."""
    num_specials: int = -1
    """Special tokens of each sequence; -1: one in front and one after every piece, as in BERT."""
    frame: Frame | None = None
    """The special tokens of these sequences where they are not the vocabulary's usual ones."""
    joined: Joined | None = None
    """If set, pieces are positions in these joined documents and not token numbers of the shards."""
    groups_S: np.ndarray | None = None
    """If set, the group of each sequence, in rising order; the sequences of a group go into the same pack."""
    pair_lengths: PairLengths | None = None
    """If set, every sequence becomes a source and a target, and packs carry both."""
    appended: int = 0
    """Tokens for which a pack has room besides each sequence: an objective appends a short one for each."""
    has_sentences: bool = False
    """Whether packs say where sentences begin; not with joined documents."""
    segment_of_language: np.ndarray | None = None
    """If set, a token's segment is that of its language, by the language's number; not with joined documents."""

    def __len__(self) -> int:
        return len(self.pieces_SP2)

    @property
    def lengths_S(self) -> np.ndarray:
        """Tokens of each sequence with its special tokens."""
        sizes_SP = self.pieces_SP2[:, :, 1] - self.pieces_SP2[:, :, 0]
        if self.frame:
            return np.asarray(sizes_SP.sum(1) + count_specials(self.frame, sizes_SP))
        num_specials = self.num_specials
        if num_specials < 0:
            num_pieces = sizes_SP.shape[1]
            num_specials = num_pieces + 1
        return np.asarray(sizes_SP.sum(1) + num_specials)


@dataclass
class Pack:
    """A batch before it is filled up, as numpy arrays; objectives change `ids_N` and add `targets`."""

    ids_N: np.ndarray
    positions_N: np.ndarray
    segments_N: np.ndarray
    bounds_B1: np.ndarray
    rows_B: np.ndarray
    """The number of each sequence in the plan: the counter of its random numbers."""
    ordinary_N: np.ndarray
    """True for tokens of the text, False for special tokens."""
    word_starts_N: np.ndarray
    labels: Mapping[str, np.ndarray]
    num_tokens: int
    """The fixed size of the batch, filler included."""
    max_sequences: int
    max_length: int
    groups_B: np.ndarray | None = None
    """The group of each sequence, if the plan has groups."""
    targets: dict[str, np.ndarray] = field(default_factory=dict)
    source_tokens: int = 0
    """The fixed size of the source, filler included; 0 if the pack will have none."""
    max_target: int = 0
    """The longest target; 0 if the pack will have no source."""
    sentence_starts_N: np.ndarray | None = None
    """True for the first tokens of sentences, if the plan asks for them."""
    source: "Pack | None" = None
    """What a decoder reads: one sequence for each sequence of this pack, in order."""

    @property
    def sequence_N(self) -> np.ndarray:
        """For each token the number of its sequence."""
        return owners_of(np.diff(self.bounds_B1))

    @property
    def batch_sequences(self) -> int:
        """The fixed number of sequences of the finished batch: real ones, filler and empty ones."""
        return self.max_sequences + self.num_tokens // self.max_length + 1


def runs(
    stream: CorpusView,
    max_length: int,
    *,
    frame: Frame,
    key: np.uint64 | None = None,
    pair_rate: float = 0.0,
    sentence_rate: float = 0.0,
) -> Plan:
    """Every document of a view cut into runs that fit into `max_length` with their special tokens.

    With a key, a document that is longer than a run is cut at other places for each key. With a `sentence_rate`, that
    share of the runs is cut further into single sentences. With a `pair_rate`, that share of the runs is split into two
    segments at a sentence border.
    """
    num_texts = 2 if pair_rate else 1
    first_S, last_S = _cut(stream, max_length - frame.size(num_texts), key=key)
    if sentence_rate:
        assert key is not None
        first_S, last_S = _single_sentences(stream, first_S, last_S, key=key, sentence_rate=sentence_rate)
    pieces_S12 = np.stack([first_S, last_S], -1)[:, None, :]
    if not pair_rate:
        return Plan(pieces_S12, frame=frame)
    assert key is not None
    pieces_S22 = _halves(stream, pieces_S12, key=key, pair_rate=pair_rate)
    return Plan(pieces_S22, frame=frame)


def _cut(stream: CorpusView, step: int, *, key: np.uint64 | None) -> tuple[np.ndarray, np.ndarray]:
    """Every document cut into runs of `step` tokens: the first and last place of all runs, in order."""
    starts_D = stream.starts_S[stream.bounds_D1[:-1]]
    ends_D = stream.ends_S[stream.bounds_D1[1:] - 1]
    sizes_D = ends_D - starts_D
    # With a key the first run of a long document is a short one of `lead_D` tokens, so that all later cuts move.
    lead_D = np.zeros_like(starts_D)
    if key is not None:
        drawn_D = rng.below(key, step, stream.documents_D, 0)
        lead_D = np.where(sizes_D > step, drawn_D, 0)
    num_full_D = -(-(sizes_D - lead_D) // step)  # rounded up
    counts_D = (lead_D > 0) + num_full_D
    # The start of the first run if it were a full one; the part before the document is cut off below.
    origin_D = np.where(lead_D > 0, starts_D + lead_D - step, starts_D)
    number_S = places_of(counts_D)
    begin_S = np.repeat(origin_D, counts_D) + number_S * step
    document_start_S = np.repeat(starts_D, counts_D)
    document_end_S = np.repeat(ends_D, counts_D)
    first_S = np.maximum(begin_S, document_start_S)
    last_S = np.minimum(begin_S + step, document_end_S)
    return first_S, last_S


def _single_sentences(
    stream: CorpusView, first_R: np.ndarray, last_R: np.ndarray, *, key: np.uint64, sentence_rate: float
) -> tuple[np.ndarray, np.ndarray]:
    """R runs, a share of them cut at every sentence border inside; the first and last place of all pieces, in order."""
    starts = stream.starts_S
    # The sentences that begin inside a run are number from_R up to, not including, to_R.
    from_R = np.searchsorted(starts, first_R, side="right")
    to_R = np.searchsorted(starts, last_R, side="left")
    is_drawn_R = rng.uniform(key, np.arange(len(first_R)), 2) < sentence_rate
    num_cuts_R = np.where(is_drawn_R, to_R - from_R, 0)
    # S pieces: one more than cuts. Piece number p of a run lies between its cuts p - 1 and p.
    counts_R = num_cuts_R + 1
    run_S = owners_of(counts_R)
    place_S = places_of(counts_R)
    next_cut_S = from_R[run_S] + place_S
    last_sentence = len(starts) - 1
    cut_before_S = starts[np.maximum(next_cut_S - 1, 0)]
    cut_after_S = starts[np.minimum(next_cut_S, last_sentence)]
    first_S = np.where(place_S == 0, first_R[run_S], cut_before_S)
    last_S = np.where(place_S == num_cuts_R[run_S], last_R[run_S], cut_after_S)
    return first_S, last_S


def _halves(stream: CorpusView, pieces_S12: np.ndarray, *, key: np.uint64, pair_rate: float) -> np.ndarray:
    """Runs split at the sentence border nearest to their middle; the second piece of an unsplit run is empty."""
    first_S = pieces_S12[:, 0, 0]
    last_S = pieces_S12[:, 0, 1]
    middle_S = (first_S + last_S) // 2
    # The sentence borders around the middle.
    after_S = np.searchsorted(stream.starts_S, middle_S)
    last_sentence = len(stream.starts_S) - 1
    upper_S = stream.starts_S[np.minimum(after_S, last_sentence)]
    lower_S = stream.starts_S[np.maximum(after_S - 1, 0)]
    is_upper_nearer = upper_S - middle_S < middle_S - lower_S
    border_S = np.where(is_upper_nearer, upper_S, lower_S)
    is_inside = (border_S > first_S) & (border_S < last_S)
    is_drawn = rng.uniform(key, np.arange(len(first_S)), 1) < pair_rate
    border_S = np.where(is_inside & is_drawn, border_S, last_S)
    first_halves_S2 = np.stack([first_S, border_S], -1)
    second_halves_S2 = np.stack([border_S, last_S], -1)
    return np.stack([first_halves_S2, second_halves_S2], 1)


def lay_out(
    shards: Shards,
    plan: Plan,
    rows_B: np.ndarray,
    *,
    specials: Specials,
    num_tokens: int,
    max_length: int,
    max_sequences: int = 0,
    source_tokens: int = 0,
) -> Pack:
    """Lays the plan's sequences `rows_B` end to end.

    Where they become sources and targets, `num_tokens` is the size of the targets and `source_tokens` of the sources.
    """
    pieces_BP2 = plan.pieces_SP2[rows_B]
    first_tokens_BP = pieces_BP2[:, :, 0]
    end_tokens_BP = pieces_BP2[:, :, 1]
    sizes_BP = end_tokens_BP - first_tokens_BP
    frame = plan.frame or specials.frame
    lengths_B = sizes_BP.sum(1) + count_specials(frame, sizes_BP)
    bounds_B1 = bounds_of(lengths_B)
    sequence_N = owners_of(lengths_B)
    positions_N = places_of(lengths_B)
    begins_BP = piece_starts(frame, bounds_B1, sizes_BP)
    ends_BP = begins_BP + sizes_BP
    has_next_BP = sizes_BP[:, 1:] > 0
    groups_B = None
    if plan.groups_S is not None:
        groups_B = plan.groups_S[rows_B]
    max_target = 0
    if plan.pair_lengths:
        max_target = plan.pair_lengths.max_target
    pack = Pack(
        ids_N=special_ids(frame, bounds_B1, ends_BP, has_next_BP=has_next_BP),
        positions_N=positions_N,
        segments_N=segments_of(frame, sizes_BP, sequence_N, positions_N),
        bounds_B1=bounds_B1,
        rows_B=rows_B,
        ordinary_N=np.zeros(len(positions_N), bool),
        word_starts_N=np.ones(len(positions_N), bool),
        labels={name: values[rows_B] for name, values in plan.labels.items()},
        num_tokens=num_tokens,
        max_sequences=max(max_sequences, len(rows_B)),
        max_length=max_length,
        groups_B=groups_B,
        source_tokens=source_tokens,
        max_target=max_target,
    )
    places = ranges(begins_BP.ravel(), ends_BP.ravel())
    tokens = ranges(first_tokens_BP.ravel(), end_tokens_BP.ravel())
    _copy_text(pack, shards, plan, places=places, tokens=tokens)
    if plan.segment_of_language is not None:
        pack.segments_N = segments_around(
            pack.segments_N, pack.ordinary_N, pack.positions_N, num_opening=len(frame.opening)
        )
    return pack


def _copy_text(pack: Pack, shards: Shards, plan: Plan, *, places: np.ndarray, tokens: np.ndarray) -> None:
    """Copies these tokens of the shards to these places of a pack that has only its special tokens."""
    text_ids, is_ordinary, is_word_start = _read_text(shards, plan.joined, tokens)
    pack.ids_N[places] = text_ids
    pack.ordinary_N[places] = is_ordinary
    pack.word_starts_N[places] = is_word_start
    if plan.has_sentences:
        pack.sentence_starts_N = np.ones(len(pack.ids_N), bool)
        pack.sentence_starts_N[places] = shards.sentence_starts(tokens)
    if plan.segment_of_language is not None:
        pack.segments_N[places] = plan.segment_of_language[shards.token_languages(tokens)]


def token_ranges(plan: Plan, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first token in the shards, and the end, of every piece of these sequences."""
    pieces = plan.pieces_SP2[rows_B].reshape(-1, 2)
    starts = pieces[:, 0]
    ends = pieces[:, 1]
    has_tokens = ends > starts
    starts = starts[has_tokens]
    ends = ends[has_tokens]
    if plan.joined is None:
        return starts, ends
    first = plan.joined.tokens(starts)
    last = plan.joined.tokens(ends - 1)
    return first, last + 1


def _read_text(shards: Shards, joined: Joined | None, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The ids of these tokens, which of them are tokens of the text, and which start a word."""
    if joined:
        return joined.read(shards, tokens)
    is_ordinary = np.ones(len(tokens), bool)
    return shards.ids[tokens], is_ordinary, shards.word_starts(tokens)


def usual_sequences(lengths_S: np.ndarray, num_tokens: int) -> int:
    """The fixed number of sequences a pack may hold: a third more than fit on average.

    Every kernel over sequences pays for the fixed number, so it should not be far from the real one.
    """
    return int(num_tokens / lengths_S.mean() * 4 / 3) + 8


def finish(pack: Pack, *, specials: Specials, goal: str = "") -> Batch:
    """Fills the pack, and its source if it has one, up to their fixed sizes and turns them into tensors."""
    num_sequences = pack.batch_sequences
    if pack.source is None:
        return _finish(pack, num_sequences, specials=specials, goal=goal)
    # The b-th target reads the b-th source, so both have the same number of sequences, filler and empty ones included.
    num_sequences = max(num_sequences, pack.source.batch_sequences)
    source = _finish(pack.source, num_sequences, specials=specials, goal="")
    batch = _finish(pack, num_sequences, specials=specials, goal=goal)
    return replace(batch, source=source)


def _finish(pack: Pack, num_sequences: int, *, specials: Specials, goal: str) -> Batch:
    num_real = len(pack.ids_N)
    num_filler = pack.num_tokens - num_real
    filler_positions = np.arange(num_filler) % pack.max_length
    filler_starts = num_real + np.flatnonzero(filler_positions == 0)
    # Real sequences, then filler of at most max_length tokens each, then empty sequences at the very end.
    bounds = np.full(num_sequences + 1, pack.num_tokens, np.int32)
    known = np.concatenate([pack.bounds_B1[:-1], filler_starts])
    bounds[: len(known)] = known
    zeros = np.zeros(num_filler, np.int64)
    filler_ids = zeros + specials.pad
    arrays = {
        "ids_N": np.concatenate([pack.ids_N, filler_ids]),
        "positions_N": np.concatenate([pack.positions_N, filler_positions]),
        "segments_N": np.concatenate([pack.segments_N, zeros]),
        "bounds_B1": bounds,
    }
    parts = specials.parts(arrays["ids_N"])
    if parts is not None:
        parts_M, part_sizes_N = parts
        arrays["parts_M"] = parts_M
        arrays["part_bounds_N1"] = bounds_of(part_sizes_N)
    return Batch(**as_tensors(arrays), max_length=pack.max_length, targets=as_tensors(pack.targets), goal=goal)  # type: ignore[arg-type]


def pack_tokens(sequences: list[np.ndarray], *, segments: list[np.ndarray] | None = None) -> Batch:
    """Ready-made sequences of ids as a batch of just their size: for inference."""
    lengths = [len(ids) for ids in sequences]
    ids_N = np.concatenate(sequences).astype(np.int64)
    positions_N = np.concatenate([np.arange(length) for length in lengths])
    segments_N = np.zeros_like(positions_N)
    if segments:
        segments_N = np.concatenate(segments)
    bounds_B1 = bounds_of(lengths).astype(np.int32)
    return Batch(
        ids_N=torch.from_numpy(ids_N),
        positions_N=torch.from_numpy(positions_N),
        segments_N=torch.from_numpy(segments_N),
        bounds_B1=torch.from_numpy(bounds_B1),
        max_length=max(lengths),
    )
