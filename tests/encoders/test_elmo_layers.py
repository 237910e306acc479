"""ELMo's layers: which way each half looks, and the published sizes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from firth import encoders, lineage
from firth.data.packing import pack_tokens
from firth.encoders.elmo import Elmo, distinct
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


def test_a_word_moves_every_layer_of_a_new_encoder_in_both_directions_alike() -> None:
    """Without a norm anywhere, what weights of a fixed small size say is lost on the way up."""
    [(_, config)] = lineage.make("elmo", "tiny").encoder.items()
    torch.manual_seed(8)
    encoder = Elmo(replace(config, vocab_size=5000)).eval()
    ids = np.random.default_rng(1).integers(5, 5000, 600)
    with torch.inference_mode():
        layers = encoder(pack_tokens(np.split(ids, 20)), layers=True).layers
    for layer in layers:
        forward, backward = (half.std(0).mean() for half in layer.chunk(2, 1))
        assert 0.15 < forward < 1.5
        assert 0.75 < forward / backward < 1.33
    assert layers[-1].abs().max() < 6  # two layers within their clips


def test_the_loss_reaches_the_letters_of_a_new_language_model() -> None:
    [(_, config)] = lineage.make("elmo", "tiny").encoder.items()
    torch.manual_seed(8)
    encoder, ids = Elmo(replace(config, vocab_size=2000)), np.random.default_rng(2).integers(5, 2000, 400)
    head = torch.nn.Linear(64, 2000)
    torch.nn.init.normal_(head.weight, std=1 / 8)
    states_ND = encoder(pack_tokens([ids])).last_ND
    torch.nn.functional.cross_entropy(head(states_ND[:-1, :64]), torch.from_numpy(ids[1:])).backward()
    sizes = {name: float(p.grad.square().mean().sqrt()) for name, p in encoder.named_parameters() if p.grad is not None}
    assert sizes["words.characters.weight"] > 1e-4
    assert sizes["blocks.1.input_2DF"] > 1e-4


def test_sixteen_sentences_are_learned_by_heart_in_both_directions() -> None:
    torch.manual_seed(9)
    config = Elmo.Config(vocab_size=500, width=64, cell_width=64, filters=((1, 16), (2, 16), (3, 32)), num_highways=1)
    ids_BL = np.random.default_rng(4).integers(5, 500, (16, 9))
    encoder, head, batch = Elmo(config), torch.nn.Linear(32, 500), pack_tokens(list(ids_BL))
    torch.nn.init.normal_(head.weight, std=32**-0.5)
    gold_BL = torch.from_numpy(ids_BL)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], 5e-3, eps=1e-6)
    for _ in range(50):
        forward, backward = (head(half.view(16, 9, 32)) for half in encoder(batch).last_ND.chunk(2, 1))
        losses = [
            torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
            for scores, labels in ((forward[:, :-1], gold_BL[:, 1:]), (backward[:, 1:], gold_BL[:, :-1]))
        ]
        optimizer.zero_grad()
        sum(losses).backward()  # type: ignore[union-attr]
        optimizer.step()
    assert max(loss.item() for loss in losses) < 1.0  # 6.2 is what a model without context reaches


def test_a_word_that_occurs_often_is_read_once() -> None:
    ids_NL = torch.tensor([[3, 1, 2], [3, 2, 1], [3, 1, 2], [0, 0, 0], [3, 2, 1]])
    ids_UL, word_N = distinct(ids_NL)
    assert len(ids_UL) == 3
    assert torch.equal(ids_UL[word_N], ids_NL)
    assert distinct(ids_NL[:0])[0].shape == (0, 3)
    spelled_NL = torch.from_numpy(np.random.default_rng(3).integers(0, 262, (20_000, 50)))
    ids_UL, word_N = distinct(spelled_NL)
    assert len(ids_UL) == 20_000
    assert torch.equal(ids_UL[word_N], spelled_NL)


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
