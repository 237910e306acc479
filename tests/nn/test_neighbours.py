"""Initial weights whose heads look at neighbours."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from firth.data.packing import pack_tokens
from firth.encoders.bart import Bart
from firth.encoders.bert import Bert
from firth.encoders.transformer import Transformer
from firth.errors import BadConfig
from firth.nn.absolute_positions import AbsoluteConfig
from firth.tensors import States


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


IDS = np.random.default_rng(1).permutation(1000)[:40] + 5
"""A text in which every token occurs once."""
SHAPES = (
    Bart.Config(vocab_size=1200, width=128, num_layers=2, num_heads=2, ffn_width=256, init_std=0.05, dropout=0.0),
    Transformer.Config(
        vocab_size=1200, width=128, num_layers=2, num_heads=2, ffn_width=256, positions="learned", dropout=0.0
    ),
)


@pytest.mark.parametrize("shape", SHAPES, ids=["bart", "transformer"])
def test_a_writer_looks_at_neighbours_and_at_the_same_token_of_its_source(shape: AbsoluteConfig) -> None:
    writer = _writer(replace(shape, init="neighbours"))
    states = _states(writer)
    # The encoder's heads look back and ahead, the decoder's only back. Without a source the encoder reads alone.
    with torch.no_grad():
        read = writer(pack_tokens([IDS]), attention=True)
    for head, shift in enumerate((-1, 1)):
        weights_SS = read.attention[0][0][head]
        assert weights_SS.diagonal(shift).mean() > 0.5, (head, shift)
    for head, shift in enumerate((-1, -2)):
        weights_LL = states.attention[0][0][head]
        assert weights_LL.diagonal(shift).mean() > 0.5, (head, shift)
    for weights_HLS in states.cross_attention:
        at_same_token = weights_HLS[0].diagonal(dim1=1, dim2=2)
        assert at_same_token.mean() > 0.3


@pytest.mark.parametrize("shape", SHAPES, ids=["bart", "transformer"])
def test_a_writer_with_normal_weights_looks_everywhere(shape: AbsoluteConfig) -> None:
    states = _states(_writer(shape))
    for weights_HLS in states.cross_attention:
        assert weights_HLS[0].diagonal(dim1=1, dim2=2).mean() < 0.2


def test_sinusoids_cannot_be_neighbours() -> None:
    with pytest.raises(BadConfig, match="positions=learned"):
        Transformer.Config(init="neighbours")


def _writer(shape: AbsoluteConfig) -> Bart | Transformer:
    torch.manual_seed(1)
    network = Bart(shape) if isinstance(shape, Bart.Config) else Transformer(shape)
    return network.eval()


def _states(writer: Bart | Transformer) -> States:
    """The writer copies a text: its source and its target are the same tokens, each once."""
    batch = replace(pack_tokens([IDS]), source=pack_tokens([IDS]))
    with torch.no_grad():
        states: States = writer(batch, attention=True)
    return states
