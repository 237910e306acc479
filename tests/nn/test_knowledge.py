"""Vectors of names in a batch, found as whole words, and fused with the states of a frozen encoder."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from firth import rng
from firth.data.packing import pack_tokens
from firth.encoders.bert import Bert
from firth.errors import BadConfig
from firth.nn.features import Features
from firth.nn.knowledge import NameTable, name_key

CONTINUES = [10, 11, 12]
"""Ids of pieces that continue a word."""
NAMES = [[1], [2], [1, 10], [1, 10, 11], [3, 1], [3, 1, 2], [4, 12]]


@pytest.fixture
def table() -> NameTable:
    made = NameTable(len(NAMES), 4, longest=3, vocab_size=20)
    keys = sorted(name_key(name) for name in NAMES)
    assert len(set(keys)) == len(NAMES)
    with torch.no_grad():
        made.keys_M.copy_(torch.tensor(keys))
        made.vectors_ME.copy_(torch.eye(len(NAMES))[:, :4] + 1)
        made.continues_V[CONTINUES] = True
    return made


def brute_force(ids: list[int]) -> list[list[int]]:
    """For each token of a sequence the longest name that begins there, of whole words."""
    found = []
    for place in range(len(ids)):
        best: list[int] = []
        for name in NAMES:
            end = place + len(name)
            is_whole = ids[place] not in CONTINUES and (end >= len(ids) or ids[end] not in CONTINUES)
            if ids[place:end] == name and is_whole and len(name) > len(best):
                best = name
        found.append(best)
    return found


def test_the_longest_name_of_whole_words_is_found(table: NameTable) -> None:
    choices = np.array([1, 2, 3, 4, 7, 10, 11, 12])
    sequences = []
    for number in range(200):
        size = 1 + int(rng.below(rng.key("size"), 9, number))
        sequences.append(choices[rng.below(rng.key("ids"), len(choices), number, np.arange(size))])
    batch = pack_tokens(sequences)
    rows = table.find(batch.ids_N, batch.bounds_B1).split([len(ids) for ids in sequences])
    keys = table.keys_M.tolist()
    total = 0
    for ids, found in zip(sequences, rows, strict=True):
        for row, name in zip(found.tolist(), brute_force(ids.tolist()), strict=True):
            assert (row < 0) == (not name)
            if name:
                assert keys[row] == name_key(name)
                total += 1
    assert total > 200
    vectors = table(batch)
    assert torch.equal(vectors.abs().sum(1) > 0, table.find(batch.ids_N, batch.bounds_B1) >= 0)


def test_neighbours_in_a_pack_change_nothing(table: NameTable) -> None:
    together = pack_tokens([np.array([3]), np.array([1, 2]), np.array([3, 1])])
    alone = pack_tokens([np.array([3, 1])])
    found = table.find(together.ids_N, together.bounds_B1).tolist()
    assert found[0] == -1  # 3 alone is no name, though 1 and 2 follow in the pack
    assert found[3:] == table.find(alone.ids_N, alone.bounds_B1).tolist()


def knowing(encoder: Bert, **changes: object) -> Features:
    config = Features.Config(layers=(-2, -1), combine="sum", fusion_width=8, names=(len(NAMES), 4, 3), **changes)  # type: ignore[arg-type]
    torch.manual_seed(3)
    return Features(config, encoder)


def test_only_the_fusion_learns_and_it_starts_near_nothing(small_bert: Callable[..., Bert], table: NameTable) -> None:
    encoder = small_bert().eval()
    features = knowing(encoder)
    assert features.table is not None
    features.table.load_state_dict(table.state_dict() | {"continues_V": torch.zeros(1200, dtype=torch.bool)})
    plain = Features(Features.Config(layers=(-2, -1), combine="sum"), encoder)
    batch = pack_tokens([np.array([5, 3, 1, 2, 6]), np.array([5, 7, 6])])
    before = features(batch).last_ND
    assert (before - plain(batch).last_ND).abs().max() < 0.05
    before.square().sum().backward()
    learning = {name for name, p in features.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert {name for name, p in features.named_parameters() if p.requires_grad} == learning
    assert learning
    assert all(name.startswith("knowledge.") for name in learning)
    assert {"table.keys_M", "table.vectors_ME", "table.continues_V"} <= features.own_parameters().keys()


def test_a_name_changes_its_first_token_alone(small_bert: Callable[..., Bert], table: NameTable) -> None:
    features = knowing(small_bert()).eval()
    assert features.table is not None
    assert features.knowledge is not None
    batch = pack_tokens([np.array([5, 3, 1, 2, 6])])
    with torch.no_grad():
        for layer in features.knowledge.layers:
            layer.out.weight.normal_()  # type: ignore[union-attr, operator]
        without = features(batch).last_ND
        features.table.load_state_dict(table.state_dict() | {"continues_V": torch.zeros(1200, dtype=torch.bool)})
        changed = (features(batch).last_ND - without).abs().amax(1) > 1e-6
    # [3, 1, 2], [1] and [2] are names.
    assert changed.tolist() == [False, True, True, True, False]


def test_concatenated_layers_are_refused(small_bert: Callable[..., Bert]) -> None:
    with pytest.raises(BadConfig, match="combine=sum or combine=mix"):
        Features(Features.Config(layers=(-1,), combine="concat", names=(1, 4, 1)), small_bert())
