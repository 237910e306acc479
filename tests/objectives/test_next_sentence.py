"""Sentence pairs as the paper draws them: half true, half from another document, filling the sequence."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from firth.checkpoint import make_objective
from firth.data.packing import Plan
from firth.data.shards import Shards
from firth.data.stream import CorpusView, split
from firth.encoders.bert import Bert
from firth.errors import BadInput, Unsupported
from firth.objectives.next_sentence import IS_NEXT, IS_RANDOM, NextSentence
from firth.tensors import States
from firth.tokenizers.wordpiece import WordPiece

LENGTH = 128
Maker = Callable[..., NextSentence]


@pytest.fixture
def goal(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> Maker:
    def make(length: int = LENGTH, **changes: Any) -> NextSentence:
        config = NextSentence.Config(**changes)
        made = make_objective("next_sentence", config, small_bert(), tokenizer, max_length=length, seed=2)
        assert isinstance(made, NextSentence)
        return made

    return make


def everything(shards: Shards) -> CorpusView:
    return CorpusView(shards, np.arange(shards.num_documents))


def documents(shards: Shards, tokens: np.ndarray) -> np.ndarray:
    return np.searchsorted(shards.sentences[shards.documents], tokens, side="right") - 1


@pytest.fixture
def plan(goal: Maker, long_shards: Shards) -> Plan:
    """Several epochs of pairs over 144,000 tokens."""
    plans = [goal().sequences(everything(long_shards), epoch) for epoch in range(3)]
    labels = np.concatenate([plan.labels["next_sentence"] for plan in plans])
    return Plan(np.concatenate([plan.pieces_SP2 for plan in plans]), {"next_sentence": labels})


def test_half_the_pairs_are_random(plan: Plan) -> None:
    labels = plan.labels["next_sentence"]
    assert len(labels) > 3000
    assert abs((labels == IS_RANDOM).mean() - 0.5) < 0.02


def test_random_seconds_come_from_another_document(plan: Plan, long_shards: Shards) -> None:
    pieces = plan.pieces_SP2[plan.labels["next_sentence"] == IS_RANDOM]
    first, second = documents(long_shards, pieces[:, 0, 0]), documents(long_shards, pieces[:, 1, 0])
    assert (first != second).all()
    assert len(set(second.tolist())) == long_shards.num_documents  # drawn from everywhere


def test_true_seconds_follow_in_the_same_document(plan: Plan, long_shards: Shards) -> None:
    pieces = plan.pieces_SP2[plan.labels["next_sentence"] == IS_NEXT]
    assert np.array_equal(documents(long_shards, pieces[:, 0, 0]), documents(long_shards, pieces[:, 1, 0]))
    gap = pieces[:, 1, 0] - pieces[:, 0, 1]
    full = (pieces[:, :, 1] - pieces[:, :, 0]).sum(1) == LENGTH - 3
    assert (gap >= 0).all()
    assert (gap[~full] == 0).all()  # only a pair that had to be cut may leave something out
    assert (gap == 0).mean() > 0.25
    at_border = np.isin(pieces[~full][:, 1, 0], long_shards.sentences)
    assert at_border.mean() > 0.5  # a lone sentence is cut inside, before a word
    assert long_shards.word_starts(pieces[~full][~at_border, 1, 0]).mean() > 0.9


def test_pieces_stay_within_a_document_and_within_the_length(plan: Plan, long_shards: Shards) -> None:
    pieces = plan.pieces_SP2
    assert (pieces[:, :, 1] > pieces[:, :, 0]).all()
    assert np.array_equal(documents(long_shards, pieces[:, :, 0]), documents(long_shards, pieces[:, :, 1] - 1))
    assert plan.lengths_S.max() == LENGTH


def test_pairs_fill_the_sequence_but_some_are_short(goal: Maker, plan: Plan, long_shards: Shards) -> None:
    fill = plan.lengths_S.mean() / LENGTH
    assert fill >= 0.85
    assert 0.03 < (plan.lengths_S < LENGTH / 2).mean() < 0.12
    never = goal(short_rate=0.0).sequences(everything(long_shards), 0)
    assert (never.lengths_S < LENGTH / 2).mean() < 0.05  # the ends of documents
    assert never.lengths_S.mean() / LENGTH > fill


def test_an_epoch_reads_nearly_all_of_the_text(goal: Maker, long_shards: Shards) -> None:
    """What a random second replaced is used again, so little is lost."""
    plan = goal().sequences(everything(long_shards), 0)
    read = np.zeros(long_shards.num_tokens, bool)
    for start, end in plan.pieces_SP2.reshape(-1, 2):
        read[start:end] = True
    assert read.mean() > 0.9


@pytest.mark.parametrize("fresh", [True, False])
def test_static_pairs_repeat_and_fresh_ones_do_not(goal: Maker, long_shards: Shards, fresh: bool) -> None:
    one, two = (goal(fresh=fresh).sequences(everything(long_shards), epoch) for epoch in (0, 1))
    assert np.array_equal(one.pieces_SP2, two.pieces_SP2) != fresh


def test_only_documents_of_the_stream_are_used(goal: Maker, long_shards: Shards) -> None:
    training, held_out = split(long_shards, held_out_rate=0.2, seed=1)
    for stream, other in ((training, held_out), (held_out, training)):
        pieces = goal().sequences(stream, 0).pieces_SP2
        used = set(documents(long_shards, pieces[:, :, 0]).ravel().tolist())
        assert used == set(stream.documents_D.tolist())
        assert not used & set(other.documents_D.tolist())


@pytest.mark.parametrize("length", [8, 16, 64])
def test_real_text_at_short_lengths(goal: Maker, shards: Shards, length: int) -> None:
    plan = goal(length).sequences(everything(shards), 0)
    assert plan.lengths_S.max() <= length
    assert plan.lengths_S.min() >= 5
    assert abs((plan.labels["next_sentence"] == IS_RANDOM).mean() - 0.5) < 0.1


def test_one_document_is_not_enough(goal: Maker, shards: Shards) -> None:
    with pytest.raises(BadInput, match="at least two documents"):
        goal().sequences(CorpusView(shards, np.array([3])), 0)


def test_an_encoder_without_pooler_is_refused(goal: Maker) -> None:
    with pytest.raises(Unsupported, match="pooler"):
        goal().scores(States(torch.zeros(2, 32), torch.zeros(4, 32)))
