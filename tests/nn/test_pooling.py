"""One vector for each sequence, whatever lies beside it."""

import pytest
import torch

from firth.nn.pooling import POOLINGS


@pytest.mark.parametrize("name", POOLINGS)
def test_an_empty_sequence_takes_nothing_from_its_neighbours(name: str) -> None:
    x_ND = torch.arange(1.0, 13.0).view(6, 2)
    whole_BD = POOLINGS[name](x_ND, torch.tensor([0, 4, 6]))
    found_BD = POOLINGS[name](x_ND, torch.tensor([0, 0, 4, 4, 6, 6]))
    assert torch.equal(found_BD[[1, 3]], whole_BD)
    assert not found_BD[[0, 2, 4]].any()


@pytest.mark.parametrize("name", POOLINGS)
def test_a_batch_without_tokens(name: str) -> None:
    found_BD = POOLINGS[name](torch.zeros(0, 3), torch.tensor([0, 0, 0]))
    assert torch.equal(found_BD, torch.zeros(2, 3))
