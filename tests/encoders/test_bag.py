"""A bag's vectors are sums or means of the rows of parts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from firth.data.packing import pack_tokens
from firth.encoders.bag import Bag
from firth.encoders.static import Static
from firth.errors import BadConfig


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_parts(combine: Any) -> None:
    bag = Bag(Bag.Config(vocab_size=9, width=4, combine=combine, init_std=1.0))
    batch = replace(
        pack_tokens([np.arange(3), np.arange(2)]),
        parts_M=torch.tensor([1, 2, 3, 4, 4, 8]),
        part_bounds_N1=torch.tensor([0, 2, 2, 3, 5, 6]),
    )
    states, rows = bag(batch), bag.table.weight
    size = 2 if combine == "mean" else 1
    assert torch.allclose(states.last_ND[0], (rows[1] + rows[2]) / size)
    assert not states.last_ND[1].any()
    assert torch.allclose(states.last_ND[3], 2 * rows[4] / size)
    assert torch.allclose(states.pooled_BD, torch.stack([rows[[1, 2, 3]].mean(0), rows[[4, 4, 8]].mean(0)]))
    states.pooled_BD.sum().backward()
    assert rows.grad is not None
    assert torch.allclose(rows.grad[4], torch.full((4,), 2 / 3))


def test_without_parts_a_token_is_its_own() -> None:
    torch.manual_seed(0)
    bag, words = Bag(Bag.Config(vocab_size=9, width=4)), Static(Static.Config(vocab_size=9, width=4))
    words.load_state_dict(bag.state_dict())
    batch = pack_tokens([np.array([3, 3, 7]), np.array([8])])
    assert torch.equal(bag(batch).last_ND, words(batch).last_ND)
    assert torch.allclose(bag(batch).pooled_BD, words(batch).pooled_BD)


@pytest.mark.parametrize("change", [{"width": 0}, {"vocab_size": 0}, {"init_std": -1.0}])
def test_sizes_make_sense(change: dict[str, Any]) -> None:
    for kind in (Bag, Static):
        with pytest.raises(BadConfig, match="at least"):
            kind.Config(**change)
