"""Dropout on the CPU: how many are dropped, what the others become, and that nothing else changes."""

import pytest
import torch

from firth.nn.attention import Fused, attend
from firth.nn.dropout import STEPS, Dropout, draw_kept, dropout, dropped_attention
from firth.nn.layout import Layout

RATES = (0.1, 0.3, 0.5)
PRECISIONS = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("rate", RATES)
def test_the_share_kept_is_that_of_the_rate_and_draws_are_independent(rate: float) -> None:
    torch.manual_seed(1)
    num_draws = 10_000_000
    kept_E, scale = draw_kept(torch.Size([num_draws]), rate)
    share = 1 / scale
    assert abs(share - (1 - rate)) <= 0.5 / STEPS
    assert set(kept_E.unique().tolist()) == {0, 1}
    deviation = (share * (1 - share) / num_draws) ** 0.5
    assert abs(float(kept_E.double().mean()) - share) < 4.5 * deviation
    # Each quarter of the words' bits by itself, and neighbours: the four draws of one word are four draws.
    for place in range(4):
        assert abs(float(kept_E[place::4].double().mean()) - share) < 4.5 * 2 * deviation
    for distance in (1, 2, 3, 4):
        both = (kept_E[distance:] * kept_E[:-distance]).double().mean()
        expected = share**2
        # The products of overlapping pairs are correlated: their variance is at most three times that of free ones.
        allowed = (3 * expected * (1 - expected) / num_draws) ** 0.5
        assert abs(float(both) - expected) < 4.5 * allowed


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_mean_and_variance_of_what_is_left(rate: float, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    num_draws = 10_000_000
    dropped_E = dropout(torch.ones(num_draws, dtype=dtype), rate).double()
    # 1 / (1 - rate) is rounded once, in this precision.
    largest = float(torch.tensor(STEPS / (STEPS - round(rate * STEPS))).to(dtype))
    assert set(dropped_E.unique().tolist()) == {0.0, largest}
    share = 1 - round(rate * STEPS) / STEPS
    variance = largest**2 * share * (1 - share)
    assert abs(float(dropped_E.mean()) - largest * share) < 4.5 * (variance / num_draws) ** 0.5
    assert float(dropped_E.var()) == pytest.approx(variance, rel=0.005)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_the_gradient_is_the_mask_times_the_scale(dtype: torch.dtype) -> None:
    x_ND = torch.randn(33, 7, dtype=dtype, requires_grad=True)  # not a multiple of four numbers
    gradient_ND = torch.randn(33, 7, dtype=dtype)
    torch.manual_seed(3)
    out_ND = dropout(x_ND, 0.3)
    out_ND.backward(gradient_ND)
    torch.manual_seed(3)
    kept_ND, scale = draw_kept(x_ND.shape, 0.3)
    assert out_ND.dtype == dtype
    assert 0 < int(kept_ND.sum()) < kept_ND.numel()
    assert torch.equal(out_ND, x_ND.detach() * kept_ND * scale)
    assert x_ND.grad is not None
    assert torch.equal(x_ND.grad, gradient_ND * scale * kept_ND)


def test_what_is_kept_until_the_backward_pass_is_a_byte_a_number() -> None:
    x_ND = torch.randn(64, 32, requires_grad=True)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor), lambda none: none):
        dropout(x_ND, 0.1)
    assert sum(tensor.nbytes for tensor in saved if tensor.ndim) == x_ND.numel()


def test_the_seed_decides_the_mask() -> None:
    x_ND = torch.randn(50, 20)
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks.append(dropout(x_ND, 0.5))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
    # The next draw of the same seed is another one.
    assert not torch.equal(masks[2], dropout(x_ND, 0.5))


@pytest.mark.parametrize("shape", [(0, 4), (1,), (3,), (5, 1)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    assert dropout(torch.ones(shape), 0.5).shape == shape


def test_nothing_happens_in_evaluation_and_at_rate_0() -> None:
    x_ND = torch.randn(8, 4)
    state = torch.random.get_rng_state()
    assert Dropout(0.5).eval()(x_ND) is x_ND
    assert Dropout(0.0)(x_ND) is x_ND
    assert torch.equal(torch.random.get_rng_state(), state)


def test_attention_drops_the_weights_that_the_mask_says() -> None:
    layout, fused = _pack((5, 5, 5))
    gradient_NHK = torch.randn(15, 2, 8)
    torch.manual_seed(4)
    out_NHK = attend(fused, layout, layout, dropout=0.3)
    (found,) = torch.autograd.grad(out_NHK, fused.qkv_N3HK, gradient_NHK)

    torch.manual_seed(4)
    kept_GHLS, scale = draw_kept(torch.Size([3, 2, 5, 5]), 0.3)
    q_GHLK, k_GHLK, v_GHLK = fused.qkv_N3HK.view(3, 5, 3, 2, 8).permute(2, 0, 3, 1, 4)
    weights_GHLS = (q_GHLK @ k_GHLK.transpose(2, 3) / 8**0.5).softmax(-1) * kept_GHLS * scale
    reference_NHK = (weights_GHLS @ v_GHLK).transpose(1, 2).reshape(15, 2, 8)
    (wanted,) = torch.autograd.grad(reference_NHK, fused.qkv_N3HK, gradient_NHK)
    torch.testing.assert_close(out_NHK, reference_NHK)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("lengths", [(5, 5, 5), (7, 2, 5, 6)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_attention_that_drops_next_to_nothing_is_attention(
    lengths: tuple[int, ...], causal: bool, dtype: torch.dtype
) -> None:
    layout, fused = _pack(lengths)
    fused = Fused(fused.qkv_N3HK.to(dtype))
    # This rate is rounded to 0.
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    found = attend(fused, layout, layout, causal=causal, dropout=1e-7)
    wanted = attend(fused, layout, layout, causal=causal)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=0)


def test_a_bias_gets_its_gradient_through_dropped_attention() -> None:
    torch.manual_seed(5)
    q, k, v = torch.randn(3, 2, 2, 4, 8, dtype=torch.float64)
    bias = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)

    def loss(bias_1HLS: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(6)
        return dropped_attention(q, k, v, bias_1HLS, 0.4, scale=None).square().sum()

    assert torch.autograd.gradcheck(loss, bias)


def _pack(lengths: tuple[int, ...]) -> tuple[Layout, Fused]:
    """Random queries, keys and values of two heads of width 8."""
    bounds_B1 = torch.tensor([0, *lengths]).cumsum(0).int()
    torch.manual_seed(0)
    qkv_N3HK = torch.randn(sum(lengths), 3, 2, 8, requires_grad=True)
    return Layout(bounds_B1, max(lengths), sum(lengths)), Fused(qkv_N3HK)
