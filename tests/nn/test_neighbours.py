"""Initial weights whose heads look at neighbours."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from firth.data.packing import pack_tokens
from firth.encoders.bert import Bert


@pytest.mark.parametrize("embedding_width", [0, 64])
def test_every_head_of_the_first_block_looks_at_its_neighbour(
    small_bert: Callable[..., Bert], embedding_width: int
) -> None:
    encoder = small_bert(
        init="neighbours", width=128, num_heads=4, init_std=0.05, embedding_width=embedding_width
    ).eval()
    ids = np.random.default_rng(1).integers(5, 1200, 40)
    with torch.no_grad():
        weights_HLL = encoder(pack_tokens([ids]), attention=True).attention[0][0]
    for head, shift in enumerate((-1, 1, -2, 2)):
        at_neighbour = weights_HLL[head].diagonal(shift)
        assert at_neighbour.mean() > 0.5, (head, shift)


def test_normal_weights_look_everywhere(small_bert: Callable[..., Bert]) -> None:
    encoder = small_bert(width=128, num_heads=4, init_std=0.05).eval()
    ids = np.random.default_rng(1).integers(5, 1200, 40)
    with torch.no_grad():
        weights_HLL = encoder(pack_tokens([ids]), attention=True).attention[0][0]
    assert weights_HLL.max() < 0.2


def test_only_first_weights_differ(small_bert: Callable[..., Bert]) -> None:
    plain, changed = small_bert(), small_bert(init="neighbours")
    assert plain.state_dict().keys() == changed.state_dict().keys()
    same = {name for name, tensor in plain.state_dict().items() if torch.equal(tensor, changed.state_dict()[name])}
    differing = plain.state_dict().keys() - same
    assert differing == {
        "embeddings.positions.weight",
        "embeddings.segments.weight",
        "blocks.0.attention.qkv.weight",
    }
