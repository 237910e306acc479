"""XLNet's orders of prediction: their shares, what each position may see, memory, and batches of a fixed shape."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from firth.checkpoint import make_objective
from firth.data.loader import BatchAddress, Packs
from firth.data.packing import Pack, lay_out
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.encoders.bert import Bert
from firth.encoders.xlnet import XLNet
from firth.errors import BadConfig
from firth.nn.likelihood import IGNORE
from firth.objectives.permutation_lm import PermutationLM
from firth.tensors import CONTEXT_RANK, MEMORY_RANK, Batch
from firth.tokenizers.wordpiece import WordPiece
from firth.train.loop import Learner

LENGTH = 64
Maker = Callable[..., PermutationLM]


@pytest.fixture
def encoder(shrink: Callable[[Any], Any]) -> XLNet:
    torch.manual_seed(4)
    return XLNet(replace(shrink(XLNet.Config()), init_std=0.2)).eval()


@pytest.fixture
def goal(encoder: XLNet, tokenizer: WordPiece) -> Maker:
    def make(**changes: Any) -> PermutationLM:
        config = PermutationLM.Config(**changes)
        made = make_objective("permutation_lm", config, encoder, tokenizer, max_length=LENGTH, seed=2)
        assert isinstance(made, PermutationLM)
        return made

    return make


def ordered(goal: PermutationLM, shards: Shards, epoch: int, *, per_pack: int = 60) -> Iterator[Pack]:
    plan = goal.sequences(CorpusView(shards, np.arange(shards.num_documents)), epoch)
    for rows in np.array_split(np.arange(len(plan)), max(1, len(plan) // per_pack)):
        sizes = {"num_tokens": int(plan.lengths_S[rows].sum()), "max_length": LENGTH}
        pack = lay_out(shards, plan, rows, specials=goal.vocab, **sizes)
        goal.corrupt(pack, epoch)
        yield pack


def ranks_of(pack: Pack) -> np.ndarray:
    return pack.targets["permutation_lm_ranks"][: len(pack.ids_N)]


def predicted(pack: Pack) -> np.ndarray:
    labels = pack.targets["permutation_lm_labels"]
    return pack.targets["permutation_lm_queries"][labels != IGNORE]


@pytest.mark.parametrize("unit", ["token", "word", "span", "ngram"])
def test_shares_over_100_000_tokens(goal: Maker, long_shards: Shards, unit: str) -> None:
    candidates = chosen = memory = whole = 0
    for pack in ordered(goal(unit=unit), long_shards, 0):
        ranks = ranks_of(pack)
        is_memory = ranks == MEMORY_RANK
        tokens = predicted(pack)
        assert np.array_equal(np.flatnonzero(ranks >= 0), tokens)
        assert pack.ordinary_N[tokens].all()  # nothing special is predicted
        assert not is_memory[tokens].any()
        labels = pack.targets["permutation_lm_labels"]
        assert np.array_equal(labels[labels != IGNORE], pack.ids_N[tokens])
        candidates += int((pack.ordinary_N & ~is_memory).sum())
        chosen += len(tokens)
        memory += len(np.unique(pack.sequence_N[is_memory]))
        whole += len(pack.rows_B)
    assert candidates > 90_000
    # Spans of up to ten words may be longer than a sequence may predict, and are cut.
    assert abs(chosen / candidates - 1 / 6) < (0.012 if unit == "span" else 0.003)
    assert abs(memory / whole - 0.9 * 0.5) < 0.03


def test_ranks_are_random_orders_of_the_predicted_tokens(goal: Maker, long_shards: Shards) -> None:
    first = []
    for pack in ordered(goal(unit="token"), long_shards, 0):
        ranks = ranks_of(pack)
        for row in range(len(pack.rows_B)):
            mine = ranks[pack.bounds_B1[row] : pack.bounds_B1[row + 1]]
            order = mine[mine >= 0]
            assert sorted(order) == list(range(len(order)))
            if len(order) > 1:
                # Where in the text the first token of the order is, from 0 to 1.
                first.append(np.argmin(order) / (len(order) - 1))
    assert len(first) > 1000
    assert abs(np.mean(first) - 0.5) < 0.03
    assert set(np.unique(mine[mine < 0])) <= {CONTEXT_RANK, MEMORY_RANK}


def test_memory_is_the_whole_first_segment_and_nothing_else(goal: Maker, long_shards: Shards) -> None:
    num_memories = 0
    for pack in ordered(goal(), long_shards, 0):
        ranks = ranks_of(pack)
        for row in range(len(pack.rows_B)):
            inside = slice(pack.bounds_B1[row], pack.bounds_B1[row + 1])
            is_memory = ranks[inside] == MEMORY_RANK
            if is_memory.any():
                assert np.array_equal(is_memory, pack.segments_N[inside] == 0)
                num_memories += 1
    assert num_memories > 500
    for pack in ordered(goal(memory_rate=0.0), long_shards, 0):
        assert ranks_of(pack).min() == CONTEXT_RANK
    for pack in ordered(goal(pair_rate=0.0), long_shards, 0):
        assert ranks_of(pack).min() == CONTEXT_RANK


def test_draws_do_not_depend_on_how_sequences_fall_into_packs(goal: Maker, long_shards: Shards) -> None:
    for epoch in (0, 1):
        large = [ranks_of(pack) for pack in ordered(goal(), long_shards, epoch, per_pack=60)]
        small = [ranks_of(pack) for pack in ordered(goal(), long_shards, epoch, per_pack=13)]
        assert np.array_equal(np.concatenate(large), np.concatenate(small))


def test_epochs_differ_unless_they_are_to_repeat(goal: Maker, long_shards: Shards) -> None:
    def all_ranks(made: PermutationLM, epoch: int) -> list[int]:
        rows = [ranks_of(pack) for pack in ordered(made, long_shards, epoch)]
        joined: list[int] = np.concatenate(rows).tolist()
        return joined

    assert all_ranks(goal(), 0) != all_ranks(goal(), 1)
    assert all_ranks(goal(fresh=False), 0) == all_ranks(goal(fresh=False), 1)


@pytest.fixture
def batch(goal: Maker, shards: Shards, tokenizer: WordPiece) -> Batch:
    """A whole batch with filler, memories and an order."""
    made = goal()
    stream = CorpusView(shards, np.arange(shards.num_documents))
    packs = Packs(stream, [made], BatchConfig(max_length=LENGTH, tokens=512), specials=tokenizer.vocab, seed=3)
    found, _ = made.rewrite(packs[BatchAddress()])
    assert found.order is not None
    return found


def test_every_query_belongs_to_its_sequence_and_filler_has_no_label(batch: Batch) -> None:
    order = batch.order
    assert order is not None
    labels_P = batch.targets["permutation_lm_labels"]
    bounds, query_bounds = batch.bounds_B1.tolist(), order.query_bounds_B1.tolist()
    assert len(bounds) == len(query_bounds)
    assert query_bounds[-1] == len(order.queries_P) == len(labels_P)
    num_labels = 0
    for row in range(len(bounds) - 1):
        mine = slice(query_bounds[row], query_bounds[row + 1])
        assert mine.stop - mine.start <= order.max_queries
        is_label = labels_P[mine] != IGNORE
        tokens = order.queries_P[mine][is_label]
        assert ((tokens >= bounds[row]) & (tokens < bounds[row + 1])).all()
        num_labels += int(is_label.sum())
    assert num_labels == int((labels_P != IGNORE).sum()) > 40
    assert (labels_P == IGNORE).any()


def embedding_gradients(encoder: XLNet, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    """The states of the queries, and for each query the gradient of its state in the embeddings of all tokens."""
    kept: list[Tensor] = []
    handle = encoder.tokens.register_forward_hook(lambda module, inputs, output: kept.append(output))
    queries_PD = encoder(batch).queries_PD
    handle.remove()
    assert queries_PD is not None
    # A random direction: a plain sum of a normalised state would be constant.
    direction_D = torch.randn(queries_PD.shape[1])
    gradients = []
    for row in (batch.targets["permutation_lm_labels"] != IGNORE).nonzero().flatten():
        (gradient_ND,) = torch.autograd.grad(queries_PD[row] @ direction_D, kept[0], retain_graph=True)
        gradients.append(gradient_ND)
    return queries_PD, gradients


def test_no_position_sees_itself_or_what_comes_later(encoder: XLNet, batch: Batch) -> None:
    """The gradient is exactly zero there, in the memory and in other sequences, and nowhere else."""
    order = batch.order
    assert order is not None
    labels_P = batch.targets["permutation_lm_labels"]
    _, gradients = embedding_gradients(encoder, batch)
    rows_P = (labels_P != IGNORE).nonzero().flatten()
    sequence_N = torch.repeat_interleave(torch.arange(len(batch.bounds_B1) - 1), batch.bounds_B1.long().diff())
    assert len(gradients) == len(rows_P) > 40
    for row, gradient_ND in zip(rows_P, gradients, strict=True):
        token = order.queries_P[row]
        is_seen_N = (order.ranks_N < order.ranks_N[token]) & (sequence_N == sequence_N[token])
        has_gradient_N = gradient_ND.abs().amax(1) > 0
        assert torch.equal(has_gradient_N, is_seen_N & (order.ranks_N != MEMORY_RANK))


def test_what_is_not_seen_changes_nothing_and_memory_is_seen(encoder: XLNet, batch: Batch) -> None:
    order = batch.order
    assert order is not None
    labels_P = batch.targets["permutation_lm_labels"]
    with torch.inference_mode():
        before_PD = encoder(batch).queries_PD
        for row in (labels_P != IGNORE).nonzero().flatten()[::7].tolist():
            token = int(order.queries_P[row])
            ids_N = torch.where(order.ranks_N >= order.ranks_N[token], (batch.ids_N + 11) % 1200, batch.ids_N)
            after_PD = encoder(replace(batch, ids_N=ids_N)).queries_PD
            assert torch.equal(before_PD[row], after_PD[row])
        memory_N = order.ranks_N == MEMORY_RANK
        assert memory_N.any()
        ids_N = torch.where(memory_N, (batch.ids_N + 11) % 1200, batch.ids_N)
        after_PD = encoder(replace(batch, ids_N=ids_N)).queries_PD
    sequence_N = torch.repeat_interleave(torch.arange(len(batch.bounds_B1) - 1), batch.bounds_B1.long().diff())
    with_memory = set(sequence_N[memory_N].tolist())
    for row in (labels_P != IGNORE).nonzero().flatten().tolist():
        has_memory = int(sequence_N[order.queries_P[row]]) in with_memory
        assert torch.equal(before_PD[row], after_PD[row]) != has_memory


def test_packed_with_static_shapes_equals_grouped_by_length(encoder: XLNet, batch: Batch) -> None:
    """The path of a GPU, where all sequences form one group, gives the same states and gradients."""
    order = batch.order
    assert order is not None
    is_real_P = batch.targets["permutation_lm_labels"] != IGNORE
    found = []
    for one_group in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if one_group:
                patch.setattr("firth.nn.layout.Layout.is_one_group", property(lambda self: True))
            encoder.zero_grad()
            states = encoder(batch)
            states.queries_PD[is_real_P].square().mul(torch.arange(states.queries_PD.shape[1])).sum().backward()
            gradients = [parameter.grad.clone() for parameter in encoder.parameters()]
            found.append([states.last_ND.detach(), states.queries_PD[is_real_P].detach(), *gradients])
    for one, other in zip(*found, strict=True):
        assert float((one - other).abs().max()) < 1e-5 * max(1.0, float(one.abs().max()))


def test_loss_is_the_mean_surprise_of_a_uniform_model(shrink: Callable[[Any], Any], goal: Maker, batch: Batch) -> None:
    encoder = XLNet(replace(shrink(XLNet.Config()), init_std=0.0))
    loss = Learner(encoder, {"permutation_lm": goal()})(batch).sums["permutation_lm"]
    count = goal().counts(batch)["permutation_lm"]
    assert float(loss.detach()) / count == pytest.approx(np.log(encoder.vocab_size), rel=1e-4)


def test_a_share_of_the_runs_is_cut_into_single_sentences(goal: Maker, long_shards: Shards) -> None:
    view = CorpusView(long_shards, np.arange(long_shards.num_documents))
    pieces_SP2 = goal(pair_rate=0.0, sentence_rate=1.0).sequences(view, 0).pieces_SP2
    assert len(pieces_SP2) > len(goal(pair_rate=0.0).sequences(view, 0))
    starts = long_shards.sentences
    first_S, last_S = pieces_SP2[:, 0].T
    assert (np.searchsorted(starts, last_S) == np.searchsorted(starts, first_S, side="right")).all()


def test_what_does_not_go_is_refused(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> None:
    with pytest.raises(BadConfig, match="needs an encoder with two streams, such as xlnet"):
        make_objective("permutation_lm", PermutationLM.Config(), small_bert(), tokenizer)
    for wrong in (
        {"rate": 0.0},
        {"rate": 1.0},
        {"pair_rate": 2.0},
        {"sentence_rate": 2.0},
        {"memory_rate": -1.0},
        {"unit": "entity"},
    ):
        with pytest.raises(BadConfig, match=r"objectives\.permutation_lm"):
            PermutationLM.Config(**wrong)
    with pytest.raises(BadConfig, match="must be even"):
        XLNet.Config(width=9, num_heads=1)
