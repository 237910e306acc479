"""The causal LM: full windows over all documents, labels, the loss in pieces, both directions."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from firth import rng
from firth.checkpoint import make_objective
from firth.data.joined import join
from firth.data.loader import BatchAddress, Packs
from firth.data.packing import lay_out, pack_tokens
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.encoders.bert import Bert
from firth.nn import likelihood
from firth.nn.likelihood import IGNORE
from firth.objectives.causal_lm import CausalLM, next_tokens
from firth.tensors import Batch, States
from firth.tokenizers.wordpiece import WordPiece

LENGTH = 64


@pytest.fixture
def stream(shards: Shards) -> CorpusView:
    return CorpusView(shards, np.arange(0, shards.num_documents, 2))


@pytest.fixture
def goal(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> CausalLM:
    made = make_objective("causal_lm", CausalLM.Config(), small_bert(), tokenizer, max_length=LENGTH, seed=5)
    assert isinstance(made, CausalLM)
    return made


def test_the_line_is_every_document_and_its_end(stream: CorpusView, tokenizer: WordPiece) -> None:
    joined, shards = join(stream, end=tokenizer.vocab.sep), stream.shards
    ids, own, starts = joined.read(shards, np.arange(len(joined)))
    wanted: list[int] = []
    for document in stream.documents_D:
        first, last = shards.sentences[shards.documents[[document, document + 1]]]
        wanted += [*shards.ids[first:last].tolist(), tokenizer.vocab.sep]
    assert ids.tolist() == wanted
    assert (ids[~own] == tokenizer.vocab.sep).all()
    assert (~own).sum() == len(stream.documents_D)
    assert starts[~own].all()


@pytest.mark.parametrize("epoch", [0, 1])
def test_windows_are_full_and_hold_every_token_once(stream: CorpusView, goal: CausalLM, epoch: int) -> None:
    plan = goal.sequences(stream, epoch)
    assert (plan.lengths_S[1:-1] == LENGTH).all()
    assert plan.lengths_S.max() == LENGTH
    pieces = plan.pieces_SP2[:, 0]
    assert (pieces[1:, 0] == pieces[:-1, 1]).all()
    assert pieces[0, 0] <= 1  # a window of one token would have nothing to predict
    assert plan.joined is not None
    assert len(plan.joined) - pieces[-1, 1] <= 1


def test_windows_begin_elsewhere_every_epoch(stream: CorpusView, goal: CausalLM) -> None:
    assert len({int(goal.sequences(stream, epoch).pieces_SP2[0, 0, 1]) for epoch in range(5)}) > 1


def test_labels_are_the_next_tokens(stream: CorpusView, goal: CausalLM, tokenizer: WordPiece) -> None:
    batch = Packs(stream, [goal], BatchConfig(LENGTH, 1024), specials=tokenizer.vocab, seed=5)[BatchAddress()]
    labels, ids = batch.targets["causal_lm_labels"].tolist(), batch.ids_N.tolist()
    bounds = batch.bounds_B1.tolist()
    real = [i for i in range(len(ids)) if labels[i] != IGNORE]
    assert all(labels[i] == ids[i + 1] for i in real)
    assert not {bound - 1 for bound in bounds[1:]} & {*real}
    assert goal.counts(batch) == {"causal_lm": len(real)}
    assert len(real) > 900
    plan = goal.sequences(stream, 0)
    pack = lay_out(stream.shards, plan, np.array([3]), specials=tokenizer.vocab, num_tokens=LENGTH, max_length=LENGTH)
    assert pack.ids_N[0] == tokenizer.vocab.cls
    assert pack.ids_N[-1] != tokenizer.vocab.sep or not pack.ordinary_N[-1]


def made(count: int, width: int, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    x, table = torch.randn(count, width), torch.randn(vocab_size, width)
    labels = torch.from_numpy(rng.below(rng.key("labels"), vocab_size, np.arange(count)))
    labels[::7] = IGNORE
    return x.requires_grad_(), labels, table.requires_grad_()


def test_pieces_change_neither_loss_nor_gradient(goal: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    x_ND, labels_N, table_VD = made(100, 32, goal.size)
    wanted = cross_entropy(x_ND @ table_VD.T, labels_N, ignore_index=IGNORE, reduction="sum")
    gradients = torch.autograd.grad(wanted, (x_ND, table_VD))
    for piece in (1 << 25, goal.size * 9):
        monkeypatch.setattr(likelihood, "PIECE", piece)
        total, right = goal.summed(x_ND, labels_N, table_VD)
        assert total.item() == pytest.approx(wanted.item(), rel=1e-5)
        for ours, theirs in zip(torch.autograd.grad(total, (x_ND, table_VD)), gradients, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-4)
    assert right == ((x_ND @ table_VD.T).argmax(1) == labels_N).sum()


def test_scores_never_all_exist_at_once(goal: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    x_ND, labels_N, table_VD = made(300, 32, goal.size)
    monkeypatch.setattr(likelihood, "PIECE", goal.size * 10)
    largest = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: largest.append(t.numel()) or t, lambda t: t):
        goal.summed(x_ND, labels_N, table_VD)[0].backward()
    assert max(largest) <= max(table_VD.numel(), goal.size * 10)


def test_both_directions(small_bert: Callable[..., Bert], tokenizer: WordPiece, stream: CorpusView) -> None:
    config = CausalLM.Config(directions="both", tied=False, bias=True)
    goal = make_objective("causal_lm", config, small_bert(), tokenizer, max_length=LENGTH, seed=5)
    assert isinstance(goal, CausalLM)
    batch = Packs(stream, [goal], BatchConfig(LENGTH, 1024), specials=tokenizer.vocab, seed=5)[BatchAddress()]
    torch.manual_seed(1)
    x_ND = torch.randn(1024, 32)
    loss = goal.loss(States(x_ND, torch.empty(1216, 32)), batch)
    ids, bounds = batch.ids_N.tolist(), batch.bounds_B1.tolist()
    real = int((batch.targets["causal_lm_labels"] != IGNORE).sum())
    for name, half, step in (("causal_lm", x_ND[:, :16], 1), ("causal_lm_backward", x_ND[:, 16:], -1)):
        shares = goal.scores(half, torch.empty(0)).log_softmax(1).detach()
        total = count = 0.0
        for start, end in pairwise(bounds):
            if count < real:
                places = [i for i in range(start, end) if start <= i + step < end]
                total -= sum(float(shares[i, ids[i + step]]) for i in places)
                count += len(places)
        assert goal.counts(batch)[name] == count
        assert loss.sums[name].item() == pytest.approx(total, rel=1e-4)


def test_next_tokens_of_a_tasks_batch() -> None:
    batch = pack_tokens([np.array([5, 6, 7]), np.array([8]), np.array([9, 10])])
    assert next_tokens(batch).tolist() == [6, 7, IGNORE, IGNORE, 10, IGNORE]
    empty = torch.tensor([0, 3, 4, 6, 6], dtype=torch.int32)
    assert next_tokens(Batch(batch.ids_N, batch.positions_N, batch.segments_N, empty, 3))[-1] == IGNORE


def test_words_beyond_the_predicted_ones_are_unknown(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> None:
    config = CausalLM.Config(num_words=100)
    goal = make_objective("causal_lm", config, small_bert(), tokenizer, max_length=LENGTH, seed=5)
    assert isinstance(goal, CausalLM)
    assert goal.known(torch.tensor([5, 99, 100, IGNORE])).tolist() == [5, 99, tokenizer.vocab.unk, IGNORE]
    assert goal.scores(torch.zeros(2, 32), torch.zeros(1216, 32)).shape == (2, 100)
