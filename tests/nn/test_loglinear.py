"""Log-linear taggers over sparse features: loss and gradient equal to those of the torch taggers over a bag."""

import numpy as np
import pytest
import torch

from firth.encoders.bag import Bag
from firth.nn import taggers
from firth.nn.schemes import legal_transitions
from firth.tensors import Batch

loglinear = pytest.importorskip("firth.nn.loglinear", exc_type=Exception)
KINDS = {"softmax": taggers.SoftmaxTagger, "memm": taggers.MEMMTagger, "crf": taggers.CRFTagger}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [4, 1 << 16])
def test_loss_and_gradient_equal_autograd(kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loglinear, "CHUNK", chunk)
    draw = np.random.default_rng(0)
    legal = legal_transitions(["B", "M", "E", "S"])
    tags, bounds = np.array([0, 2, 3, 0, 1, 2, 3]), np.array([0, 3, 3, 6, 7])
    sizes = draw.integers(0, 4, len(tags))
    parts, part_bounds = draw.integers(0, 6, sizes.sum()).astype(np.int32), np.cumsum([0, *sizes])
    function = loglinear.LogLinear(
        parts, part_bounds, tags, bounds, 6, kind, tuple(part.numpy() for part in vars(legal).values()), 0.3
    )
    x = draw.normal(size=function.num_weights)
    value, gradient = function(x)

    weights = loglinear.Weights.of(x, num_tags=4)
    bag = Bag(Bag.Config(vocab_size=6, width=4, combine="sum")).double()
    tagger = KINDS[kind](4, legal, linear=False).double()
    with torch.no_grad():
        bag.table.weight.copy_(torch.from_numpy(weights.table_RT))
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
    slopes = loglinear.Weights.of(gradient - 0.6 * x, num_tags=4)
    np.testing.assert_allclose(slopes.table_RT, bag.table.weight.grad, atol=1e-9)
    for name, parameter in tagger.named_parameters():
        np.testing.assert_allclose(getattr(slopes, name), parameter.grad, atol=1e-9)
