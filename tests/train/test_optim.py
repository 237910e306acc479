"""Schedules and decay groups."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from firth.encoders.bert import Bert
from firth.train.optim import make_optimizer, scheduled_rate
from firth.train.settings import OptimConfig


def rates(schedule: str, steps: int = 100, warmup: float = 0.1) -> list[float]:
    config = OptimConfig(rate=2.0, schedule=schedule, warmup_rate=warmup)  # type: ignore[arg-type]
    return [scheduled_rate(step, steps, config) for step in range(steps)]


@pytest.mark.parametrize("schedule", ["linear", "cosine", "trapezoid", "constant", "inverse-sqrt"])
def test_every_schedule_warms_up_to_its_rate(schedule: str) -> None:
    found = rates(schedule)
    assert found[:10] == pytest.approx([0.2 * (step + 1) for step in range(10)])
    assert max(found) == 2.0
    assert min(found) > 0
    after = found[10:]
    assert all(one >= two for one, two in pairwise(after))


def test_the_shapes_after_warm_up() -> None:
    assert rates("linear")[55] == pytest.approx(1.0)
    assert rates("cosine")[55] == pytest.approx(1.0)
    assert rates("cosine")[20] > rates("linear")[20]
    assert rates("trapezoid")[81] == pytest.approx(2.0)
    assert rates("trapezoid")[91] == pytest.approx(1.0)
    assert set(rates("constant")[10:]) == {2.0}
    assert rates("linear")[-1] == pytest.approx(2.0 / 90)
    # The step that ends warm-up has the highest rate, four times as many steps half of it.
    assert rates("inverse-sqrt")[9] == 2.0
    assert rates("inverse-sqrt")[39] == pytest.approx(1.0)


def test_the_inverse_square_root_is_that_of_the_original_transformer() -> None:
    """D^-0.5 min(step^-0.5, step warmup^-1.5), equation 3 of the paper; its highest value is (D warmup)^-0.5."""
    steps, warmup, width = 100, 10, 512
    config = OptimConfig(rate=(width * warmup) ** -0.5, schedule="inverse-sqrt", warmup_rate=warmup / steps)
    for step in range(1, steps + 1):
        wanted = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert scheduled_rate(step - 1, steps, config) == pytest.approx(wanted)


def test_a_run_of_one_step_has_a_rate() -> None:
    assert rates("linear", steps=1) == [2.0]


def test_matrices_decay_biases_and_norms_do_not(small_bert: Callable[..., Bert]) -> None:
    model = small_bert()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer = make_optimizer(model, OptimConfig(weight_decay=0.1))
    decays = {names[id(p)]: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decays) == len(names)
    for name, decay in decays.items():
        assert decay == (0.0 if "norm" in name or name.endswith("bias") else 0.1), name


def test_the_first_step_is_bias_corrected() -> None:
    """Adam's first step is the rate times the gradient's sign, less decay: without correction it would be smaller."""
    model = torch.nn.Linear(2, 2)
    before = model.weight.detach().clone()
    optimizer = make_optimizer(model, OptimConfig(rate=0.1, weight_decay=0.5))
    (model.weight.sum() * 3).backward()
    optimizer.step()
    assert torch.allclose(model.weight, before * (1 - 0.1 * 0.5) - 0.1, atol=1e-5)


def test_frozen_parameters_are_left_out(small_bert: Callable[..., Bert]) -> None:
    model = small_bert()
    model.embeddings.requires_grad_(False)
    count = sum(len(group["params"]) for group in make_optimizer(model, OptimConfig()).param_groups)
    assert count == len(list(model.parameters())) - len(list(model.embeddings.parameters()))


def test_the_encoder_has_its_share_of_the_rate() -> None:
    model = torch.nn.ModuleDict({"encoder": torch.nn.Linear(3, 3), "goals": torch.nn.Linear(3, 3)})
    optimizer = make_optimizer(model, OptimConfig(rate=1e-3, encoder_share=0.25))
    shares = {id(weight): group["scale"] for group in optimizer.param_groups for weight in group["params"]}
    assert {shares[id(weight)] for weight in model["encoder"].parameters()} == {0.25}
    assert {shares[id(weight)] for weight in model["goals"].parameters()} == {1.0}
