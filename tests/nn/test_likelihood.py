"""Cross-entropy in pieces: losses, counts and gradients are those of the plain computation."""

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from firth.nn import likelihood
from firth.nn.likelihood import IGNORE, summed_cross_entropy

ROWS = 50
WIDTH = 8
VOCAB = 30


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_pieces_equal_the_whole(smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x_PE = torch.randn(ROWS, WIDTH, requires_grad=True)
    weight_VE = torch.randn(VOCAB, WIDTH, requires_grad=True)
    bias_V = torch.randn(VOCAB, requires_grad=True)
    labels_P = torch.randint(VOCAB, (ROWS,))
    labels_P[::5] = IGNORE
    inputs = [x_PE, weight_VE, bias_V]
    scores_PV = linear(x_PE, weight_VE, bias_V)
    wanted = cross_entropy(scores_PV, labels_P, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
    wanted_grads = torch.autograd.grad(wanted, inputs)

    monkeypatch.setattr(likelihood, "PIECE", 7 * VOCAB)  # the last piece is shorter
    total, correct = summed_cross_entropy(x_PE, weight_VE, bias_V, labels_P=labels_P, smoothing=smoothing)
    grads = torch.autograd.grad(total, inputs)

    assert torch.allclose(total, wanted, rtol=1e-5)
    assert int(correct) == int((scores_PV.argmax(1) == labels_P).sum()) > 0
    for found, expected in zip(grads, wanted_grads, strict=True):
        assert torch.allclose(found, expected, atol=1e-5)
    with torch.no_grad():
        unlearned, _ = summed_cross_entropy(x_PE, weight_VE, bias_V, labels_P=labels_P, smoothing=smoothing)
    assert torch.allclose(unlearned, wanted, rtol=1e-5)


def test_of_equal_scores_the_first_is_the_answer() -> None:
    """In half precision scores are often equal: a label that ties with an earlier token is not counted as right."""
    x_PE = torch.ones(3, 1)
    weight_VE = torch.tensor([[1.0], [2.0], [2.0]])
    labels_P = torch.tensor([1, 2, 0])
    _, correct = summed_cross_entropy(x_PE, weight_VE, None, labels_P=labels_P)
    assert int(correct) == 1
