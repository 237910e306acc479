"""Sequences that read one source together (beams) have the states they would have alone, however they are kept."""

from typing import Any

import numpy as np
import pytest
import torch

from firth.data.packing import pack_tokens
from firth.encoders.transformer import Transformer
from firth.nn.kv_cache import KeyValueCache
from firth.tensors import Batch

SOURCES = [np.arange(3, 3 + length) for length in (9, 2, 30, 5)]


@pytest.fixture(scope="module")
def encoder() -> Transformer:
    torch.manual_seed(2)
    sizes: dict[str, Any] = {"width": 16, "num_layers": 2, "num_heads": 2, "ffn_width": 32, "max_positions": 32}
    return Transformer(Transformer.Config(vocab_size=60, dropout=0.0, **sizes)).eval()


def new_tokens(rows: list[list[int]], cache: KeyValueCache) -> Batch:
    """So many new tokens of each sequence, at their positions."""
    lengths = cache.lengths_B.tolist()
    positions = [np.arange(start, start + len(row)) for start, row in zip(lengths, rows, strict=True)]
    batch = pack_tokens([np.array(row) for row in rows])
    return Batch(
        batch.ids_N,
        torch.from_numpy(np.concatenate(positions)),
        batch.segments_N,
        batch.bounds_B1,
        batch.max_length,
    )


@pytest.mark.parametrize("num_new", [1, 2])
@pytest.mark.parametrize(
    "kept",
    [
        [[0, 1, 2, 3], [0, 1, 2, 3]],
        [[0, 0, 1, 2, 2, 2, 3], [1, 0, 2, 5, 3, 6]],  # more beams, then some of them in another order
        [[0, 0, 2, 2], [0, 1, 2], [2]],  # texts end
        [[3, 0, 0], [2, 1, 0, 0]],  # the texts themselves change places
    ],
    ids=str,
)
def test_states_are_those_of_each_sequence_alone(encoder: Transformer, kept: list[list[int]], num_new: int) -> None:
    sequences = [(source, [1]) for source in range(len(SOURCES))]
    cache = KeyValueCache(encoder.num_decoder_layers, len(SOURCES), 16)
    with torch.inference_mode():
        source = encoder.encode_source(pack_tokens(SOURCES))
        encoder(new_tokens([[1]] * len(SOURCES), cache), cache=cache, source=source)
        for step, rows in enumerate(kept):
            cache.keep(torch.tensor(rows))
            grown = []
            for place, row in enumerate(rows):
                number, tokens = sequences[row]
                grown.append((number, [*tokens, *(10 + 7 * step + place + i for i in range(num_new))]))
            sequences = grown
            found_ND = encoder(new_tokens([tokens[-num_new:] for _, tokens in sequences], cache), cache=cache).last_ND
            for place, (number, tokens) in enumerate(sequences):
                batch = pack_tokens([np.array(tokens)])
                alone_ND = encoder(batch, source=encoder.encode_source(pack_tokens([SOURCES[number]]))).last_ND
                mine_ND = found_ND[place * num_new : (place + 1) * num_new]
                torch.testing.assert_close(mine_ND, alone_ND[-num_new:], atol=1e-5, rtol=1e-5)
