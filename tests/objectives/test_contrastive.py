"""Contrastive learning: neighbours of one document are pairs, and the loss is that of finding the partner by cosine."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from firth import rng
from firth.checkpoint import make_objective
from firth.data.loader import BatchAddress, Packs
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.encoders.bert import Bert
from firth.errors import BadConfig
from firth.nn.likelihood import IGNORE
from firth.objectives.contrastive import Contrastive, pair_up, partners_of
from firth.objectives.masked_lm import MaskedLM
from firth.tensors import Batch
from firth.tokenizers.wordpiece import WordPiece

LENGTH = 64
BATCHES = BatchConfig(max_length=LENGTH, tokens=1024)


def whole(shards: Shards) -> CorpusView:
    return CorpusView(shards, np.arange(shards.num_documents))


@pytest.mark.parametrize("unit", ["run", "sentence"])
def test_pairs_are_neighbours_in_one_document(
    unit: str, small_bert: Callable[..., Bert], long_shards: Shards, tokenizer: WordPiece
) -> None:
    config = Contrastive.Config(unit=unit, min_tokens=4)  # type: ignore[arg-type]
    goal = make_objective("contrastive", config, small_bert(), tokenizer, max_length=LENGTH, seed=2)
    borders = long_shards.sentences[long_shards.documents]
    plan = goal.sequences(whole(long_shards), 0)
    assert plan.groups_S is not None
    assert plan.lengths_S.max() <= LENGTH
    documents = np.searchsorted(borders, plan.pieces_SP2[:, 0, 0], side="right")
    sizes = np.bincount(plan.groups_S)
    assert sizes.max() == 2
    assert (sizes == 2).mean() > 0.6
    is_pair = plan.groups_S[1:] == plan.groups_S[:-1]
    assert (documents[1:][is_pair] == documents[:-1][is_pair]).all()
    if unit == "run":
        ends = plan.pieces_SP2[:-1, 0, 1][is_pair]
        assert (ends == plan.pieces_SP2[1:, 0, 0][is_pair]).all()
    else:
        assert (plan.lengths_S - tokenizer.vocab.frame.size(1)).min() >= 4


def test_runs_may_be_cut_into_single_sentences(
    small_bert: Callable[..., Bert], long_shards: Shards, tokenizer: WordPiece
) -> None:
    config = Contrastive.Config(sentence_rate=1.0)
    goal = make_objective("contrastive", config, small_bert(), tokenizer, max_length=LENGTH, seed=2)
    [pieces_S2] = goal.sequences(whole(long_shards), 0).pieces_SP2.transpose(1, 0, 2)
    starts = long_shards.sentences
    assert (np.searchsorted(starts, pieces_S2[:, 1]) == np.searchsorted(starts, pieces_S2[:, 0], side="right")).all()
    with pytest.raises(BadConfig, match="goes with unit=run"):
        Contrastive.Config(unit="sentence", sentence_rate=0.5)


def test_the_same_text_twice_is_masked_differently(
    small_bert: Callable[..., Bert], long_shards: Shards, tokenizer: WordPiece
) -> None:
    encoder = small_bert()
    config = Contrastive.Config(unit="sentence", positives="same", min_tokens=4)
    goals = [
        make_objective("contrastive", config, encoder, tokenizer, max_length=LENGTH, seed=2),
        make_objective("masked_lm", MaskedLM.Config(rate=0.3), encoder, tokenizer, max_length=LENGTH, seed=2),
    ]
    plan = goals[0].sequences(whole(long_shards), 0)
    assert (plan.pieces_SP2[0::2] == plan.pieces_SP2[1::2]).all()
    assert plan.groups_S is not None
    assert (np.bincount(plan.groups_S) == 2).all()
    packs = Packs(whole(long_shards), goals, BATCHES, specials=tokenizer.vocab, seed=2)
    batch = packs[BatchAddress()]
    partners = batch.targets["contrastive_partners"].numpy()
    texts = batch.ids_N.numpy()
    bounds = batch.bounds_B1.numpy()
    pairs = [(one, other) for one, other in enumerate(partners) if other > one]
    assert len(pairs) > 10
    differs = [texts[bounds[a] : bounds[a + 1]].tolist() != texts[bounds[b] : bounds[b + 1]].tolist() for a, b in pairs]
    assert np.mean(differs) > 0.5


def test_which_sequences_are_paired_changes_with_the_key() -> None:
    documents = np.repeat(np.arange(50), 7)
    first = pair_up(documents, key=rng.key(1))
    assert pair_up(documents, key=rng.key(1)).tolist() == first.tolist()
    assert pair_up(documents, key=rng.key(2)).tolist() != first.tolist()


def test_partners() -> None:
    assert partners_of(np.array([4, 4, 9, 2, 2])).tolist() == [1, 0, IGNORE, 4, 3]


@pytest.fixture
def packed(small_bert: Callable[..., Bert], shards: Shards, tokenizer: WordPiece) -> tuple[Bert, Contrastive, Batch]:
    encoder = small_bert()
    config = Contrastive.Config(pooling="mean", temperature=0.1)
    goal = make_objective("contrastive", config, encoder, tokenizer, max_length=LENGTH, seed=2)
    assert isinstance(goal, Contrastive)
    return encoder, goal, Packs(whole(shards), [goal], BATCHES, specials=tokenizer.vocab, seed=2)[BatchAddress()]


def test_the_loss_is_that_of_finding_the_partner(packed: tuple[Bert, Contrastive, Batch]) -> None:
    encoder, goal, batch = packed
    states = encoder(batch)
    num_real = int(batch.targets["contrastive_real"].sum())
    bounds = batch.bounds_B1.tolist()
    rows = [states.last_ND[bounds[i] : bounds[i + 1]].mean(0) for i in range(num_real)]
    vectors = torch.nn.functional.normalize(torch.stack(rows), dim=-1).detach()
    expected, count = 0.0, 0
    for row, partner in enumerate(batch.targets["contrastive_partners"][:num_real].tolist()):
        if partner == IGNORE:
            continue
        scores = vectors @ vectors[row] / 0.1
        scores[row] = -torch.inf
        expected += float(torch.logsumexp(scores, 0) - scores[partner])
        count += 1
    assert count > 4
    assert goal.counts(batch) == {"contrastive": count}
    assert float(goal.loss(states, batch).sums["contrastive"].detach()) == pytest.approx(expected, rel=1e-4)


def test_it_must_cut_the_text(small_bert: Callable[..., Bert], shards: Shards, tokenizer: WordPiece) -> None:
    encoder = small_bert()
    masked = make_objective("masked_lm", MaskedLM.Config(), encoder, tokenizer, max_length=LENGTH, seed=2)
    goal = make_objective("contrastive", Contrastive.Config(), encoder, tokenizer, max_length=LENGTH, seed=2)
    packs = Packs(whole(shards), [masked, goal], BATCHES, specials=tokenizer.vocab, seed=2)
    with pytest.raises(BadConfig, match="first objective"):
        packs[BatchAddress()]
