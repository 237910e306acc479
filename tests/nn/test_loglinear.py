"""Log-linear taggers over sparse features: loss and gradient equal to those of the torch taggers over a bag."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from firth.encoders.bag import Bag
from firth.nn import taggers
from firth.nn.schemes import legal_transitions
from firth.tensors import Batch
from firth.train.lbfgs import minimise

loglinear = pytest.importorskip("firth.nn.loglinear", exc_type=Exception)
KINDS = {"softmax": taggers.SoftmaxTagger, "memm": taggers.MEMMTagger, "crf": taggers.CRFTagger}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [4, 1 << 16])
@pytest.mark.parametrize("all_pairs", [False, True])
def test_loss_and_gradient_equal_autograd(
    kind: str, chunk: int, all_pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loglinear, "CHUNK", chunk)
    draw = np.random.default_rng(0)
    legal = legal_transitions(["B", "M", "E", "S"])
    tags, bounds = np.array([0, 2, 3, 0, 1, 2, 3]), np.array([0, 3, 3, 6, 7])
    sizes = draw.integers(0, 4, len(tags))
    parts, part_bounds = draw.integers(0, 6, sizes.sum()).astype(np.int32), np.cumsum([0, *sizes])
    function = loglinear.LogLinear(
        parts, part_bounds, tags, bounds, 6, kind, tuple(part.numpy() for part in vars(legal).values()), 0.3, all_pairs
    )
    x = draw.normal(size=function.num_weights)
    value, gradient = function(x)

    weights = loglinear.FeatureWeights.of(x, num_tags=4)
    table_RT = np.empty((6, 4))
    function.pairs.fill(weights.pairs_P, table_RT)
    bag = Bag(Bag.Config(vocab_size=6, width=4, combine="sum")).double()
    tagger = KINDS[kind](4, legal, linear=False).double()
    with torch.no_grad():
        bag.table.weight.copy_(torch.from_numpy(table_RT))
        for name, parameter in tagger.named_parameters():
            parameter.copy_(torch.from_numpy(getattr(weights, name)))
    tokens = torch.zeros(len(tags), dtype=torch.long)
    batch = Batch(
        tokens, tokens, tokens, torch.from_numpy(bounds), 3,
        parts_M=torch.from_numpy(parts).long(), part_bounds_N1=torch.from_numpy(part_bounds),
    )  # fmt: skip
    loss = tagger.loss(bag(batch).last_ND, torch.from_numpy(tags), bounds_B1=torch.from_numpy(bounds))
    loss.backward()
    assert value == pytest.approx(float(loss.detach()) + 0.3 * float(x @ x), rel=1e-9)
    slopes = loglinear.FeatureWeights.of(gradient - 0.6 * x, num_tags=4)
    seen_RT = np.zeros((6, 4), bool)
    seen_RT[parts, np.repeat(tags, sizes)] = True
    assert 0 < seen_RT.sum() < seen_RT.size
    seen_RT |= all_pairs
    np.testing.assert_allclose(slopes.pairs_P, bag.table.weight.grad.numpy()[seen_RT], atol=1e-9)
    for name, parameter in tagger.named_parameters():
        np.testing.assert_allclose(getattr(slopes, name), parameter.grad, atol=1e-9)


def _many_tags(*, num_rows: int = 4000, num_tags: int = 40, threads: int = 1) -> Any:
    """A MEMM over rows that have two tags each."""
    draw = np.random.default_rng(1)
    tags = draw.integers(0, num_tags, 6000)
    own_row = (tags + num_tags * draw.integers(0, num_rows // num_tags, len(tags))).astype(np.int32)
    next_row = (own_row + 1) % num_rows
    parts = np.stack([own_row, next_row], 1).astype(np.int32).ravel()
    anything = np.ones(num_tags, bool), np.ones((num_tags, num_tags), bool), np.ones(num_tags, bool)
    return loglinear.LogLinear(
        parts,
        np.arange(len(tags) + 1) * 2,
        tags,
        np.arange(0, len(tags) + 1, 10),
        num_rows,
        "memm",
        anything,
        0.1,
        threads=threads,
    )


def test_only_pairs_that_occur_have_a_weight() -> None:
    function = _many_tags()
    occurring = set(zip(function.parts_M.tolist(), np.repeat(function.tags_N, 2).tolist(), strict=True))
    assert function.num_weights == len(occurring) + 40 * 42
    table_RT = np.full((4000, 40), 7.0)
    function.pairs.fill(np.ones(len(occurring)), table_RT)
    assert {(int(row), int(tag)) for row, tag in np.argwhere(table_RT == 1)} == occurring
    assert (table_RT == 0).sum() == table_RT.size - len(occurring)


def test_training_needs_less_memory_than_one_table_of_all_pairs() -> None:
    function = _many_tags(num_rows=40_000)
    function(np.zeros(function.num_weights, np.float32))  # compiles
    tracemalloc.start()
    minimise(function, np.zeros(function.num_weights, np.float32), iterations=12, tolerance=0, scale=function.scale)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40_000 * 40 * 8


def test_float32_finds_what_float64_finds() -> None:
    function = _many_tags()
    options = {"iterations": 40, "scale": function.scale}
    narrow = minimise(function, np.zeros(function.num_weights, np.float32), **options)
    wide = minimise(function, np.zeros(function.num_weights), **options)
    assert narrow.dtype == np.float32
    assert function(narrow.astype(np.float64))[0] == pytest.approx(function(wide)[0], rel=1e-4)


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loglinear, "CHUNK", 500)
    x = np.random.default_rng(2).normal(size=_many_tags().num_weights).astype(np.float32)
    value, gradient = _many_tags(threads=1)(x)
    assert gradient.dtype == np.float32
    for threads in (2, 5):
        other_value, other_gradient = _many_tags(threads=threads)(x)
        assert other_value == value
        np.testing.assert_array_equal(other_gradient, gradient)
