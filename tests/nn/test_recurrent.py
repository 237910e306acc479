"""Recurrent layers over walked sequences, against torch's own on each sequence alone."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from firth.nn.recurrent import ClippedLSTM, DroppedLSTM, bidirectional, same_mask
from firth.nn.walk import Walk

BOUNDS = torch.tensor([0, 5, 5, 38, 39, 60], dtype=torch.int32)
SPANS = [(a, b) for a, b in pairwise(BOUNDS.tolist()) if b > a]


@pytest.fixture
def walk() -> Walk:
    return Walk(BOUNDS, torch.device("cpu"))


@pytest.fixture
def x_ND() -> Tensor:
    torch.manual_seed(4)
    return torch.randn(60, 8)


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_without_clipping_it_is_a_projected_lstm(direction: int, walk: Walk, x_ND: Tensor) -> None:
    layer, known = ClippedLSTM(8, 4, cell_width=16, clip=1e9), nn.LSTM(8, 16, proj_size=4)
    layer.bias.data.normal_()
    with torch.no_grad():
        known.weight_ih_l0.copy_(layer.input_2DF[direction].T)
        known.weight_hh_l0.copy_(layer.recurrent_2DF[direction].T)
        known.weight_hr_l0.copy_(layer.project_2FD[direction].T)
        known.bias_ih_l0.copy_(layer.bias.view(2, -1)[direction])
        known.bias_hh_l0.zero_()
    out_2ND, (out, cell) = layer(x_ND[walk.rows_N].expand(2, -1, -1), walk)
    alone = [known(x_ND[a:b]) for a, b in SPANS]
    torch.testing.assert_close(out_2ND[direction, walk.place_N], torch.cat([states for states, _ in alone]))
    longest_first = sorted(range(len(SPANS)), key=lambda i: SPANS[i][0] - SPANS[i][1])
    for rank, i in enumerate(longest_first):
        torch.testing.assert_close(out[direction, rank], alone[i][1][0][0])
        torch.testing.assert_close(cell[direction, rank], alone[i][1][1][0])


def test_cell_and_output_stay_within_the_clip_and_the_memory_goes_on(walk: Walk, x_ND: Tensor) -> None:
    torch.manual_seed(5)
    layer = ClippedLSTM(8, 4, cell_width=16, clip=0.3)
    layer.bias.data.fill_(2.0)
    out_2ND, (_, cell) = layer(x_ND[walk.rows_N].expand(2, -1, -1), walk)
    assert out_2ND.abs().max() == cell.abs().max() == torch.tensor(0.3)
    layer.clip = 1e9
    assert layer(x_ND[walk.rows_N].expand(2, -1, -1), walk)[1][1].abs().max() > 0.3
    whole, first, rest = (Walk(torch.tensor([0, n]), torch.device("cpu")) for n in (9, 5, 4))
    steps_2ND = x_ND[:9].expand(2, -1, -1)
    together, _ = layer(steps_2ND, whole)
    before, memory = layer(steps_2ND[:, :5], first)
    after, _ = layer(steps_2ND[:, 5:], rest, memory)
    torch.testing.assert_close(torch.cat([before, after], 1), together)


def test_without_dropping_it_is_an_lstm_and_with_it_the_gradient_is_right(walk: Walk, x_ND: Tensor) -> None:
    layer, known = DroppedLSTM(8, 6, rate=0.5).eval(), nn.LSTM(8, 6)
    for ours, theirs in zip(layer.parameters(), known.parameters(), strict=True):
        theirs.data.copy_(ours.data)
    alone = torch.cat([known(x_ND[a:b])[0] for a, b in SPANS])
    torch.testing.assert_close(layer(x_ND[walk.rows_N], walk)[walk.place_N], alone)
    layer.train()
    torch.manual_seed(1)
    layer(x_ND[walk.rows_N], walk).sum().backward()
    grad = layer.recurrent_weight.grad
    assert grad is not None
    assert 0.35 < float((grad == 0).float().mean()) < 0.65  # what was dropped did not learn


def test_one_mask_for_all_tokens_of_a_sequence(walk: Walk) -> None:
    torch.manual_seed(2)
    x_ND = torch.ones(60, 40)
    dropped = same_mask(x_ND, 0.25, walk, training=True)[walk.place_N]
    for a, b in SPANS:
        assert torch.equal(dropped[a:b], dropped[a].expand(b - a, -1))
    assert not torch.equal(dropped[0], dropped[5])
    assert dropped.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert same_mask(x_ND, 0.25, walk, training=False) is x_ND


def test_both_ways_is_torchs_own_lstm(x_ND: Tensor) -> None:
    torch.manual_seed(1)
    lstm = nn.LSTM(8, 6, bidirectional=True)
    x_ND.requires_grad_()
    known = torch.cat([lstm(x_ND[first:last])[0] for first, last in SPANS])
    parameters = [x_ND, *lstm.parameters()]
    wanted = torch.autograd.grad(known.square().sum(), parameters)
    found = bidirectional(lstm, x_ND, BOUNDS)
    slopes = torch.autograd.grad(found.square().sum(), parameters)
    torch.testing.assert_close(found, known, rtol=1e-5, atol=1e-6)
    for slope, want in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(slope, want, rtol=1e-4, atol=1e-5)
    assert bidirectional(lstm, x_ND[:0], torch.tensor([0, 0], dtype=torch.int32)).shape == (0, 12)
