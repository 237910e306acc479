"""Bengio's network: scores and gradients equal the paper's equation written out; the future is not seen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth.encoders.static import Static
from firth.objectives.nnlm import Nnlm
from firth.tensors import Batch, States
from firth.tokenizers.vocab import SPECIALS, Frame, Vocab
from firth.train.journal import read_rows

VOCAB = Vocab((*SPECIALS, *"abcdefg"), own_frame=Frame())
SEQUENCES = ([5, 6, 7, 8, 9], [6, 6], [11, 10, 5, 7])


@pytest.fixture
def batch() -> Batch:
    ids = torch.tensor([word for row in SEQUENCES for word in row])
    positions = torch.cat([torch.arange(len(row)) for row in SEQUENCES])
    bounds = torch.tensor([0, *np.cumsum([len(row) for row in SEQUENCES])], dtype=torch.int32)
    return Batch(ids, positions, torch.zeros_like(ids), bounds, 5, {"nnlm_labels": ids})


def build(*, direct: bool) -> tuple[Static, Nnlm]:
    torch.manual_seed(2)
    encoder = Static(Static.Config(vocab_size=len(VOCAB), width=3, init_std=1.0)).double()
    goal = Nnlm(Nnlm.Config(order=4, hidden=5, direct=direct), encoder, vocab=VOCAB, max_length=8, seed=1).double()
    for parameter in goal.parameters():
        torch.nn.init.normal_(parameter)
    return encoder, goal


def by_hand(encoder: Static, goal: Nnlm) -> torch.Tensor:
    """b + W x + U tanh(d + H x), word by word; the sum of -log softmax at each word."""
    table, total = encoder.table.weight, torch.zeros((), dtype=torch.float64)
    for row in SEQUENCES:
        for place, word in enumerate(row):
            before = [table[row[place - i]] if place >= i else torch.zeros(3, dtype=torch.float64) for i in (1, 2, 3)]
            x = torch.cat(before)
            scores = goal.out.bias + goal.out.weight @ torch.tanh(goal.hidden.bias + goal.hidden.weight @ x)
            if goal.direct is not None:
                scores = scores + goal.direct.weight @ x
            total = total - (scores[word] - scores.exp().sum().log())
    return total


@pytest.mark.parametrize("direct", [False, True])
def test_loss_and_gradients_are_the_papers(batch: Batch, direct: bool) -> None:
    encoder, goal = build(direct=direct)
    loss = goal.loss(States(encoder(batch).last_ND.double(), encoder.table.weight), batch).sums["nnlm"]
    wanted = by_hand(encoder, goal)
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), rel=1e-6)
    parameters = [encoder.table.weight, *goal.parameters()]
    assert len(parameters) == 5 + direct
    ours, theirs = torch.autograd.grad(loss, parameters), torch.autograd.grad(wanted, parameters)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)
        assert other.abs().max() > 0


def test_a_word_is_predicted_without_looking_at_it(batch: Batch) -> None:
    encoder, goal = build(direct=True)
    x_ND = encoder(batch).last_ND.double()
    before = goal.scores(x_ND, batch.positions_N)
    x_ND = x_ND.clone()
    x_ND[3] += 1
    changed = (goal.scores(x_ND, batch.positions_N) != before).any(1)
    assert changed.tolist() == [False] * 4 + [True] + [False] * 6  # word 4 sees it; the next sequence does not


def test_perplexity_falls_and_is_reported(texts: list[Path], tmp_path: Path, command: Callable[..., Any]) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(path.read_text("utf-8") for path in texts), "utf-8")
    changes = ["batches.max_length=32", "batches.tokens=512", "train.log_every=10", "batches.held_out_rate=0.1"]
    changes += ["encoder.static.width=16", "objectives.nnlm.hidden=32", "train.optim.rate=1e-2"]
    figures = firth.pretrain(tmp_path / "text.txt", out=tmp_path / "run", recipe="nnlm", steps=60, changes=changes)
    assert figures["perplexity"] == pytest.approx(np.exp(figures["nnlm"]))
    rows = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if row["split"] == "train"]
    assert rows[-1]["nnlm"] < rows[0]["nnlm"] - 0.5
    measured = firth.evaluate(tmp_path / "run", data=tmp_path / "run" / "data")
    assert 1 < measured["perplexity"] < np.exp(rows[0]["nnlm"])
    assert len(firth.load(tmp_path / "run").neighbours("the", top=3)) == 3
