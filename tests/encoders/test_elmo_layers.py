"""ELMo's layers: which way each half looks, and the published sizes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from firth import encoders
from firth.data.packing import pack_tokens
from firth.encoders.elmo import Elmo
from firth.recipes import lineage
from firth.tensors import States, parameter_count

SMALL = Elmo.Config(vocab_size=50, width=12, cell_width=16, character_width=4, filters=((1, 4), (3, 6)))
LENGTHS = [9, 1, 6]


@pytest.fixture
def encoder() -> Elmo:
    torch.manual_seed(6)
    return Elmo(SMALL).eval()


def states(encoder: Elmo, ids: np.ndarray) -> States:
    with torch.inference_mode():
        found: States = encoder(pack_tokens(np.split(ids, np.cumsum(LENGTHS)[:-1])), layers=True)
    return found


def test_the_forward_half_is_blind_to_the_future_and_the_backward_half_to_the_past(encoder: Elmo) -> None:
    ids = np.arange(16) + 5
    before = states(encoder, ids)
    for place in (0, 4, 8):  # in the first sequence
        after = states(encoder, np.where(np.arange(16) == place, 44, ids))
        for layer in (1, 2):
            changed = (before.layers[layer] != after.layers[layer])[:9]
            forward, backward = changed[:, :6].any(1).tolist(), changed[:, 6:].any(1).tolist()
            assert forward == [row >= place for row in range(9)]
            assert backward == [row <= place for row in range(9)]


def test_three_layers_of_which_the_first_is_the_word_twice(encoder: Elmo) -> None:
    found = states(encoder, np.array([7, 8, 7, *range(13)]))
    word, first, second = found.layers
    assert torch.equal(word[:, :6], word[:, 6:])
    assert torch.equal(word[0], word[2])
    assert not torch.equal(first[0], first[2])
    assert torch.equal(second, found.last_ND)
    assert encoder.num_layers == 2


def test_every_layer_learns(encoder: Elmo) -> None:
    encoder.train()
    encoder(pack_tokens([np.arange(9), np.arange(3)])).last_ND.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())
    assert all(float(block.recurrent_2DF.grad.abs().max()) > 0 for block in encoder.blocks)


@pytest.mark.parametrize(("size", "millions"), [("small", 13.6), ("medium", 28.0), ("base", 93.6)])
def test_published_parameter_counts_of_elmo(size: str, millions: float) -> None:
    [(name, config)] = lineage.make("elmo", size).encoder.items()
    with torch.device("meta"):
        assert round(parameter_count([encoders.resolve(name)(config)]) / 1e6, 1) == millions


def test_published_parameter_count_of_awd_lstm() -> None:
    [(name, config)] = lineage.make("ulmfit", "base").encoder.items()
    with torch.device("meta"):
        encoder = encoders.resolve(name)(replace(config, vocab_size=10_000))
    assert parameter_count([encoder]) + 10_000 == 24_221_600  # with a bias for each word (Merity et al. 2017: 24M)
