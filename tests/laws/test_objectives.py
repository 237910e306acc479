"""Laws of every objective in the table."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from firth import encoders, objectives, rng
from firth.checkpoint import make_objective
from firth.config import from_dict, to_dict
from firth.data.loader import BatchAddress, Packs
from firth.data.packing import lay_out
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.objectives.objective import Objective
from firth.objectives.reconstruction import ReconstructionObjective
from firth.tensors import Batch, Encoder
from firth.tokenizers.sentinels import with_sentinels
from firth.tokenizers.wordpiece import WordPiece
from firth.train.loop import Learner

CONFIG = BatchConfig(max_length=64, tokens=1024)
Maker = Callable[[], tuple[Encoder, Objective, Packs]]
ENCODERS = {
    "mass": "transformer",
    "span_corruption": "transformer",
    "denoising": "transformer",
    "permutation_lm": "xlnet",
}
"""Objectives that need another encoder than a BERT."""


@pytest.fixture(params=[name for name in objectives.TABLE if issubclass(objectives.resolve(name), Objective)])
def make(request: pytest.FixtureRequest, shrink: Callable[[Any], Any], shards: Shards, tokenizer: WordPiece) -> Maker:
    """A new encoder, objective and packs, the same each time."""
    extended = with_sentinels(tokenizer, 16)

    def build() -> tuple[Encoder, Objective, Packs]:
        encoder_class = encoders.resolve(ENCODERS.get(request.param, "bert"))
        torch.manual_seed(1)
        encoder = encoder_class(replace(shrink(encoder_class.Config()), vocab_size=len(extended.vocab)))
        goals = [
            make_objective(
                name, objectives.resolve(name).Config(), encoder, extended, max_length=CONFIG.max_length, seed=5
            )
            for name in (*objectives.resolve(request.param).requires, request.param)
        ]
        stream = CorpusView(shards, np.arange(shards.num_documents))
        return encoder, goals[-1], Packs(stream, goals, CONFIG, specials=extended.vocab, seed=5)

    return build


def same(one: Batch, other: Batch) -> bool:
    tensors = [(one.ids_N, other.ids_N), (one.bounds_B1, other.bounds_B1)]
    if one.source and other.source:
        tensors += [(one.source.ids_N, other.source.ids_N), (one.source.bounds_B1, other.source.bounds_B1)]
    tensors += [(one.targets[name], other.targets[name]) for name in one.targets]
    return one.targets.keys() == other.targets.keys() and all(torch.equal(a, b) for a, b in tensors)


def test_same_key_same_batch_other_epoch_other_batch(make: Maker) -> None:
    first, second = make()[2], make()[2]
    second[BatchAddress(3, 1)]  # what was asked for before does not matter
    assert same(first[BatchAddress(0, 2)], second[BatchAddress(0, 2)])
    assert not same(first[BatchAddress(0, 2)], first[BatchAddress(0, 3)])
    assert not same(first[BatchAddress(0, 2)], first[BatchAddress(1, 2)])


def test_special_tokens_are_never_touched(make: Maker, tokenizer: WordPiece) -> None:
    _, goal, packs = make()
    if isinstance(goal, ReconstructionObjective):
        pytest.skip("source and target have other tokens than the text: see tests/objectives/test_reconstruction.py")
    plan = packs.objectives[0].sequences(packs.stream, 0)
    for rows in np.array_split(rng.permutation(rng.key("rows"), len(plan)), 20):
        sizes = {"num_tokens": int(plan.lengths_S[rows].sum()), "max_length": CONFIG.max_length}
        before = lay_out(packs.stream.shards, plan, rows, specials=tokenizer.vocab, **sizes)
        after = lay_out(packs.stream.shards, plan, rows, specials=tokenizer.vocab, **sizes)
        for objective in packs.objectives:
            objective.corrupt(after, 0)
        assert np.array_equal(before.ids_N[~before.ordinary_N], after.ids_N[~before.ordinary_N])
        specials = {tokenizer.vocab.cls, tokenizer.vocab.sep}
        assert {tokenizer.vocab.cls} <= set(before.ids_N[~before.ordinary_N].tolist()) <= specials
        assert not specials & set(after.ids_N[before.ordinary_N].tolist())


def test_counts_and_sums_have_the_same_names(make: Maker) -> None:
    encoder, goal, packs = make()
    loss, counts = Learner(encoder, {"goal": goal})(packs[BatchAddress()]), goal.counts(packs[BatchAddress()])
    assert loss.sums.keys() == counts.keys()
    assert set(list(goal.word_losses)[:1]) <= loss.sums.keys()
    assert all(count > 0 for count in counts.values())
    for name, total in loss.tallies.items():
        whole = loss.tallies.get(f"{name}_of", counts[name.removesuffix("_correct")] if "_correct" in name else total)
        assert total >= 0
        assert total <= whole or name.endswith("_loss")


def test_gradient_reaches_the_encoder(make: Maker) -> None:
    encoder, goal, packs = make()
    loss = Learner(encoder, {"goal": goal})(packs[BatchAddress()])
    torch.stack(list(loss.sums.values())).sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in goal.parameters())
    parameters = {name: parameter for name, parameter in encoder.named_parameters() if "pooler" not in name}
    assert all(p.grad is not None and p.grad.isfinite().all() for n, p in parameters.items() if "blocks." in n)
    assert all(p.grad.abs().max() > 0 for n, p in parameters.items() if n.endswith("tokens.weight"))


def test_loss_falls(make: Maker) -> None:
    encoder, goal, packs = make()
    batch = packs[BatchAddress()]
    optimizer = torch.optim.AdamW(dict.fromkeys([*encoder.parameters(), *goal.parameters()]), lr=3e-3)
    losses = []
    for _ in range(15):
        loss = Learner(encoder, {"goal": goal})(batch)
        mean = torch.stack([total / goal.counts(batch)[name] for name, total in loss.sums.items()]).sum()
        mean.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(mean.detach()))
    assert losses[-1] < 0.9 * losses[0]


def test_config_survives_json(make: Maker) -> None:
    goal = make()[1]
    assert from_dict(type(goal.config), to_dict(goal.config)) == goal.config
