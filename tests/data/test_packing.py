"""Sequences laid end to end: nothing lost, nothing mixed, always the same shapes."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from firth import rng
from firth.data.order import deal
from firth.data.packing import Plan, finish, lay_out, pack_tokens, runs, usual_sequences
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.tokenizers.wordpiece import WordPiece


@pytest.fixture
def plan() -> Plan:
    """Pairs of ragged pieces."""
    key = rng.key("plan")
    starts = rng.below(key, 18_000, np.arange(300), np.array([[0], [1]])).T
    sizes = 1 + rng.below(key, 30, np.arange(300), np.array([[2], [3]])).T
    return Plan(np.stack([starts, starts + sizes], -1))


def test_a_pair_reads_cls_first_sep_second_sep(shards: Shards, tokenizer: WordPiece, plan: Plan) -> None:
    vocab = tokenizer.vocab
    rows = np.array([7, 3, 250])
    pack = lay_out(shards, plan, rows, specials=vocab, num_tokens=256, max_length=64)
    for number, row in enumerate(rows):
        (a, b), (c, d) = plan.pieces_SP2[row]
        tokens = slice(pack.bounds_B1[number], pack.bounds_B1[number + 1])
        first, second = shards.ids[a:b].tolist(), shards.ids[c:d].tolist()
        assert pack.ids_N[tokens].tolist() == [vocab.cls, *first, vocab.sep, *second, vocab.sep]
        assert pack.segments_N[tokens].tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert pack.positions_N[tokens].tolist() == list(range(plan.lengths_S[row]))
        ordinary = [False, *[True] * len(first), False, *[True] * len(second), False]
        assert pack.ordinary_N[tokens].tolist() == ordinary
        starts = shards.word_starts(np.concatenate([np.arange(a, b), np.arange(c, d)]))
        assert pack.word_starts_N[tokens][ordinary].tolist() == starts.tolist()


def test_a_single_piece_reads_cls_text_sep(shards: Shards, tokenizer: WordPiece) -> None:
    pack = lay_out(
        shards, Plan(np.array([[[3, 8]]])), np.array([0]), specials=tokenizer.vocab, num_tokens=16, max_length=16
    )
    assert pack.ids_N.tolist() == [tokenizer.vocab.cls, *shards.ids[3:8].tolist(), tokenizer.vocab.sep]
    assert pack.segments_N.tolist() == [0] * 7


@pytest.mark.parametrize("num_tokens", [128, 200, 1024])
def test_shapes_are_fixed_and_filler_is_harmless(
    shards: Shards, tokenizer: WordPiece, plan: Plan, num_tokens: int
) -> None:
    shapes = set()
    sizes = {"num_tokens": num_tokens, "max_sequences": usual_sequences(plan.lengths_S, num_tokens)}
    for rows in deal(plan, key=rng.key(1), **sizes):
        pack = lay_out(shards, plan, rows, specials=tokenizer.vocab, max_length=64, **sizes)
        real = len(pack.ids_N)
        batch = finish(pack, specials=tokenizer.vocab)
        shapes.add((batch.ids_N.shape, batch.positions_N.shape, batch.segments_N.shape, batch.bounds_B1.shape))
        lengths = batch.bounds_B1.diff()
        assert lengths.min() >= 0
        assert lengths.max() <= 64
        assert batch.bounds_B1[-1] == num_tokens
        assert batch.bounds_B1.dtype == torch.int32
        assert (batch.ids_N[real:] == tokenizer.vocab.pad).all()
        assert (batch.ids_N[:real] == torch.from_numpy(pack.ids_N)).all()
        assert batch.bounds_B1[: len(rows) + 1].tolist() == pack.bounds_B1.tolist()
        assert batch.positions_N.max() < 64
    assert len(shapes) == 1


def test_dealing_uses_every_sequence_once_and_stays_within_bounds(plan: Plan) -> None:
    packs = deal(plan, key=rng.key("order"), num_tokens=200, max_sequences=100)
    assert sorted(np.concatenate(packs).tolist()) == list(range(len(plan)))
    assert np.concatenate(packs).tolist() != list(range(len(plan)))
    assert max(plan.lengths_S[rows].sum() for rows in packs) <= 200
    for rows, following in pairwise(packs):
        assert plan.lengths_S[rows].sum() + plan.lengths_S[following[0]] > 200


@pytest.mark.parametrize("is_grouped", [False, True])
def test_dealing_within_stretches_uses_every_sequence_once_and_no_stretch_twice(plan: Plan, is_grouped: bool) -> None:
    if is_grouped:
        plan = replace(plan, groups_S=np.arange(len(plan)))
    packs = deal(plan, key=rng.key("order"), num_tokens=200, max_sequences=100, window=1000)
    rows = np.concatenate(packs)
    assert sorted(rows.tolist()) == list(range(len(plan)))
    stretches = plan.pieces_SP2[rows, 0, 0] // 1000
    visited = stretches[np.concatenate([[True], stretches[1:] != stretches[:-1]])]
    assert len(visited) == len(np.unique(stretches)) > 3
    assert visited.tolist() != sorted(visited.tolist())
    first = rows[stretches == visited[0]]
    assert first.tolist() != sorted(first.tolist())


def test_the_sequences_of_a_group_stay_together(plan: Plan) -> None:
    groups = np.repeat(np.arange(len(plan)), 2)[: len(plan)]
    grouped = replace(plan, groups_S=groups)
    packs = deal(grouped, key=rng.key("order"), num_tokens=200, max_sequences=100)
    assert sorted(np.concatenate(packs).tolist()) == list(range(len(plan)))
    assert max(plan.lengths_S[rows].sum() for rows in packs) <= 200
    pack_of_row = {row: number for number, rows in enumerate(packs) for row in rows.tolist()}
    for row in range(0, len(plan) - 1, 2):
        assert pack_of_row[row] == pack_of_row[row + 1]
    order = groups[np.concatenate(packs)]
    assert order.tolist() != groups.tolist()
    # A group that is larger than a pack is split, and nothing is lost.
    one = replace(plan, groups_S=np.zeros(len(plan), np.int64))
    assert len(np.concatenate(deal(one, key=rng.key("order"), num_tokens=200, max_sequences=100))) == len(plan)


def test_a_pack_of_very_short_sequences_keeps_its_number_fixed(shards: Shards, tokenizer: WordPiece) -> None:
    starts = np.arange(500)
    tiny = Plan(np.stack([starts, starts + 1], -1)[:, None])
    packs = deal(tiny, key=rng.key(1), num_tokens=1024, max_sequences=128)
    assert max(map(len, packs)) == 128
    pack = lay_out(shards, tiny, packs[0], specials=tokenizer.vocab, num_tokens=1024, max_length=64, max_sequences=128)
    assert finish(pack, specials=tokenizer.vocab).bounds_B1.diff().max() <= 64


def test_ready_made_sequences() -> None:
    batch = pack_tokens([np.array([5, 6, 7]), np.array([8])])
    assert batch.ids_N.tolist() == [5, 6, 7, 8]
    assert batch.positions_N.tolist() == [0, 1, 2, 0]
    assert batch.bounds_B1.tolist() == [0, 3, 4]
    assert (batch.max_length, batch.num_tokens) == (3, 4)


def test_the_fixed_number_of_sequences_follows_their_mean_length() -> None:
    starts = np.arange(500)
    plan = Plan(np.stack([starts, starts + 30], -1)[:, None])
    assert usual_sequences(plan.lengths_S, 1024) == 1024 // 32 * 4 // 3 + 8


def _cut(
    shards: Shards, tokenizer: WordPiece, seed: int, *, pair_rate: float = 0.0, sentence_rate: float = 0.0
) -> Plan:
    stream = CorpusView(shards, np.arange(shards.num_documents))
    frame = tokenizer.vocab.frame
    return runs(stream, 64, frame=frame, key=rng.key(seed), pair_rate=pair_rate, sentence_rate=sentence_rate)


RATES = ({}, {"pair_rate": 0.9}, {"sentence_rate": 0.4}, {"pair_rate": 0.9, "sentence_rate": 0.4})


@pytest.mark.parametrize("rates", RATES)
def test_runs_hold_every_token_once_and_begin_elsewhere_for_another_key(
    long_shards: Shards, tokenizer: WordPiece, rates: dict[str, float]
) -> None:
    plans = [_cut(long_shards, tokenizer, seed, **rates) for seed in (1, 2)]
    for plan in plans:
        spans = plan.pieces_SP2.reshape(-1, 2)
        spans = spans[spans[:, 1] > spans[:, 0]]
        assert spans[0, 0] == 0
        assert (spans[1:, 0] == spans[:-1, 1]).all()
        assert spans[-1, 1] == long_shards.num_tokens
        assert plan.lengths_S.max() <= 64
    pieces = [set(map(tuple, plan.pieces_SP2.reshape(len(plan), -1).tolist())) for plan in plans]
    assert pieces[0] != pieces[1]
    if "sentence_rate" in rates:
        return  # sentences begin where they begin
    starts = [set(plan.pieces_SP2[:, 0, 0].tolist()) for plan in plans]
    documents = set(long_shards.sentences[long_shards.documents].tolist())
    shared = (starts[0] & starts[1]) - documents
    assert len(shared) < 0.1 * len(starts[0])


def test_a_share_of_the_runs_is_cut_into_single_sentences(long_shards: Shards, tokenizer: WordPiece) -> None:
    starts = long_shards.sentences

    def num_borders_inside(plan: Plan) -> np.ndarray:
        first_S = plan.pieces_SP2[:, 0, 0]
        last_S = plan.pieces_SP2[:, -1, 1]
        return np.searchsorted(starts, last_S, side="left") - np.searchsorted(starts, first_S, side="right")

    assert not num_borders_inside(_cut(long_shards, tokenizer, 1, sentence_rate=1.0)).any()
    whole = num_borders_inside(_cut(long_shards, tokenizer, 1)).sum()
    left = num_borders_inside(_cut(long_shards, tokenizer, 1, sentence_rate=0.4)).sum()
    assert 0.5 < left / whole < 0.7


def test_two_segments_meet_at_a_sentence_border(long_shards: Shards, tokenizer: WordPiece) -> None:
    plan = _cut(long_shards, tokenizer, 1, pair_rate=0.9)
    sizes_SP = plan.pieces_SP2[:, :, 1] - plan.pieces_SP2[:, :, 0]
    is_pair = sizes_SP[:, 1] > 0
    assert 0.8 < is_pair.mean() < 0.92
    assert set(plan.pieces_SP2[is_pair, 1, 0].tolist()) <= set(long_shards.sentences.tolist())
    rows = np.concatenate([np.flatnonzero(is_pair)[:2], np.flatnonzero(~is_pair)[:2]])
    pack = lay_out(long_shards, plan, rows, specials=tokenizer.vocab, num_tokens=512, max_length=64)
    assert np.diff(pack.bounds_B1).tolist() == plan.lengths_S[rows].tolist()
    for number, row in enumerate(rows):
        tokens = slice(pack.bounds_B1[number], pack.bounds_B1[number + 1])
        texts = [long_shards.ids[a:b] for a, b in plan.pieces_SP2[row] if b > a]
        assert pack.ids_N[tokens].tolist() == tokenizer.vocab.frame.join(*texts).tolist()
        assert pack.segments_N[tokens].tolist() == tokenizer.vocab.frame.segments(*texts).tolist()
